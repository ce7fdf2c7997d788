"""Fits requests into the context length. Nothing is cut in silence: every rule that applies is counted in a note.

- A prompt that leaves no room for one output token is dropped: a server refuses it.
- An output that would pass the context length ends there, as it does on a server.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]


def fit_context(
    prompt_tokens: Ints, output_tokens: Ints, max_model_len: int
) -> tuple[npt.NDArray[np.bool_], Ints, tuple[str, ...]]:
    """(rows to keep, outputs after clipping, notes) so that prompt + output <= max_model_len in every kept row."""
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
