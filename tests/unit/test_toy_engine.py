"""An engine is a schema, a spec and one entry of a table: scenario, schema, memory, run and comparison follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from simlora.cli import app
from simlora.errors import ConfigError
from simlora.plan.variants import variant
from simlora.results.summary import summarize
from simlora.scenario.engines import ENGINES
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario
from simlora.scenario.schema import json_schema
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "solo", "support.toy_engine:SoloConfig")


def scenario(**engine: Any) -> Scenario:
    return scenario_from_dict(
        {
            "model": "llama-3.1-8b",
            "engine": {"kind": "solo"} | engine,
            "adapters": {"count": 3, "ranks": 8},
            "workload": {"arrivals": {"kind": "poisson", "rate_rps": 2}, "num_requests": 40},
        }
    )


def test_a_run_plays_its_scheduler() -> None:
    inputs = build_inputs(scenario())
    log, slow = simulate(inputs, check=True), simulate(inputs, coalesce=False)
    requests = log.requests
    assert np.array_equal(requests.last_token_s, slow.requests.last_token_s)
    assert np.all(np.diff(requests.last_token_s) > 0)
    assert log.replicas[0].runs["running"].max() == 1
    summary = summarize(log)
    assert summary["requests"]["completed"] == 40 and 3 <= summary["adapters"]["loads"] < 40
    assert summary["calibration"]["extrapolated"], "nobody measured it"


def test_the_scenario_knows_it() -> None:
    assert "solo" in json_schema()["$defs"]["SoloConfig"]["properties"]["kind"]["anyOf"][0]["const"]
    with pytest.raises(ConfigError, match=r"merged-swap or solo"):
        scenario(kind="duo")
    with pytest.raises(ConfigError, match=r"engine\.max_num_seqs: 2: unknown key"):
        scenario(max_num_seqs=2)
    with pytest.raises(ConfigError, match="weights bind"):
        build_inputs(scenario(gpu_memory_utilization=0.01))


def test_it_is_compared_with_others() -> None:
    given = scenario_from_dict({"model": "llama-3.1-8b", "adapters": {"count": 3, "ranks": 8}})
    assert variant(given, "solo").engine.kind == "solo"


def test_the_command_line_runs_it(tmp_path: Path) -> None:
    path = tmp_path / "solo.yaml"
    path.write_text("model: llama-3.1-8b\nengine: {kind: solo}\nadapters: {count: 3}\nworkload: {num_requests: 10}\n")
    for arguments in (["memory", str(path)], ["run", str(path), "--check", "--out", str(tmp_path / "out")]):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "out" / "run.json").read_text())["engine"]["kind"] == "solo"
