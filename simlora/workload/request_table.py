"""The workload's result: every request of a run in order of arrival."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


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
