"""One deployment per tenant: who serves whom, cold starts, and what is paid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.latency_cases import decodes, make_latency

from simlora.cluster.dedicated import Dedicated
from simlora.cluster.router import Hold, Send
from simlora.engines.fit import build_ledger
from simlora.engines.request import Request
from simlora.engines.view import View
from simlora.errors import ConfigError
from simlora.results.summary import summarize
from simlora.scenario.load import scenario_from_dict
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate

NEVER_S = float("inf")


def view(idle_s: float, outstanding: int = 0) -> View:
    return View(outstanding, 0, 0.0, frozenset(), 0, outstanding, idle_s)


def request(index: int) -> Request:
    return Request(index, 0.0, 0, 0, 10, 10)


OWN = {"topology": "dedicated"}


def data(cluster: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": "llama-3.1-8b",
        "gpu": "h200",
        "engine": {"max_loras": 4, "max_num_seqs": 64},
        "adapters": {"count": 6, "base_fraction": 0.1},
        "workload": {"arrivals": {"kind": "poisson", "rate_rps": 0.5}, "duration_s": 400},
        "cluster": cluster,
    }


def scenario(**cluster: Any) -> Any:
    return scenario_from_dict(data({**OWN, **cluster}))


def test_requests_go_to_their_tenant() -> None:
    router = Dedicated([2, 0, 2], 3, NEVER_S, 30.0)
    views = [view(0.0)] * 3
    assert [router.choose(request(i), views, 1.0) for i in range(3)] == [Send(2), Send(0), Send(2)]


def test_a_deployment_sleeps_and_starts_again() -> None:
    router = Dedicated([0] * 4, 1, scale_to_zero_s=60.0, cold_start_s=30.0)
    assert router.choose(request(0), [view(5.0)], 5.0) == Hold(35.0)  # all sleep at first
    assert router.choose(request(1), [view(6.0)], 6.0) == Hold(35.0)
    assert router.choose(request(0), [view(35.0)], 35.0) == Send(0)
    assert router.choose(request(2), [view(60.0)], 100.0) == Send(0)  # idle for 60 s: still up
    assert router.choose(request(3), [view(61.0)], 200.0) == Hold(230.0)
    assert router.starts(0) == 2


def test_paid_time() -> None:
    router = Dedicated([0] * 4, 1, scale_to_zero_s=60.0, cold_start_s=30.0)
    assert router.paid_s(0, 100.0, 100.0) == 0.0
    router.choose(request(0), [view(0.0)], 10.0)
    assert router.paid_s(0, 0.0, 50.0) == 40.0  # from asking for GPUs on
    assert router.paid_s(0, 100.0, 200.0) == 190.0 - 40.0  # the last 40 s it slept
    router.choose(request(1), [view(100.0)], 200.0)
    assert router.paid_s(0, 0.0, 260.0) == 150.0 + 60.0


def test_who_came_at_the_end_of_a_cold_start_does_not_overtake() -> None:
    """The second request arrives at the very instant at which the deployment is up for the first."""
    config = data({"topology": "dedicated", "dedicated": {"scale_to_zero_s": 0.0, "cold_start_s": 1.0}})
    lengths = {"prompt_tokens": {"kind": "fixed", "value": 30}, "output_tokens": {"kind": "fixed", "value": 60}}
    arrivals = {"kind": "deterministic", "rate_rps": 1}
    config["workload"] = {"arrivals": arrivals, "num_requests": 2, **lengths}
    config["engine"] = {"max_num_seqs": 1, "max_model_len": 1024}
    config["adapters"] = {"count": 1}
    first, second = simulate(build_inputs(scenario_from_dict(config))).requests.admitted_s
    assert first < second


def test_always_up_pays_its_start_too() -> None:
    router = Dedicated([0], 1, NEVER_S, 30.0)
    assert router.paid_s(0, 70.0, 100.0) == 130.0


def test_simulation() -> None:
    inputs = build_inputs(scenario())
    log = simulate(inputs, check=True)
    summary = summarize(log)
    used = np.unique(log.requests.adapter)
    assert len(log.replicas) == 7 and summary["cost"]["gpus"] == 7 and set(used) <= set(range(7)) and len(used) > 4
    for replica, adapter in enumerate([1, 2, 3, 4, 5, 6, 0]):
        assert np.all(log.requests.replica[log.requests.adapter == adapter] == replica)
    assert summary["adapters"]["loads"] == 0 and summary["bottleneck"]["shares"]["decode_lora"] == 0
    assert summary["cost"]["gpus_mean"] == 7


def test_scale_to_zero_costs_less_and_starts_late() -> None:
    up, asleep = (
        summarize(simulate(build_inputs(scenario(dedicated=config)), check=True))
        for config in (None, {"scale_to_zero_s": 5.0, "cold_start_s": 20.0})
    )
    assert asleep["cost"]["usd"] < up["cost"]["usd"] and asleep["cost"]["gpus_mean"] < 7
    assert asleep["ttft_s"]["max"] > 20.0 > up["ttft_s"]["max"]


def test_a_cold_start_of_ones_own_changes_no_hourly_price() -> None:
    """Deployments that never sleep are paid for all the time, however long they took to start."""
    for cold_start_s in (0.0, 0.1, 500.0):
        cost = summarize(simulate(build_inputs(scenario(dedicated={"cold_start_s": cold_start_s}))))["cost"]
        assert cost["gpus_mean"] == pytest.approx(7) and cost["usd_per_hour"] == pytest.approx(7 * 3.99)


def test_coalesced_equals_step_by_step() -> None:
    built = [build_inputs(scenario(dedicated={"scale_to_zero_s": 3.0, "cold_start_s": 2.0})) for _ in range(2)]
    fast, slow = simulate(built[0]), simulate(built[1], coalesce=False)
    for name in ("admitted_s", "first_token_s", "last_token_s"):
        assert np.array_equal(getattr(fast.requests, name), getattr(slow.requests, name), equal_nan=True)
    assert [r.paid_s for r in fast.replicas] == [r.paid_s for r in slow.replicas]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"cluster": {"topology": "dedicated", "replicas": 2}}, "cluster.replicas"),
        ({"cluster": {"topology": "dedicated", "router": {"kind": "least-requests"}}}, "cluster.router"),
        ({"cluster": {"dedicated": {"scale_to_zero_s": 5}}}, "cluster.dedicated"),
        ({"cluster": {"topology": "dedicated"}, "engine": {"kind": "slora"}}, "cluster.topology"),
        ({"cluster": {"topology": "dedicated"}, "engine": {"enable_lora": False}}, "cluster.topology"),
    ],
)
def test_wrong_topologies(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scenario_from_dict({"model": "llama-3.1-8b", **changes})
    assert caught.value.key == key


def test_a_deployment_keeps_no_slots_and_runs_no_lora_kernels() -> None:
    """The adapter is merged: the KV cache gets the slots' memory, and steps are those of the base model."""
    shared, own = (build_inputs(scenario_from_dict(item)) for item in (data({"replicas": 1}), data(OWN)))
    slots = build_ledger(shared.scenario).adapter_area_bytes
    assert build_ledger(own.scenario).adapter_area_bytes == 0 < slots
    assert own.ledger.kv_bytes > shared.ledger.kv_bytes + 0.9 * slots
    timing, bare = own.latency.price(decodes(32)), make_latency(gpu="h200-141gb", enable_lora=False).price(decodes(32))
    assert timing.lora_s == 0.0 and timing.gpu_s == bare.gpu_s
    assert np.all(own.requests.adapter >= 0) and not own.scenario.engine.enable_lora


def test_each_deployment_has_all_gpus_of_a_replica() -> None:
    """Seven deployments of 2 x 2 GPUs: tensor parallelism and stages are the engine's own."""
    item = data(OWN)
    item["engine"] |= {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    item["workload"]["duration_s"] = 60
    log = simulate(build_inputs(scenario_from_dict(item)), check=True)
    summary = summarize(log)
    assert (
        summary["cost"]["gpus"] == 7 * 4
        and len(log.replicas) == 7
        and summary["bottleneck"]["shares"]["collective"] > 0
    )
