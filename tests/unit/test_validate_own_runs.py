"""A simulated run, written and validated, has no error at all: both sides are the same simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simlora.results.files import run_writers, write_folder
from simlora.results.summary import summarize
from simlora.scenario.load import scenario_from_dict
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate
from simlora.validate.compare import validate

SMALL: dict[str, Any] = {
    "name": "own",
    "seed": 5,
    "model": "llama-3.1-8b",
    "engine": {"max_loras": 4, "max_lora_rank": 16, "max_cpu_loras": 8, "max_num_seqs": 64},
    "adapters": {"count": 12, "ranks": {8: 0.5, 16: 0.5}, "popularity": {"kind": "zipf", "alpha": 1.0}},
    "workload": {"arrivals": {"kind": "poisson", "rate_rps": 8}, "duration_s": 10},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "many adapters": {},
    "base only": {"engine": {"enable_lora": False}, "adapters": {}},
    "mixed with the base": {"adapters": {"count": 3, "base_fraction": 0.5}},
    "pinned": {"adapters": {**SMALL["adapters"], "pinned": [3, 12]}},
    "cut": {"workload": {**SMALL["workload"], "end": "cut"}},
    "older version": {"engine": {**SMALL["engine"], "version": "0.8.5"}, "gpu": "h100-80gb"},
    "speculative": {
        "engine": {**SMALL["engine"], "speculative": {"num_speculative_tokens": 2, "acceptance_rate": 0.7}}
    },
    "prefixes": {
        "workload": {**SMALL["workload"], "prefix": {"kind": "share", "fraction": 0.5}},
        "engine": {**SMALL["engine"], "enable_prefix_caching": True},
    },
    "replicas and remote storage": {
        "cluster": {"replicas": 2, "router": {"kind": "lora-affinity"}},
        "storage": {"remote": {"bandwidth_gib_s": 2.0}},
    },
    "KV pressure": {
        "engine": {**SMALL["engine"], "num_gpu_blocks_override": 300, "max_model_len": 4096},
        "workload": {**SMALL["workload"], "output_tokens": {"kind": "uniform", "min": 50, "max": 400}},
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_error(tmp_path: Path, variant: str) -> None:
    log = simulate(build_inputs(scenario_from_dict({**SMALL, **VARIANTS[variant]})))
    write_folder(tmp_path / "run", run_writers(log, summarize(log)))
    report = validate([tmp_path / "run"])
    assert len(report.rows) == 10
    for row in report.rows:
        assert row.error == pytest.approx(0, abs=1e-9), row.metric
        if row.metric != "preemptions":
            assert row.measured
            assert row.simulated_step_x095 != row.simulated
