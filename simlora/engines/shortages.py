"""Which ledger belongs to which kind of engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from simlora.engines.lorax.memory import lorax_ledger
from simlora.engines.sglang.memory import sglang_ledger
from simlora.engines.slora.memory import slora_ledger
from simlora.errors import ConfigError
from simlora.memory.buffers import naive_ledger
from simlora.memory.inputs import MemoryInputs
from simlora.memory.ledger import CONTEXT as CUDA
from simlora.memory.ledger import SLACK, AdapterNeed, EngineLedger
from simlora.memory.shortage import (
    ADAPTERS,
    CONTEXT,
    OVERRIDE,
    PREFILL,
    SLOTS,
    UTILIZATION,
    WEIGHTS,
    Shortage,
    gb,
    largest_that,
)
from simlora.scenario.load import changed

if TYPE_CHECKING:
    from simlora.scenario.root import Scenario


BUILDERS: MappingProxyType[str, Callable[[MemoryInputs], EngineLedger]] = MappingProxyType(
    {
        "slora": slora_ledger,
        "lorax": lorax_ledger,
        "sglang": sglang_ledger,
        "punica": naive_ledger,
        "grouped": naive_ledger,
        "sequential": naive_ledger,
        "merged-swap": naive_ledger,
    }
)


def engine_ledger(inputs: MemoryInputs) -> EngineLedger:
    """The ledger, whether or not it fits. vLLM has its own: memory/ledger.py."""
    return BUILDERS[inputs.engine.kind](inputs)


def variant(scenario: Scenario, changes: Mapping[str, Any]) -> EngineLedger | None:
    """The ledger with other values, defaults resolved anew; None if the scenario is refused."""
    try:
        return engine_ledger(MemoryInputs.of(changed(scenario, changes)))
    except ConfigError:
        return None


def fits_with(scenario: Scenario, changes: Mapping[str, Any]) -> bool:
    """Whether the scenario would start with other values."""
    ledger = variant(scenario, changes)
    return ledger is not None and ledger.fits


def kv_state(ledger: EngineLedger) -> str:
    """What there is for the KV cache, for messages."""
    if ledger.available_bytes <= 0:
        return f"{gb(-ledger.available_bytes)} are missing before the KV cache gets anything"
    if ledger.headroom_bytes < 0:
        return f"the GPU's {gb(ledger.total_bytes)} lack {gb(-ledger.headroom_bytes)}"
    return (
        f"the KV cache holds {ledger.usable_kv_tokens} tokens, fewer than the {ledger.needed_kv_tokens} that it needs"
    )


_FRACTION, _ROWS = "engine.adapter_memory_fraction", "engine.pool_size_lora"


def adapter_shortage(scenario: Scenario, ledger: EngineLedger) -> Shortage | None:
    """The largest adapter cannot be loaded: the smallest area, or the largest rank, that would do."""
    engine: Any = scenario.engine
    need = ledger.adapter_need
    if need is None or ledger.adapters_fit:
        return None
    rank = _largest_rank(scenario)
    if engine.kind == "lorax":
        least = _least_thousandths(ledger) / 1000
        if least < 1 and fits_with(scenario, {_FRACTION: least}):
            text = (
                f"adapter memory binds: a file of rank {rank} has {gb(need.needed)}, and {gb(need.limit)} are kept for "
                f"adapters; smallest adapter_memory_fraction that holds it: {least:g}"
            )
            return Shortage(ADAPTERS, _FRACTION, engine.adapter_memory_fraction, least, text)
    elif not engine.unified_memory:
        rows = need.needed * ledger.kv_unit_tokens
        if fits_with(scenario, {_ROWS: rows}):
            text = (
                f"adapter memory binds: an adapter of rank {rank} takes {need.needed} {need.unit}, and with "
                f"unified_memory: false adapters get {need.limit}; smallest pool_size_lora that holds it: {rows}"
            )
            return Shortage(ADAPTERS, _ROWS, engine.pool_size_lora, rows, text)
    largest = largest_that(1, rank - 1, lambda smaller: fits_with(scenario, {"adapters.ranks": {smaller: 1.0}}))
    return None if largest is None else _rank(need, rank, largest)


def unholdable_rank(scenario: Scenario, ledger: EngineLedger) -> Shortage | None:
    """The largest adapter cannot be loaded, and no single change mends that."""
    need = ledger.adapter_need
    return None if need is None or ledger.adapters_fit else _rank(need, _largest_rank(scenario), None)


def fraction_shortage(scenario: Scenario, ledger: EngineLedger) -> Shortage | None:
    """LoRAX: a smaller share for adapters leaves more to the KV cache."""
    engine: Any = scenario.engine
    if engine.kind != "lorax" or engine.preloaded_adapter_ids:
        return None
    value = engine.adapter_memory_fraction
    high = int(value * 1000 - 1e-9)
    best = largest_that(_least_thousandths(ledger), high, lambda part: fits_with(scenario, {_FRACTION: part / 1000}))
    if best is None:
        return None
    text = (
        f"adapter memory binds: {gb(ledger.adapter_area_bytes)} are kept for adapters on each GPU; "
        f"{kv_state(ledger)}; largest adapter_memory_fraction that fits: {best / 1000:g}"
    )
    return Shortage(ADAPTERS, _FRACTION, value, best / 1000, text)


def _rank(need: AdapterNeed, rank: int, largest: int | None) -> Shortage:
    hint = f"; largest rank that fits: {largest}" if largest else ""
    text = f"adapter memory binds: one adapter takes {need.needed} {need.unit}, and all can get {need.limit}{hint}"
    return Shortage(ADAPTERS, "adapters.ranks", rank, largest, text)


def _largest_rank(scenario: Scenario) -> int:
    return max(rank for rank, count in scenario.adapters.rank_counts().items() if count > 0)


def _least_thousandths(ledger: EngineLedger) -> int:
    """Share of the GPU that holds the largest file, in thousandths, rounded up."""
    return 0 if ledger.adapter_need is None else -(-1000 * ledger.adapter_need.needed // ledger.total_bytes)


_MAX_TP = 64


class _Lever(NamedTuple):
    """A setting that takes memory from the KV cache: lowering it may help."""

    term: str
    key: str


_BUFFERS = _Lever(SLOTS, "max_loras")
_STEP = _Lever(PREFILL, "max_num_batched_tokens")
LEVERS = {
    "slora": (_Lever(ADAPTERS, "pool_size_lora"), _Lever(PREFILL, "batch_max_tokens")),
    "lorax": (_Lever(PREFILL, "max_batch_prefill_tokens"),),
    "sglang": (_Lever(SLOTS, "max_loras_per_batch"),),
    "punica": (_BUFFERS,),
    "grouped": (_BUFFERS, _STEP),
    "sequential": (_BUFFERS, _STEP),
    "merged-swap": (_STEP,),
}
_OVERRIDES = {"slora": "max_total_token_num", "lorax": "max_batch_total_tokens"}


def engine_shortage(scenario: Scenario) -> Shortage | None:
    """What keeps the engine from starting; None if it starts."""
    ledger = engine_ledger(MemoryInputs.of(scenario))
    if ledger.fits:
        return None
    return next(problem for problem in _reasons(scenario, ledger) if problem is not None)


def _reasons(scenario: Scenario, ledger: EngineLedger) -> Iterator[Shortage | None]:
    """First what one value can mend, in order of how directly the user asked for it; then what is wrong in any case."""
    if ledger.budget_bytes > ledger.total_bytes - _beside_bytes(ledger):
        yield _static_share(scenario, ledger)
    yield _override(scenario, ledger)
    yield adapter_shortage(scenario, ledger)
    for lever in LEVERS[scenario.engine.kind]:
        yield _lowered(scenario, ledger, lever)
    yield fraction_shortage(scenario, ledger)
    yield _context(scenario, ledger)
    if ledger.kv_units > 0 and ledger.headroom_bytes >= 0:
        yield unholdable_rank(scenario, ledger)
    yield _weights(scenario, ledger)


def _lowered(scenario: Scenario, ledger: EngineLedger, lever: _Lever) -> Shortage | None:
    value = getattr(scenario.engine, lever.key)
    low = _lowest(scenario, lever)
    largest = largest_that(low, value - 1, lambda smaller: fits_with(scenario, {f"engine.{lever.key}": smaller}))
    if largest is None:
        return None
    what = ledger.activation_bytes if lever.term == PREFILL else ledger.adapter_area_bytes
    verb = "bind" if lever.term == SLOTS else "binds"
    text = (
        f"{lever.term} {verb}: {lever.key} {value} takes {gb(what)} on each GPU beside {gb(ledger.weight_bytes)} of "
        f"weights, and the engine may use {gb(ledger.budget_bytes)}; {kv_state(ledger)}; "
        f"largest {lever.key} that fits: {largest}"
    )
    return Shortage(lever.term, f"engine.{lever.key}", value, largest, text)


def _lowest(scenario: Scenario, lever: _Lever) -> int:
    """The lowest value that the engine takes: prompts are not split, and pinned adapters leave a slot free."""
    if lever.term == PREFILL:
        return scenario.engine.max_model_len
    return len(scenario.adapters.pinned) + 1 if lever.term == SLOTS else 0


def _static_share(scenario: Scenario, ledger: EngineLedger) -> Shortage | None:
    """SGLang: its static share leaves too little for the rest."""
    beside = _beside_bytes(ledger)
    most = int(1000 * (ledger.total_bytes - beside) / (ledger.total_bytes - ledger.role_bytes(CUDA))) / 1000
    if most <= 0:
        return None
    text = (
        f"the static share and {gb(beside)} of activations, graphs and CUDA context exceed the GPU's "
        f"{gb(ledger.total_bytes)}; largest that fits: {most:g}"
    )
    value = scenario.engine.gpu_memory_utilization
    return Shortage(UTILIZATION, "engine.mem_fraction_static", value, most, text)


def _beside_bytes(ledger: EngineLedger) -> int:
    """What the budget does not pay for and the engine needs."""
    return sum(part.bytes for part in ledger.parts if not part.in_budget and part.role != SLACK)


def _override(scenario: Scenario, ledger: EngineLedger) -> Shortage | None:
    """A number of KV tokens that the user gave, where leaving it out helps."""
    key, engine = _OVERRIDES.get(scenario.engine.kind), scenario.engine
    value = None if key is None else getattr(engine, key)
    path = f"engine.{key}"
    free = None if value is None else variant(scenario, {path: None})
    if free is None or not free.fits:
        return None
    least = max(_least_pool(ledger), engine.max_model_len)
    unit = ledger.kv_unit_tokens
    most = largest_that(
        -(-least // unit), ledger.total_bytes // ledger.kv_unit_bytes, lambda n: fits_with(scenario, {path: n * unit})
    )
    largest = free.usable_kv_tokens if most is None else most * unit
    text = (
        f"between {least} (max_model_len {engine.max_model_len}, or the largest adapter) and {largest} (what the GPU "
        f"holds); null takes the {free.usable_kv_tokens} that fit the engine's share"
    )
    return Shortage(OVERRIDE, path, value, largest, text)


def _least_pool(ledger: EngineLedger) -> int:
    """Tokens of a shared pool that is larger than the largest adapter."""
    if ledger.adapter_need is None or not ledger.adapter_room.shared:
        return 0
    return (ledger.adapter_need.needed + 1) * ledger.kv_unit_tokens


def _context(scenario: Scenario, ledger: EngineLedger) -> Shortage | None:
    """Prompts need not be that long; a prefill that is sized for the longest one shrinks with it."""
    value = scenario.engine.max_model_len
    largest = largest_that(1, value - 1, lambda length: fits_with(scenario, {"engine.max_model_len": length}))
    if largest is None:
        return None
    text = f"context length binds: {kv_state(ledger)}; largest max_model_len that fits: {largest}"
    return Shortage(CONTEXT, "engine.max_model_len", value, largest, text)


def _weights(scenario: Scenario, ledger: EngineLedger) -> Shortage:
    engine: Any = scenario.engine
    one_gpu = engine.kind == "punica" or getattr(engine, "artifact", False)
    degree = 2 * engine.tensor_parallel_size
    while degree <= _MAX_TP and not fits_with(scenario, {"engine.tensor_parallel_size": degree}):
        degree *= 2
    enough = degree if degree <= _MAX_TP else None
    hint = f"smallest tensor_parallel_size that fits: {enough}" if enough else "no tensor_parallel_size fits"
    if one_gpu:
        hint = f"{engine.kind} runs on one GPU: a larger GPU or a smaller model"
    text = (
        f"weights bind: {gb(ledger.weight_bytes)} on each GPU and {gb(ledger.activation_bytes)} of activations, and "
        f"the engine may use {gb(ledger.budget_bytes)}; {hint}"
    )
    return Shortage(WEIGHTS, "engine.tensor_parallel_size", engine.tensor_parallel_size, enough, text)
