"""Samples of a calibration campaign: one timed shape a row, as JSON lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from simlora.errors import ConfigError

Row = Mapping[str, Any]

TIMES = ("p20", "p50", "p80")
REQUIRED = ("op", "unit", *TIMES, "n", "item", "provenance")
NOISY = 1.3
"""80th over 20th percentile from which a sample counts as noisy."""


def check_row(row: Row, source: str = "samples") -> None:
    """Raise ConfigError unless the row is a sample: named, in seconds, ordered positive percentiles of n repeats."""
    for key in REQUIRED:
        if key not in row:
            raise ConfigError(source, key, None, f"every sample needs: {', '.join(REQUIRED)}")
    if row["unit"] != "s":
        raise ConfigError(source, "unit", row["unit"], "s")
    times = [row[key] for key in TIMES]
    if not all(isinstance(t, (int, float)) and math.isfinite(t) and t > 0.0 for t in times) or times != sorted(times):
        raise ConfigError(source, "p20, p50, p80", times, "finite, positive, ascending")
    if not isinstance(row["n"], int) or row["n"] < 1:
        raise ConfigError(source, "n", row["n"], "a positive count")


def of_op(rows: Iterable[Row], *ops: str, **values: Any) -> list[Row]:
    """The rows of these operations that carry these values."""
    return [r for r in rows if r["op"] in ops and all(r.get(key) == value for key, value in values.items())]


def noisy_share(rows: Iterable[Row]) -> float:
    """Share of samples whose percentiles lie far apart."""
    spreads = [row["p80"] / row["p20"] > NOISY for row in rows]
    return sum(spreads) / len(spreads) if spreads else 0.0
