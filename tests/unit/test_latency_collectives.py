"""The measured collectives term, against its samples."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from support.latency_cases import decode, make_latency

from simlora.latency.fit import HELD_OUT_SEED
from simlora.latency.fit_collectives import fit_collectives
from simlora.latency.store import CALIBRATION_FOLDER, load_calibration
from simlora.scenario import GPUS, MODELS

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


def test_sends_to_a_peer_are_priced_by_the_same_term() -> None:
    """Measured, but not fitted: large sends run at 0.7 of the link where all-reduces reach 0.58; small ones, launched
    one by one, wait for their launch (30 to 38 us, hidden where stages are launched ahead)."""
    rows = json.loads((FOLDER / "send_recv.json").read_text())
    price = make_latency(tensor_parallel_size=2).collectives.link_s
    for row in rows:
        if row["kind"] == "stream":
            ratio = price(row["bytes"]) / row["p50"]
            assert 0.7 < ratio < 1.5 if row["bytes"] >= 2**24 else 0.2 < ratio < 1.1
