"""The shapes that a campaign measures, from the full grid to a tiny one, and the models that they are of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simlora.errors import SimloraError
from simlora.scenario.model import ModelSpec, builtin_model

TINY_MODEL = ModelSpec(
    name="tiny",
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=256,
    tie_word_embeddings=False,
    max_position_embeddings=1024,
)


def model_named(name: str) -> ModelSpec:
    """A built-in model, or the tiny one of dry runs."""
    found = TINY_MODEL if name == TINY_MODEL.name else builtin_model(name)
    if found is None:
        raise SimloraError(f"calibrate: model {name!r} is not built in")
    return found


Point = Mapping[str, Any]

PADDED_TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Token counts that serving engines pad to and capture, thinned out."""
EAGER_TOKENS = (768, 1024, 1536, 2048, 4096, 8192)


@dataclass(frozen=True)
class LoraSet:
    """Adapters in slots: `ranks` are the own ranks, repeated over the slots."""

    model: str
    tp: int
    slots: int
    slot_rank: int
    ranks: tuple[int, ...]
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Grid:
    """Sizes of every part."""

    name: str
    models: tuple[tuple[str, tuple[int, ...]], ...]
    """(model, tensor-parallel sizes)."""
    tokens: tuple[int, ...]
    largest_70b_tokens: int
    decode_requests: tuple[int, ...]
    decode_contexts: tuple[int, ...]
    prefill_chunks: tuple[int, ...]
    prefill_starts: tuple[int, ...]
    attention_heads: tuple[tuple[str, int], ...]
    """(model, tp) whose heads attention is measured with."""
    lora_sets: tuple[LoraSet, ...]
    copy_bytes: tuple[int, ...]
    load_ranks: tuple[tuple[int, int], ...]
    """(adapter rank, slot rank)."""
    disk_ranks: tuple[int, ...]
    collective_bytes: tuple[int, ...]
    lora_families: tuple[str, ...] = ("vllm", "padded", "simlora", "sglang", "bgmv")
    launches: int = 256
    calls: int = 1_000_000


def points(*pairs: tuple[int, int], **more: Any) -> tuple[Point, ...]:
    """(tokens, distinct adapters) with equal shares."""
    return tuple({"tokens": tokens, "distinct": distinct, **more} for tokens, distinct in pairs)


_DECODE = points(
    (1, 1), (8, 1), (8, 8), (16, 4), (32, 1), (32, 8), (32, 32), (64, 32), (120, 32), (128, 1), (128, 8), (128, 32),
    (128, 128), (256, 8), (256, 32), (256, 128), (512, 8), (512, 32),
)  # fmt: skip
_PREFILL = points((1024, 4), (2048, 1), (2048, 8), (2048, 32))
_LONG = points((8192, 1), (8192, 8))
_MIXED = (
    {"tokens": 64, "distinct": 8, "base_share": 0.5},
    {"tokens": 128, "distinct": 32, "zipf": 1.0},
    {"tokens": 512, "distinct": 16, "zipf": 1.0},
)
_MIX = (8, 16, 32, 64)

FULL = Grid(
    name="full",
    models=(("llama-3.1-8b", (1, 2, 4, 8)), ("llama-3.1-70b", (4, 8, 2, 1))),
    tokens=PADDED_TOKENS + EAGER_TOKENS,
    largest_70b_tokens=4096,
    decode_requests=(1, 4, 16, 32, 64, 128, 256),
    decode_contexts=(64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    prefill_chunks=(64, 128, 256, 512, 1024, 2048, 4096, 8192),
    prefill_starts=(0, 2048, 8192, 32768),
    attention_heads=(("llama-3.1-8b", 1), ("llama-3.1-8b", 4), ("llama-3.1-70b", 1), ("llama-3.1-70b", 4)),
    lora_sets=(
        LoraSet("llama-3.1-8b", 1, 32, 16, (16,), _DECODE + _PREFILL + _LONG + _MIXED),
        LoraSet("llama-3.1-8b", 1, 32, 64, _MIX, _DECODE + _PREFILL + _MIXED),
        LoraSet("llama-3.1-8b", 1, 8, 64, (64,), _DECODE + _PREFILL + _LONG),
        LoraSet("llama-3.1-8b", 1, 128, 16, (16,), _DECODE + _PREFILL + _MIXED),
        LoraSet("llama-3.1-8b", 1, 8, 16, (16,), _DECODE + _PREFILL + _MIXED[:1]),
        LoraSet("llama-3.1-8b", 4, 32, 16, (16,), _DECODE + _PREFILL),
        LoraSet("llama-3.1-8b", 1, 16, 128, (128,), _DECODE + _PREFILL[:2]),
        LoraSet("llama-3.1-8b", 1, 32, 64, (8,), _DECODE[4:12]),
        LoraSet("llama-3.1-70b", 4, 16, 32, (16, 32), _DECODE + _PREFILL[:3]),
    ),
    copy_bytes=tuple(2**power for power in (*range(12, 30, 2), 29)),
    load_ranks=((16, 16), (8, 16), (64, 64), (16, 64), (8, 64), (128, 128)),
    disk_ranks=(8, 16, 64),
    collective_bytes=tuple(2**power for power in range(10, 29)),
)

_QUICK_TOKENS = (1, 8, 32, 64, 128, 256, 512, 1024, 2048)
_QUICK_DECODE = points((1, 1), (8, 8), (32, 1), (32, 8), (32, 32), (128, 8), (128, 32), (256, 32), (512, 8), (2048, 8))

QUICK = Grid(
    name="quick",
    models=(("llama-3.1-8b", (1, 4)), ("llama-3.1-70b", (4,))),
    tokens=_QUICK_TOKENS,
    largest_70b_tokens=2048,
    decode_requests=(1, 8, 32, 128),
    decode_contexts=(256, 1024, 4096, 16384),
    prefill_chunks=(128, 512, 2048, 8192),
    prefill_starts=(0, 8192),
    attention_heads=(("llama-3.1-8b", 1), ("llama-3.1-70b", 4)),
    lora_sets=(
        LoraSet("llama-3.1-8b", 1, 32, 16, (16,), _QUICK_DECODE),
        LoraSet("llama-3.1-8b", 1, 8, 64, (64,), _QUICK_DECODE),
        LoraSet("llama-3.1-8b", 1, 128, 16, (16,), _QUICK_DECODE),
    ),
    copy_bytes=tuple(2**power for power in (16, 20, 24, 26, 28)),
    load_ranks=((16, 16), (16, 64), (64, 64)),
    disk_ranks=(16, 64),
    collective_bytes=tuple(2**power for power in range(10, 29, 3)),
    lora_families=("vllm", "padded", "simlora"),
    calls=200_000,
)

TINY = Grid(
    name="tiny",
    models=(("tiny", (1, 2)),),
    tokens=(1, 4, 600),
    largest_70b_tokens=8,
    decode_requests=(1, 2),
    decode_contexts=(16, 32),
    prefill_chunks=(4, 8),
    prefill_starts=(0, 8),
    attention_heads=(("tiny", 1), ("tiny", 2)),
    lora_sets=(LoraSet("tiny", 1, 2, 16, (8, 16), points((1, 1)) + points((4, 2), base_share=0.5)),),
    copy_bytes=(2**10, 2**12),
    load_ranks=((8, 16), (16, 16)),
    disk_ranks=(8,),
    collective_bytes=(2**10, 2**12),
    lora_families=("vllm", "simlora", "sglang"),
    launches=4,
    calls=1000,
)
"""For tests and dry runs on a CPU."""

GRIDS = {grid.name: grid for grid in (FULL, QUICK, TINY)}
