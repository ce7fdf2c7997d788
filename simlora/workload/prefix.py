"""Which leading part of a prompt is shared with other requests, as ids of blocks of tokens.

Ids beyond the end of a request's tuple do not exist: those tokens are its own. A block that is shared only in part has
no id, since no engine can reuse it. Groups number their blocks apart: id = group * 2^32 + position.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]


def group_ids(group: Ints, shared_tokens: Ints, block_tokens: int) -> tuple[tuple[int, ...], ...]:
    """Ids of the whole blocks within each request's first shared_tokens, which all of its group have in common."""
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
