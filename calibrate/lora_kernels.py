"""LoRA kernels on adapters in the slots of every layer, as serving engines keep them.

A family turns weights into a step that can be timed: this project's kernels, and vLLM's and SGLang's own where they can
be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from simlora.kernels import apply_lora, bgmv, build_segments, from_tensors, padded, step_segments
from simlora.kernels.layout import GroupWeights
from simlora.kernels.segments import Segments

from simlora.latency.shapes import Linear, lora_linears
from simlora.scenario.lora_modules import ALL_LINEAR

from .bench import Bench
from .grid import LoraSet, model_named
from .session import SkipItemError

Slices = list[torch.Tensor]
Layer = list[tuple[Slices, Slices]]
"""Per linear: A of every slice [slots, 1, slot rank, inputs], B of every slice [slots, 1, outputs, slot rank]."""
BUFFERS_FACTOR = 2.6
"""Memory for slots in the engine's layout, a rank-major copy of B, and one family's own layout of both."""


@dataclass(frozen=True)
class LoraWeights:
    """Slots of all layers of a model on one rank of tp."""

    linears: tuple[Linear, ...]
    layers: list[Layer]
    ranks: tuple[int, ...]
    """Own rank of the adapter in each slot."""
    slot_rank: int

    @property
    def slots(self) -> int:
        return len(self.ranks)


def slot_weights(bench: Bench, chosen: LoraSet) -> LoraWeights:
    """Random adapters, every layer's distinct, so that no cache holds them from one layer to the next."""
    model = model_named(chosen.model)
    linears = lora_linears(model, chosen.tp, ALL_LINEAR)
    elements = sum(linear.inputs * len(linear.outputs) + sum(linear.outputs) for linear in linears)
    total = elements * chosen.slots * chosen.slot_rank * model.num_hidden_layers * bench.dtype.itemsize
    bench.require_memory(BUFFERS_FACTOR * total)
    layers = [[_slices(bench, linear, chosen) for linear in linears] for _ in range(model.num_hidden_layers)]
    ranks = tuple(chosen.ranks[slot % len(chosen.ranks)] for slot in range(chosen.slots))
    return LoraWeights(linears, layers, ranks, chosen.slot_rank)


def _slices(bench: Bench, linear: Linear, chosen: LoraSet) -> tuple[Slices, Slices]:
    slots, rank = chosen.slots, chosen.slot_rank
    a = [bench.normal(slots, 1, rank, linear.inputs, scale=0.02) for _ in linear.outputs]
    b = [bench.normal(slots, 1, outputs, rank, scale=0.02) for outputs in linear.outputs]
    return a, b


@dataclass(frozen=True)
class LoraStep:
    """Inputs and outputs of one step. mapping: slot of every token, -1 for the base model's, on the host."""

    mapping: torch.Tensor
    x: Mapping[int, torch.Tensor]
    """Input width -> activations."""
    y: Mapping[str, torch.Tensor]
    """Linear -> outputs of all slices, added into."""

    @property
    def tokens(self) -> int:
        return int(self.mapping.shape[0])

    @property
    def lora_tokens(self) -> int:
        return int((self.mapping >= 0).sum())

    @property
    def adapters(self) -> int:
        """Distinct adapters."""
        return int(self.mapping[self.mapping >= 0].unique().numel())


def lora_step(bench: Bench, weights: LoraWeights, point: Mapping[str, Any]) -> LoraStep:
    mapping = token_mapping(**point)
    tokens = int(mapping.shape[0])
    x = {width: bench.normal(tokens, width) for width in {linear.inputs for linear in weights.linears}}
    y = {linear.name: bench.normal(tokens, sum(linear.outputs)) for linear in weights.linears}
    return LoraStep(mapping, x, y)


def token_mapping(tokens: int, distinct: int, zipf: float = 0.0, base_share: float = 0.0) -> torch.Tensor:
    """int32 [tokens]: equal shares of `distinct` adapters, or Zipf shares; base tokens are -1. Shuffled, seeded."""
    generator = torch.Generator().manual_seed(1)
    base = round(base_share * tokens)
    adapters = torch.arange(tokens - base) % distinct
    if zipf > 0.0:
        shares = 1.0 / torch.arange(1, distinct + 1, dtype=torch.float64) ** zipf
        drawn = torch.multinomial(shares, tokens - base, replacement=True, generator=generator)
        adapters = torch.where(torch.arange(tokens - base) < distinct, adapters, drawn)
    both = torch.cat((adapters, torch.full((base,), -1)))
    return both[torch.randperm(tokens, generator=generator)].to(torch.int32)


MakeStep = Callable[[LoraStep], Callable[[], None]]
"""Given a step's inputs, what runs the LoRA part of all layers once."""


PADDED_ROWS = 16
MOST_BGMV_TOKENS = 512
"""One row of work a token: far too slow beyond decode steps."""


def simlora(bench: Bench, weights: LoraWeights) -> MakeStep:
    """apply_lora: each adapter at its own rank; decode kernels below 512 tokens, prefill kernels from there."""
    groups = _groups(weights, weights.ranks)

    def make(step: LoraStep) -> Callable[[], None]:
        segments = step_segments(step.mapping.to(bench.device), weights.slots)
        return _loop(groups, weights, step, segments, apply_lora)

    return make


def bgmv_rows(bench: Bench, weights: LoraWeights) -> MakeStep:
    """One row of work for each token."""
    groups = _groups(weights, weights.ranks)

    def make(step: LoraStep) -> Callable[[], None]:
        if step.tokens > MOST_BGMV_TOKENS:
            raise ValueError(f"bgmv is for up to {MOST_BGMV_TOKENS} tokens")
        return _loop(groups, weights, step, build_segments(step.mapping.to(bench.device), weights.slots, 1), bgmv)

    return make


def padded_slots(bench: Bench, weights: LoraWeights) -> MakeStep:
    """The algorithm that vLLM ships: every adapter at the slots' rank, a grid over all slots."""
    groups = _groups(weights, (weights.slot_rank,) * weights.slots)

    def make(step: LoraStep) -> Callable[[], None]:
        segments = build_segments(step.mapping.to(bench.device), weights.slots, PADDED_ROWS)
        return _loop(groups, weights, step, segments, padded)

    return make


def _groups(weights: LoraWeights, ranks: tuple[int, ...]) -> list[list[GroupWeights]]:
    """Pointer arrays: A where it lies, B in a rank-major copy."""
    return [[_group(a, b, ranks) for a, b in layer] for layer in weights.layers]


def _group(a: list[torch.Tensor], b: list[torch.Tensor], ranks: tuple[int, ...]) -> GroupWeights:
    rows = [list(part.squeeze(1).unbind(0)) for part in a]
    columns = [list(part.squeeze(1).transpose(1, 2).contiguous().unbind(0)) for part in b]
    return from_tensors(rows, columns, [1.0] * len(ranks), ranks)


def _loop(
    groups: list[list[GroupWeights]],
    weights: LoraWeights,
    step: LoraStep,
    segments: Segments,
    kernel: Callable[..., Any],
) -> Callable[[], None]:
    linears, x, y = weights.linears, step.x, step.y

    def run() -> None:
        for layer in groups:
            for linear, group in zip(linears, layer, strict=True):
                kernel(x[linear.inputs], group, segments, y[linear.name])

    return run


def vllm(bench: Bench, weights: LoraWeights) -> MakeStep:
    """lora_shrink and lora_expand with the tiles that vLLM picks; zeroing the shrink buffer is measured by itself."""
    try:
        from vllm.lora.ops.triton_ops import LoRAKernelMeta, lora_expand, lora_shrink
    except ImportError as missing:
        raise SkipItemError(f"vLLM's LoRA kernels cannot be imported ({missing})") from missing
    _forget_addresses()

    def make(step: LoraStep) -> Callable[[], None]:
        meta = LoRAKernelMeta.make(weights.slots, step.tokens, bench.device)
        meta.prepare_tensors(step.mapping.to(bench.device))
        arguments = _meta_arguments(meta, step.tokens)
        hidden = _shrink_buffers(bench, weights, step.tokens)

        def run() -> None:
            for layer in weights.layers:
                for linear, (a, b) in zip(weights.linears, layer, strict=True):
                    h = hidden[len(a)]
                    lora_shrink(step.x[linear.inputs], a, h, *arguments, 1.0)
                    lora_expand(h, b, step.y[linear.name], *arguments, 0, True)

        return run

    return make


def _forget_addresses() -> None:
    """vLLM keeps strides by weight address for good, and with them some weights: wrong and full after the next set."""
    from vllm.lora.ops.triton_ops import utils

    for name in ("_LORA_A_PTR_DICT", "_LORA_B_PTR_DICT"):
        getattr(utils, name, {}).clear()


def shrink_zeroing(bench: Bench, weights: LoraWeights) -> MakeStep:
    """The zero fills of one step: one buffer a linear and layer, before its shrink adds into it."""

    def make(step: LoraStep) -> Callable[[], None]:
        hidden = _shrink_buffers(bench, weights, step.tokens)

        def run() -> None:
            for layer in weights.layers:
                for a, _ in layer:
                    hidden[len(a)].zero_()

        return run

    return make


def _shrink_buffers(bench: Bench, weights: LoraWeights, tokens: int) -> dict[int, torch.Tensor]:
    """Slices -> float32 [slices, tokens, slot rank]."""
    counts = {len(linear.outputs) for linear in weights.linears}
    return {n: bench.empty(n, tokens, weights.slot_rank, dtype=torch.float32).zero_() for n in counts}


def _meta_arguments(meta: Any, tokens: int) -> tuple[Any, ...]:
    """Newer versions ask whether the grid is specialised on active adapters: no, its default."""
    try:
        return tuple(meta.meta_args(tokens, False))
    except TypeError:
        return tuple(meta.meta_args(tokens))


def sglang(bench: Bench, weights: LoraWeights) -> MakeStep:
    """Chunked SGMV: tokens sorted by adapter in chunks of 16, 32 or 128, each adapter at its own rank."""
    shrink, expand, batch_info = _sglang_kernels()
    joined = [
        [(torch.cat([p[:, 0] for p in a], 1), torch.cat([p[:, 0] for p in b], 1)) for a, b in layer]
        for layer in weights.layers
    ]
    offsets = {linear.name: _offsets(linear.outputs, bench.device) for linear in weights.linears}

    def make(step: LoraStep) -> Callable[[], None]:
        if step.lora_tokens < step.tokens:
            raise ValueError("base tokens need a slot of their own here")
        info = _sglang_batch(batch_info, bench, weights, step)

        def run() -> None:
            for layer in joined:
                for linear, (a, b) in zip(weights.linears, layer, strict=True):
                    h = shrink(step.x[linear.inputs], a, info, len(linear.outputs))
                    expand(h, b, info, offsets[linear.name], max(linear.outputs), step.y[linear.name])

        return run

    return make


def _sglang_kernels() -> tuple[Any, Any, Any]:
    try:
        try:
            from sglang.kernels.ops.lora.dense.chunked_sgmv_expand import chunked_sgmv_lora_expand_forward as expand
            from sglang.kernels.ops.lora.dense.chunked_sgmv_shrink import chunked_sgmv_lora_shrink_forward as shrink
        except ImportError:
            from sglang.kernels.ops.gemm.chunked_sgmv_expand import chunked_sgmv_lora_expand_forward as expand
            from sglang.kernels.ops.gemm.chunked_sgmv_shrink import chunked_sgmv_lora_shrink_forward as shrink
        from sglang.srt.lora.utils import LoRABatchInfo
    except ImportError as missing:
        raise SkipItemError(f"SGLang's LoRA kernels cannot be imported ({missing})") from missing
    return shrink, expand, LoRABatchInfo


def _offsets(outputs: tuple[int, ...], device: str) -> torch.Tensor:
    ends = torch.tensor(outputs).cumsum(0).tolist()
    return torch.tensor([0, *ends], dtype=torch.int32, device=device)


def chunk_tokens(tokens: int) -> int:
    """SGLang's chunk by token count, with the largest chunk raised to 128."""
    return 128 if tokens >= 256 else 32 if tokens >= 64 else 16


def _sglang_batch(batch_info: Any, bench: Bench, weights: LoraWeights, step: LoraStep) -> Any:
    chunk = chunk_tokens(step.tokens)
    order = torch.argsort(step.mapping, stable=True)
    adapters, counts = step.mapping[order].unique_consecutive(return_counts=True)
    ends, ids, start = [0], [], 0
    for adapter, count in zip(adapters.tolist(), counts.tolist(), strict=True):
        for first in range(0, count, chunk):
            ends.append(start + min(first + chunk, count))
            ids.append(adapter)
        start += count
    whole: dict[str, Any] = {"dtype": torch.int32, "device": bench.device}
    return batch_info(
        use_cuda_graph=False, bs=step.tokens, num_segments=len(ids), max_len=chunk,
        seg_indptr=torch.tensor(ends, **whole), weight_indices=torch.tensor(ids, **whole),
        lora_ranks=torch.tensor(weights.ranks, **whole), scalings=torch.ones(weights.slots, device=bench.device),
        permutation=order.to(torch.int32).to(bench.device), seg_lens=None,
    )  # fmt: skip
