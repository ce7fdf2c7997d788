"""Rules that hold between keys. Each raises one WrongValueError that names the keys and what is allowed."""

from __future__ import annotations

from typing import Any

from simlora.scenario.adapters import AdaptersConfig, ClassPopularity, ExplicitPopularity
from simlora.scenario.base import WrongValueError
from simlora.scenario.cluster import ClusterConfig, RouterClass, router_class
from simlora.scenario.sections import Sections
from simlora.scenario.workload import FlashCrowdArrivals, peak_rate_rps

UNBUILT_KEYS = (
    "cluster.placement",
    "cluster.autoscaler",
    "cluster.faults",
    "adapters.priority",
)
"""Keys that may only be absent or empty (null, [], {})."""


def drop_unbuilt(data: dict[Any, Any]) -> dict[Any, Any]:
    """A copy of a scenario's raw mapping without the empty unbuilt keys.

    Raises:
        WrongValueError: a feature is asked for that is not built.
    """
    for path in UNBUILT_KEYS:
        section, key = path.split(".")
        values = data.get(section)
        if not isinstance(values, dict) or values.get(key) is None:
            continue
        if values[key] not in ([], {}, ()):
            raise WrongValueError(path, values[key], "not built yet: leave it out or empty")
    return {name: _without_keys(name, values) for name, values in data.items()}


def _without_keys(section: Any, values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    return {key: value for key, value in values.items() if f"{section}.{key}" not in UNBUILT_KEYS}


MAX_REQUESTS = 100_000_000
"""Most requests of one run: what fits a laptop's memory as columns, with room to spare."""


def check_scenario(scenario: Sections) -> None:
    """All rules, the most basic first.

    Raises:
        WrongValueError: the first rule that does not hold.
    """
    _check_parallelism(scenario)
    _check_workload(scenario)
    if scenario.engine.enable_lora:
        _check_popularity(scenario.adapters)
        _check_pinned(scenario.adapters)
    elif scenario.adapters.count:
        raise WrongValueError("adapters.count", scenario.adapters.count, "must be 0 with engine.enable_lora: false")
    scenario.engine.check(scenario)
    _check_topology(scenario)
    _check_router(scenario)


def _check_parallelism(scenario: Sections) -> None:
    engine, model = scenario.engine, scenario.model_spec
    if not divides_model(scenario, engine.tensor_parallel_size):
        possible = [str(size) for size in range(1, 65) if divides_model(scenario, size)]
        raise WrongValueError(
            "engine.tensor_parallel_size",
            engine.tensor_parallel_size,
            f"must divide the {model.num_attention_heads} attention heads and the MLP width of {model.name}, and "
            f"divide its {model.num_key_value_heads} KV heads or be a multiple of them: {', '.join(possible)}",
        )


def _check_router(scenario: Sections) -> None:
    router, kind = scenario.cluster.router.kind, scenario.engine.kind
    described: RouterClass = router_class(router)
    if described.engines and kind not in described.engines:
        allowed = f"only with engine.kind: {' or '.join(described.engines)}; {kind} {described.elsewhere}"
        raise WrongValueError("cluster.router.kind", router, allowed)


def divides_model(scenario: Sections, size: int) -> bool:
    """Whether the model can be sharded over that many GPUs; KV heads are replicated when there are fewer of them.

    Source: vLLM's `QKVParallelLinear` and `divide`.
    """
    model = scenario.model_spec
    kv_heads = model.num_key_value_heads
    width = model.moe_intermediate_size if model.is_moe else model.intermediate_size
    kv_fits = kv_heads % size == 0 or size % kv_heads == 0
    return model.num_attention_heads % size == 0 and kv_fits and width % size == 0


def _check_popularity(adapters: AdaptersConfig) -> None:
    popularity = adapters.popularity
    if isinstance(popularity, ExplicitPopularity) and len(popularity.rates_rps) != adapters.count:
        listed = len(popularity.rates_rps)
        raise WrongValueError(
            "adapters.count", adapters.count, f"adapters.popularity.rates_rps lists {listed} adapters"
        )
    if isinstance(popularity, ClassPopularity):
        listed = sum(item.count for item in popularity.classes)
        if listed != adapters.count:
            raise WrongValueError(
                "adapters.count", adapters.count, f"adapters.popularity.classes hold {listed} adapters"
            )


def _check_workload(scenario: Sections) -> None:
    workload = scenario.workload
    if workload.arrivals is None or workload.duration_s is None:
        return
    most = peak_rate_rps(workload.arrivals) * workload.duration_s
    if most > MAX_REQUESTS:
        allowed = f"up to {most:.3g} requests arrive in that time; at most {MAX_REQUESTS:,} can be simulated"
        raise WrongValueError("workload.duration_s", workload.duration_s, allowed)
    if isinstance(workload.arrivals, FlashCrowdArrivals) and workload.arrivals.start_s >= workload.duration_s:
        allowed = f"must be below workload.duration_s ({workload.duration_s:g})"
        raise WrongValueError("workload.arrivals.start_s", workload.arrivals.start_s, allowed)


def _check_pinned(adapters: AdaptersConfig) -> None:
    for adapter in adapters.pinned:
        if not 1 <= adapter <= adapters.count:
            allowed = f"must be an adapter id from 1 to adapters.count ({adapters.count})"
            raise WrongValueError("adapters.pinned", adapter, allowed)
    if len(set(adapters.pinned)) < len(adapters.pinned):
        raise WrongValueError("adapters.pinned", list(adapters.pinned), "an id is listed twice")


def _check_topology(scenario: Sections) -> None:
    cluster, plain = scenario.cluster, ClusterConfig()
    if cluster.topology == "shared":
        if cluster.dedicated != plain.dedicated:
            allowed = "only with cluster.topology: dedicated"
            raise WrongValueError("cluster.dedicated", cluster.dedicated.model_dump(exclude_none=True), allowed)
        return
    for key in ("replicas", "router"):
        if getattr(cluster, key) != getattr(plain, key):
            allowed = "left out with cluster.topology: dedicated, which has one replica per tenant and routes by tenant"
            raise WrongValueError(f"cluster.{key}", getattr(cluster, key), allowed)
    if scenario.engine.kind != "vllm" or not scenario.adapters.count:
        allowed = "shared, unless engine.kind is vllm and there are adapters to merge"
        raise WrongValueError("cluster.topology", cluster.topology, allowed)
