"""A GPU is one entry of the catalogue: the schema, the scenario, a run and the messages follow from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simlora.errors import ConfigError
from simlora.results.summary import summarize
from simlora.scenario import gpu
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.schema import json_schema
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate

TOY = replace(gpu.GPUS["h100-80gb"], name="toy-gpu", architecture="toy", price_hour_usd=0.5, aliases=())


@pytest.fixture(autouse=True)
def _catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "GPUS", {**gpu.GPUS, TOY.name: TOY})


def test_a_run_on_it() -> None:
    scenario = scenario_from_dict({"model": "llama-3.1-8b", "gpu": "Toy GPU", "workload": {"num_requests": 5}})
    assert scenario.gpu_spec == TOY
    summary = summarize(simulate(build_inputs(scenario)))
    assert summary["requests"]["completed"] == 5 and summary["cost"]["usd_per_hour"] == 0.5
    assert summary["calibration"]["extrapolated"]  # nobody measured it


def test_the_schema_and_the_messages_name_it() -> None:
    assert "toy-gpu" in json_schema()["$defs"]["GpuConfig"]["properties"]["name"]["examples"]
    with pytest.raises(ConfigError, match="did you mean toy-gpu"):
        scenario_from_dict({"model": "llama-3.1-8b", "gpu": "toy-gpus"})


def test_other_spellings_stand_in_the_entry_and_name_one_gpu() -> None:
    spellings = [alias for spec in gpu.GPUS.values() for alias in spec.aliases]
    assert len(set(spellings)) == len(spellings) and not set(spellings) & set(gpu.GPUS)
    assert gpu.ALIASES["h100"] == "h100-80gb"
