"""What the summary must know of each kind of engine: its names for limits, and what of an adapter it computes."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from simlora.latency.profiles import PROFILES
from simlora.memory.ledger import NO_LIMIT

PADDING_KERNELS = ("padded", "padded-bmm")
"""LoRA kernels that compute every adapter of a step at one rank; the others compute each at its own."""
SLOTTED_ENGINES = ("vllm", "sglang")
"""Every adapter on the GPU takes a slot of engine.max_lora_rank."""
BUFFERED_ENGINES = ("punica", "grouped", "sequential", "merged-swap")
"""Every adapter on the GPU takes a buffer of the largest rank of all adapters."""
SEATS: MappingProxyType[str, str] = MappingProxyType(
    {
        "slora": "running_max_req_size",
        "lorax": "max_concurrent_requests",
        "punica": "max_batch_size",
        "sglang": "max_running_requests",
    }
)
"""Key of the limit that vLLM calls max_num_seqs, in engines with another name for it."""
TOKEN_BUDGETS: MappingProxyType[str, str | None] = MappingProxyType(
    {
        "slora": "batch_max_tokens",
        "lorax": "max_batch_prefill_tokens",
        "punica": None,
        "sglang": "chunked_prefill_size",
    }
)
"""Key of the limit that vLLM calls max_num_batched_tokens, in engines with another name; None: no such limit. Decodes
count in it only in engines that keep vLLM's name."""
QUEUE_COUNTS_AS_SEATED = ("lorax",)
"""Waiting requests take a seat, too."""


LOADS_FIRST = ("lorax", "punica")
"""A request is admitted when its adapter is there, whatever the settings."""


def loads_before_admission(engine: Any) -> bool:
    """A request's load lies before its admission; False: in its first step."""
    loading = getattr(engine, "adapter_loading", None)
    return kind_of(engine) in LOADS_FIRST or bool(getattr(loading, "overlap", False))


def kind_of(engine: Any) -> str:
    """The engine's kind."""
    return str(getattr(engine, "kind", "vllm"))


def adapters_apart(engine: Any) -> bool:
    """Adapters are computed beside the base model: LoRA is on, and they are not merged into the weights."""
    return bool(getattr(engine, "enable_lora", True)) and kind_of(engine) != "merged-swap"


def served_modules(scenario: Any) -> tuple[str, ...] | None:
    """Modules of an adapter that the engine computes with; None where the scenario does not say."""
    own = PROFILES[kind_of(scenario.engine)].modules
    return own if own is not None else getattr(scenario, "adapter_modules", None)


def pads_ranks(engine: Any) -> bool:
    """The LoRA kernels compute every adapter of a step at one rank."""
    return adapters_apart(engine) and getattr(engine, "kernels", "padded") in PADDING_KERNELS


def slot_rank(scenario: Any) -> int:
    """The rank that a place for an adapter on the GPU is made for; 0 where an adapter takes what it needs."""
    kind = kind_of(scenario.engine)
    if kind in SLOTTED_ENGINES:
        return int(scenario.engine.max_lora_rank)
    if kind not in BUFFERED_ENGINES:
        return 0
    return max((rank for rank, count in scenario.adapters.rank_counts().items() if count > 0), default=0)


def slot_limit(slots: int) -> int | None:
    """Places for adapters on a GPU; None where only their bytes count."""
    return None if slots >= NO_LIMIT else slots
