"""vLLM's and SGLang's own LoRA kernels, where they can be imported, on the same slots as ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .bench import Bench
from .lora_weights import LoraStep, LoraWeights, MakeStep
from .session import SkipItemError


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
