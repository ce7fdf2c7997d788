"""Punica's published comparison as a test: batches of many adapters against one adapter at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simlora.scenario.load import scenario_from_dict
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate

REQUESTS, OUTPUT = 128, 100
DISTINCT, IDENTICAL, UNIFORM = list(range(1, REQUESTS + 1)), [1], list(range(1, 13))
"""Adapters of the requests in turn, as in Punica's popularity studies (uniform: about the root of the requests)."""


def play(folder: Path, kind: str, adapters: list[int], **engine: object) -> tuple[float, float, set[str]]:
    """(output tokens per second, seconds per token of a request, extrapolated terms) on an A100 with Llama-2-7B."""
    lines = [f"{i * 0.001:.3f},{adapters[i % len(adapters)]},200,{OUTPUT}\n" for i in range(REQUESTS)]
    trace = folder / "trace.csv"
    trace.write_text("arrival_s,adapter,prompt_tokens,output_tokens\n" + "".join(lines))
    item = scenario_from_dict({
        "model": "llama-2-7b", "gpu": "a100-80gb", "engine": {"kind": kind, **engine},
        "adapters": {"count": max(adapters), "ranks": 16}, "workload": {"trace": {"path": str(trace), "format": "csv"}},
    })  # fmt: skip
    log = simulate(build_inputs(item), check=True)
    requests = log.requests
    assert np.all(requests.status == 0)
    tpot_s = (requests.last_token_s - requests.first_token_s) / (OUTPUT - 1)
    return REQUESTS * OUTPUT / float(requests.last_token_s.max()), float(tpot_s.mean()), set(log.extrapolated_s)


def test_c10_distinct_adapters_cost_little_in_one_batch_and_a_lot_one_at_a_time(tmp_path: Path) -> None:
    """Batch up to 32. Paper: about 12 times the throughput of systems that batch per adapter, about 2 ms a token."""
    together, tpot_s, extrapolated = play(tmp_path, "punica", DISTINCT)
    apart, _, _ = play(tmp_path, "grouped", DISTINCT, max_num_seqs=32)
    assert together / apart > 8
    _, same_tpot_s, _ = play(tmp_path, "punica", IDENTICAL)
    assert 0 < tpot_s - same_tpot_s < 0.004
    assert "lora_kernels" in extrapolated  # no A100 was measured


def test_c10_identical_adapters_are_served_as_well_by_either(tmp_path: Path) -> None:
    together, _, _ = play(tmp_path, "punica", IDENTICAL)
    apart, _, _ = play(tmp_path, "grouped", IDENTICAL, max_num_seqs=32)
    assert together / apart == pytest.approx(1.0, abs=0.25)


def test_c10_a_few_adapters_lie_between(tmp_path: Path) -> None:
    ratios = []
    for adapters in (IDENTICAL, UNIFORM, DISTINCT):
        together, _, _ = play(tmp_path, "punica", adapters)
        apart, _, _ = play(tmp_path, "grouped", adapters, max_num_seqs=32)
        ratios.append(together / apart)
    assert ratios == sorted(ratios) and ratios[1] > 1.5
