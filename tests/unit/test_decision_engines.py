"""Changes that are tried on each kind of engine: keys of its own, promising ones first."""

from __future__ import annotations

from typing import Any

import pytest

from simlora.plan.candidates import candidates, value_of
from simlora.plan.decision import decide
from simlora.report.decision import change_label
from simlora.results.shares import CATEGORIES
from simlora.results.summary import summarize
from simlora.scenario.engines import ENGINES, engine_config
from simlora.scenario.load import changed, scenario_from_dict
from simlora.scenario.root import Scenario
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate

KINDS = tuple(ENGINES)


def scenario(kind: str, **sections: Any) -> Scenario:
    engine = {"kind": kind, **sections.pop("engine", {})}
    adapters = {"count": 40, "ranks": 16, **sections.pop("adapters", {})}
    return scenario_from_dict(
        {"model": "llama-2-7b", "engine": engine, "adapters": adapters, "slo": {"attainment": 0.99}, **sections}
    )


def lost(attainment: float = 1.0, **shares: float) -> dict[str, Any]:
    """What candidates look at in a summary."""
    every = {name: shares.get(name, 0.0) for name in CATEGORIES}
    return {"bottleneck": {"shares": every}, "slo": {"attainment": attainment}}


def keys(item: Scenario, attainment: float = 1.0, **shares: float) -> list[str]:
    """Keys of the engine that are proposed, in order."""
    found = [key for changes in candidates(item, lost(attainment, **shares)) for key in changes]
    return [key.removeprefix("engine.") for key in found if key.startswith("engine.")]


@pytest.mark.parametrize("kind", KINDS)
def test_every_proposal_is_a_key_of_the_engine_and_is_allowed(kind: str) -> None:
    """Whatever was lost, no other engine's key is proposed, and the changed scenario loads."""
    item = scenario(kind)
    for share in CATEGORIES:
        for changes in candidates(item, lost(0.5, **{share: 1.0})):
            for key in changes:
                assert key == "cluster.replicas" or key.split(".")[1] in engine_config(kind).model_fields
            after = changed(item, changes)
            assert any(value_of(after, key) != value_of(item, key) for key in changes)


@pytest.mark.parametrize(
    ("kind", "share", "expected"),
    [
        ("vllm", "queue_slots", ["max_loras", "max_cpu_loras"]),
        ("vllm", "queue_seqs", ["max_num_seqs"]),
        ("slora", "queue_seqs", ["running_max_req_size"]),
        ("slora", "queue_kv", ["gpu_memory_utilization"]),
        ("lorax", "queue_slots", ["adapter_memory_fraction", "adapter_cycle_time_s"]),
        ("lorax", "load", ["adapter_memory_fraction", "host_cache"]),
        ("lorax", "queue_seqs", ["max_concurrent_requests"]),
        ("sglang", "queue_slots", ["max_loras_per_batch"]),
        ("sglang", "queue_seqs", ["max_running_requests"]),
        ("sglang", "queue_kv", ["mem_fraction_static", "max_loras_per_batch"]),
        ("punica", "queue_seqs", ["max_batch_size"]),
        ("punica", "load", ["max_loras"]),
        ("grouped", "queue_slots", ["switch_after"]),
        ("sequential", "load", ["max_loras"]),
        ("merged-swap", "queue_slots", ["switch_after"]),
    ],
)
def test_what_was_lost_decides_what_is_tried(kind: str, share: str, expected: list[str]) -> None:
    found = list(dict.fromkeys(keys(scenario(kind), **{share: 1.0})))
    assert found[: len(expected)] == expected


def test_settings_that_stand_in_the_way_are_proposed_away() -> None:
    assert keys(scenario("slora", engine={"max_total_token_num": 50_000}), queue_kv=1.0) == ["max_total_token_num"]
    alone = scenario("slora", engine={"unified_memory": False, "pool_size_lora": 2000})
    assert keys(alone, queue_slots=1.0)[:2] == ["unified_memory", "pool_size_lora"]
    blocking = scenario("slora", engine={"adapter_loading": {"overlap": False}})
    assert "adapter_loading.overlap" in keys(blocking, load=1.0)
    few = scenario("lorax", engine={"max_active_adapters": 4})
    assert "max_active_adapters" in keys(few, queue_slots=1.0)
    loaded = scenario("sglang", engine={"max_loras_per_batch": 4, "max_loaded_loras": 6})
    assert "max_loaded_loras" in keys(loaded, queue_slots=1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_without_adapters_no_adapter_setting_is_tried(kind: str) -> None:
    item = scenario(kind, adapters={"count": 0})
    assert keys(item, queue_slots=0.4, load=0.3, decode_lora=0.3) == []


def test_dedicated_deployments_may_sleep_and_nothing_else() -> None:
    item = scenario("vllm", cluster={"topology": "dedicated"}, engine={"max_loras": 4})
    assert list(candidates(item, lost(0.5, queue_kv=1.0))) == [{"cluster.dedicated.scale_to_zero_s": 300}]
    asleep = changed(item, {"cluster.dedicated.scale_to_zero_s": 60})
    assert list(candidates(asleep, lost(0.5, queue_kv=1.0))) == []


def test_the_decision_of_dedicated_deployments_replays_dedicated_deployments() -> None:
    item = scenario(
        "vllm",
        engine={"max_loras": 4},
        adapters={"count": 4},
        workload={"arrivals": {"kind": "poisson", "rate_rps": 0.01}, "num_requests": 10},
        cluster={"topology": "dedicated", "dedicated": {"cold_start_s": 0.1}},
    )
    inputs = build_inputs(item)
    summary = summarize(simulate(inputs))
    decision = decide(inputs, summary)
    assert decision.baseline.usd_per_hour == summary["cost"]["usd_per_hour"] == 4 * item.cost.gpu_hour_usd
    assert decision.best is not None and change_label(decision.best) == "scale_to_zero_s off -> 300"
    assert decision.best.outcome is not None
    assert decision.best.outcome.usd_per_hour < 0.95 * decision.baseline.usd_per_hour
