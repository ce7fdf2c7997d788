"""float32 references: the definition each kernel is tested against. Slow, allocate freely, synchronise with the
host."""

from __future__ import annotations

import torch

from .layout import GroupWeights


def reference_shrink(x: torch.Tensor, weights: GroupWeights, token_adapter: torch.Tensor) -> torch.Tensor:
    """v[t, s, j] = sum over c of x[t, c] * A_s[adapter(t)][j, c]; float32 [tokens, slices, max_rank], zero beyond own
    rank."""
    out = torch.zeros(x.shape[0], weights.slices, max(1, weights.max_rank), dtype=torch.float32, device=x.device)
    for slot in sorted({int(i) for i in token_adapter.tolist() if i >= 0}):
        rows = (token_adapter == slot).nonzero().squeeze(1).to(x.device)
        for part in range(weights.slices):
            a, _ = weights.dense(slot, part)
            out[rows, part, : a.shape[0]] = x[rows].float() @ a.float().t()
    return out


def reference_expand(
    v: torch.Tensor, weights: GroupWeights, token_adapter: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """y[t, o_s + n] + scaling[adapter(t)] * sum over j of v[t, s, j] * B_s[adapter(t)][n, j]; float32, y is not
    changed."""
    out = y.float().clone()
    for slot in sorted({int(i) for i in token_adapter.tolist() if i >= 0}):
        rows = (token_adapter == slot).nonzero().squeeze(1).to(y.device)
        start = 0
        for part, width in enumerate(weights.out_features):
            _, b = weights.dense(slot, part)
            delta = float(weights.scaling[slot]) * (v[rows, part, : b.shape[0]] @ b.float())
            out[rows, start : start + width] += delta
            start += width
    return out


def reference_lora(
    x: torch.Tensor, weights: GroupWeights, token_adapter: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """y + scaling * (x A^T) B^T for every token and slice, float32; rows of base tokens (-1) are y's own."""
    return reference_expand(reference_shrink(x, weights, token_adapter), weights, token_adapter, y)


def summed_partials(h: torch.Tensor, weights: GroupWeights, order: torch.Tensor) -> torch.Tensor:
    """The kernels' partial sums [splits, tokens, slices * rank_pad] in reference_shrink's form, zero beyond own rank.

    Only for tests: entries that no kernel writes (base tokens, rows beyond an adapter's rank) must be masked by the
    caller.
    """
    total = h.sum(0).view(h.shape[1], weights.slices, weights.rank_pad)[:, :, : max(1, weights.max_rank)]
    out = torch.zeros_like(total)
    out[order.long()] = total
    return out
