"""The measured terms of collectives and of sends to a peer, against their samples."""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from simlora.calibrate.fitting.fit import HELD_OUT_SEED
from simlora.calibrate.fitting.links import fit_collectives, fit_sends
from support.latency_cases import decode, decodes, make_any, make_latency

from simlora.latency.store import CALIBRATION_FOLDER, load_calibration
from simlora.scenario.gpu import GPUS
from simlora.scenario.model import MODELS

FOLDER = CALIBRATION_FOLDER / "samples" / "nvidia-h200"
LINK = GPUS["h200-141gb"].gpu_link_bytes_per_s


@pytest.mark.parametrize("name", ["nvidia-h200", "nvidia-h200-kernels"])
def test_the_shipped_term_is_the_fit_of_its_samples(name: str) -> None:
    with gzip.open(FOLDER / "samples.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    term = load_calibration(name).terms.collectives
    fit = fit_collectives(rows, MODELS["llama-3.1-8b"], LINK, term.parameters, HELD_OUT_SEED)
    assert fit is not None and term.basis == "measured" and term.measured == fit.measured
    assert term.parameters.latency_s == pytest.approx(fit.parameters.latency_s, rel=1e-3)
    assert term.parameters.link_fraction == pytest.approx(fit.parameters.link_fraction, rel=1e-3)
    assert term.held_out_error == pytest.approx(fit.held_out_error, abs=1e-3) and term.held_out_error < 0.15


def test_only_more_gpus_than_measured_are_extrapolated() -> None:
    marked = {
        tp: "collectives" in make_latency(tensor_parallel_size=tp).price(decode(1)).extrapolated for tp in (1, 2, 4)
    }
    assert marked == {1: False, 2: False, 4: True}


@pytest.mark.parametrize("name", ["nvidia-h200", "nvidia-h200-kernels"])
def test_sends_to_a_peer_are_the_fit_of_their_samples(name: str) -> None:
    """A send that the next one waits for, as a stage waits for its inputs: 30 us, and 0.84 of the link beyond."""
    rows = json.loads((FOLDER / "send_recv.json").read_text())
    calibration = load_calibration(name)
    assert calibration.terms.sends == fit_sends(rows, LINK, HELD_OUT_SEED)
    price = make_latency(tensor_parallel_size=2).collectives.send_s
    for row in rows:
        if row["kind"] == "ping_pong":
            assert price(row["bytes"]) == pytest.approx(row["p50"], rel=0.2)


def test_without_the_term_a_send_is_priced_as_an_all_reduces_way() -> None:
    known = make_latency(tensor_parallel_size=2).collectives
    assert replace(known, sends=None).send_s(1 << 20) == known.link_s(1 << 20) < known.send_s(1 << 20)


def test_stages_send_two_tensors() -> None:
    """Hidden states and residual, each by a send of its own."""
    latency = make_any("vllm", pipeline_parallel_size=2)
    size = 64 * latency.model.hidden_size * latency.model.dtype_bytes
    assert latency.price_stages(decodes(64)).transfer_s == pytest.approx(2 * latency.collectives.send_s(size))
