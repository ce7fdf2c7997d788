"""Gather every token's weights and multiply with torch.bmm: the baseline without custom kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .errors import require


def padded_bmm(
    x: torch.Tensor,
    a: Sequence[torch.Tensor],
    b: Sequence[torch.Tensor],
    token_adapter: torch.Tensor,
    scaling: torch.Tensor,
    rank: int,
    y: torch.Tensor,
) -> torch.Tensor:
    """y[t, o_s + n] += scaling * sum over j < rank of (sum over c of x[t, c] * A_s[j, c]) * B_s[n, j].

    rank: the batch's largest; every token gathers and multiplies that many rows (storage beyond an adapter's own rank
    must be zero). Base tokens (-1) gather slot 0 and are then scaled by 0: they cost as much as others.

    x: [tokens, in]. a: per slice [slots, R, in]. b: per slice [slots, R, out] (rank-major). token_adapter: int
    [tokens]. scaling: float32 [slots]. y: [tokens, sum of out], added into in place. Returns y. No host
    synchronisation. Refused (LayoutError): a rank above the rows stored, wrong widths.
    """
    require(len(a) == len(b) > 0, "a, b: one stack for each slice")
    require(all(part.dim() == 3 for part in (*a, *b)), "a, b: three dimensions, [slots, rank, width]")
    require(all(1 <= rank <= part.shape[1] for part in (*a, *b)), f"rank: {rank}, 1 to the {a[0].shape[1]} rows stored")
    require(all(part.shape[2] == x.shape[1] for part in a), f"a: width must be x's {x.shape[1]}")
    require(sum(part.shape[2] for part in b) == y.shape[1], f"b: widths must add up to y's {y.shape[1]}")
    slot = token_adapter.long().clamp(min=0)
    weight = torch.where(token_adapter >= 0, scaling[slot], 0.0).to(y.dtype)
    start = 0
    for a_part, b_part in zip(a, b, strict=True):
        v = torch.bmm(a_part[slot, :rank], x.unsqueeze(2))
        delta = torch.bmm(v.transpose(1, 2), b_part[slot, :rank]).squeeze(1)
        y[:, start : start + b_part.shape[2]] += weight[:, None] * delta
        start += b_part.shape[2]
    return y
