"""A router is one class that describes itself and one entry of a table: scenario, schema and simulation follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import Field

from simlora.cluster.router import Decision, NamedRouter, Send
from simlora.engines.inputs import Inputs
from simlora.engines.request import Request
from simlora.engines.view import View
from simlora.errors import ConfigError
from simlora.scenario.cluster import ROUTERS, RouterConfig
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario
from simlora.scenario.schema import json_schema
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate


def scenario(**sections: Any) -> Scenario:
    return scenario_from_dict(
        {
            "model": "llama-3.1-8b",
            "adapters": {"count": 6, "ranks": 8},
            "workload": {"arrivals": {"kind": "poisson", "rate_rps": 20}, "num_requests": 60},
            **sections,
        }
    )


class AlwaysOptions(RouterConfig):
    """Sees nothing, so it has no scrapes."""

    replica: int = Field(default=0, ge=0, description="Who gets every request")


class Always(NamedRouter):
    """One replica does all the work.

    For tests.
    """

    Options = AlwaysOptions
    engines = ("vllm", "sglang")
    elsewhere = "minds being alone"
    needs_views = False

    def __init__(self, replica: int) -> None:
        self._replica = replica

    @classmethod
    def build(cls, inputs: Inputs) -> Always:
        options = inputs.scenario.cluster.router
        assert isinstance(options, AlwaysOptions)
        return cls(options.replica)

    def choose(self, request: Request, views: Sequence[View], now_s: float) -> Decision:
        return Send(self._replica)

    def replica_of(self, requests: Any, index: int) -> int:
        return self._replica


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROUTERS, "always", f"{__name__}:Always")


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("oblivious", [False, True])
def test_the_scenario_reads_its_options_the_simulation_asks_it_and_the_schema_shows_it(
    oblivious: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Always, "oblivious", oblivious)
    given = scenario(cluster={"replicas": 3, "router": {"kind": "always", "replica": 2}})
    log = simulate(build_inputs(given), check=True)
    assert log.requests.replica.tolist() == [2] * 60
    options = json_schema()["$defs"]["AlwaysOptions"]["properties"]
    assert options["kind"]["description"] == "always: One replica does all the work."
    assert set(options) == {"kind", "replica"}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("router", "engine", "message"),
    [
        ({"kind": "always", "replica": -1}, "vllm", "cluster.router.replica: -1: must be at least 0"),
        ({"kind": "always", "scrape_s": 1.0}, "vllm", "cluster.router.scrape_s: 1.0: unknown key"),
        ({"kind": "always"}, "lorax", "only with engine.kind: vllm or sglang; lorax minds being alone"),
        ({"kind": "never"}, "vllm", "round-robin, least-requests, lora-affinity, punica or always"),
    ],
)
def test_a_routers_options_are_checked_like_any_other_key(router: dict[str, Any], engine: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scenario(engine={"kind": engine}, cluster={"replicas": 3, "router": router})
    assert message in str(caught.value)
