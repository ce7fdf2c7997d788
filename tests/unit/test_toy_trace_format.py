"""A trace format is one module that describes itself and one entry of a table: everything else follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simlora.cli import app
from simlora.errors import ConfigError
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.schema import json_schema
from simlora.scenario.trace_formats import TRACE_FORMATS
from simlora.workload.traces.reader import read_trace
from simlora.workload.traces.table import TraceOptions

TOY = "0.5;100;20;alice\n1.5;80;10;bob\n1.75;60;15;alice\n"


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(TRACE_FORMATS, "toy", "support.toy_trace")
    path = tmp_path / "trace.toy"
    path.write_text(TOY)
    return path


@pytest.mark.parametrize("stated", ["toy", "auto"])
def test_a_run_replays_it(trace: Path, tmp_path: Path, stated: str) -> None:
    scenario = tmp_path / "toy.yaml"
    scenario.write_text(
        "model: llama-3.1-8b\nengine: {max_loras: 2}\nadapters: {count: 2}\n"
        f"workload: {{trace: {{path: {trace}, format: {stated}}}}}\n"
    )
    result = CliRunner().invoke(app, ["run", str(scenario), "--out", str(tmp_path / "out"), "--no-decision"])
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["requests"]["completed"] == 3 and summary["adapters"]["distinct"] == 2
    rows = (tmp_path / "out" / "requests.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["0.5", "1.5", "1.75"]  # it keeps its clock


def test_the_schema_the_messages_and_the_reader_know_it(trace: Path) -> None:
    variants = json_schema()["$defs"]["Trace"]["properties"]["format"]["anyOf"]
    assert variants[0]["enum"][-1] == "toy"
    workload = {"trace": {"path": str(trace), "format": "toys"}}
    with pytest.raises(ConfigError, match=r"must be one of: auto, .*csv or toy"):
        scenario_from_dict({"model": "llama-3.1-8b", "workload": workload})
    assert read_trace(trace).format == "toy"
    with pytest.raises(ConfigError, match=r"one of auto, .*, toy"):
        read_trace(trace, TraceOptions(format="toys"))


def test_the_command_line_names_every_format() -> None:
    shown = " ".join(CliRunner().invoke(app, ["trace", "--help"]).output.split())
    assert all(name in shown for name in TRACE_FORMATS)
