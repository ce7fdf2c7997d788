"""The workload's result: every request of a run in order of arrival, their common prefixes, and the context length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]

MAX_TOKENS = 2**31 - 1
"""Largest count that a RequestTable holds (int32)."""


@dataclass(frozen=True)
class RequestTable:
    """One entry per request. What was clipped, dropped or assumed on the way stands in `notes`, with counts."""

    arrival_s: npt.NDArray[np.float64]
    """Non-decreasing seconds from the start of the run."""
    adapter: npt.NDArray[np.int32]
    """0 is the base model, 1..count an adapter."""
    prompt_tokens: npt.NDArray[np.int32]
    output_tokens: npt.NDArray[np.int32]
    prefix: tuple[tuple[int, ...], ...] | None
    """Per request, ids of the prompt's leading blocks; equal ids at equal positions are equal content up to there.
    Tokens beyond the last id are the request's own. The last block may be partial. Adapters do not share KV: a cache
    has to be keyed by adapter and id."""
    prefix_block_tokens: int
    """Tokens per id: 512 for Mooncake."""
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.arrival_s)


def group_ids(group: Ints, shared_tokens: Ints, block_tokens: int) -> tuple[tuple[int, ...], ...]:
    """Per request, ids of the whole blocks within its first shared_tokens, which all of its group have in common.
    group, shared_tokens: [num_requests]."""
    known: dict[tuple[int, int], tuple[int, ...]] = {}
    rows = []
    for key in zip(group.tolist(), (shared_tokens // block_tokens).tolist(), strict=True):
        ids = known.get(key)
        if ids is None:
            first = key[0] << 32
            ids = known[key] = tuple(range(first, first + key[1]))
        rows.append(ids)
    return tuple(rows)


def share_ids(
    adapter: Ints, prompt_tokens: Ints, share_fraction: float, block_tokens: int
) -> tuple[tuple[int, ...], ...]:
    """A system prompt per adapter that covers share_fraction (0 to 1) of every prompt, rounded down to whole blocks.

    Prompts differ in length, so a longer one shares more: its shared part begins with that of every shorter one.
    """
    # Rounded first, so that 0.57 of 100 tokens is 57 and not 56.99...
    shared_tokens = np.floor(np.round(prompt_tokens * share_fraction, 6)).astype(np.int32)
    return group_ids(adapter, shared_tokens, block_tokens)


def fit_context(
    prompt_tokens: Ints, output_tokens: Ints, max_model_len: int
) -> tuple[npt.NDArray[np.bool_], Ints, tuple[str, ...]]:
    """(rows to keep, outputs after clipping, notes) so that prompt + output <= max_model_len in every kept row.

    All arrays are [num_requests]: rows that are not kept have an entry, too.
    """
    room = max_model_len - prompt_tokens.astype(np.int64)
    keep = room >= 1
    clipped = keep & (output_tokens > room)
    notes = []
    dropped = len(keep) - int(keep.sum())
    if dropped:
        notes.append(f"{dropped} of {len(keep)} requests dropped: prompt not below max_model_len {max_model_len}")
    if clipped.any():
        lost = int((output_tokens - room)[clipped].sum())
        notes.append(
            f"{int(clipped.sum())} of {len(keep)} outputs clipped to max_model_len {max_model_len}, {lost} tokens fewer"
        )
    return keep, np.where(clipped, room, output_tokens).astype(np.int32), tuple(notes)
