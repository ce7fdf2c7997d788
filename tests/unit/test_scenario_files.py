"""The shipped scenarios: they load, editors find their schema, and the sample trace is what its recipe gives."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import yaml

from simlora.scenario.load import load_scenario
from simlora.scenario.schema import json_schema

SCENARIOS = Path(__file__).parents[2] / "scenarios"
FILES = sorted(SCENARIOS.glob("*.yaml"))
EXPECTED = {
    "1000-tenants",
    "1000-tenants-thrash",
    "8b-h200",
    "8b-h200-base",
    "8b-h200-mix",
    "kv-bound",
    "azure-conv",
}


def sample_trace() -> str:
    """300 made-up requests in the Azure layout: Poisson at 5 per second, lognormal lengths, stamps of seven digits."""
    generator = np.random.default_rng(2023)
    arrival_s = np.cumsum(generator.exponential(1 / 5, 300))
    prompt = np.clip(generator.lognormal(np.log(850), 0.8, 300), 16, 6000).astype(int)
    output = np.clip(generator.lognormal(np.log(130), 1.0, 300), 2, 1000).astype(int)
    start = datetime(2023, 11, 16, 18, 0, 0)
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for second, context, generated in zip(arrival_s, prompt, output, strict=True):
        ticks = int(second * 1e7)  # 100 ns each
        stamp = start + timedelta(seconds=ticks // 10**7)
        rows.append(f"{stamp:%Y-%m-%d %H:%M:%S}.{ticks % 10**7:07d},{context},{generated}")
    return "\n".join(rows) + "\n"


def test_the_expected_scenarios_are_there() -> None:
    assert {path.stem for path in FILES} >= EXPECTED


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_loads_and_is_named_after_its_file(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    assert scenario.source == str(path)
    if scenario.workload.trace is not None:
        assert scenario.path(scenario.workload.trace.path).is_file()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_names_the_schema_for_editors(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=schema.json"


def test_the_committed_schema_is_current() -> None:
    committed = json.loads((SCENARIOS / "schema.json").read_text())
    assert committed == json_schema(), "write it anew: simlora schema > scenarios/schema.json"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_schema_accepts_it(path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json_schema()
    as_json = json.loads(json.dumps(yaml.safe_load(path.read_text())))  # keys become text, as editors see them
    jsonschema.validate(as_json, schema)
    jsonschema.validate(load_scenario(path).to_dict(), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**as_json, "engine": {"max_lora": 8}}, schema)


def test_the_sample_trace_follows_its_recipe() -> None:
    assert (SCENARIOS / "traces" / "sample.csv").read_text() == sample_trace()
