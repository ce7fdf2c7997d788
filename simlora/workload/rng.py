"""Named random streams: one per subsystem, so that drawing more in one never shifts another."""

from __future__ import annotations

import zlib

import numpy as np


def rng(seed: int, name: str) -> np.random.Generator:
    """Generator that depends on `seed` (>= 0) and on the stream's name only.

    crc32 instead of hash(): the latter differs from one process to the next.
    """
    return np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))
