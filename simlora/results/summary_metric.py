"""A metric of summary.json, described once, beside the function that computes it; summary and reports follow from it.

To add one: a Metric in the METRICS of the module that it belongs to (or in a new one, named in results/summary.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Unit = Literal["", "s", "count", "fraction", "bytes", "tokens", "1/s", "tokens/s", "usd", "usd/h"]
""""": text, or a mapping of values whose units its description names."""
LOWER, HIGHER, NEUTRAL = -1, 1, 0


@dataclass(frozen=True)
class Metric:
    """One value of a summary, or one mapping of values that are computed together."""

    name: str
    """Its place in summary.json, blocks by a dot: "adapters.loads"."""
    unit: Unit
    compute: Callable[[Any], Any]
    """Of a results.measured.Measured."""
    about: str
    """What it is, where the name does not say it."""
    label: str = ""
    """In reports."""
    better: int | None = None
    """Which direction is better, in a comparison of two runs; None: not compared."""
    statistics: tuple[str, ...] = ()
    """Of a distribution: the statistics that are compared. Distributions are the rows of the latency table."""
    listed: str = ""
    """Heading of the details in reports under which it stands, after what the report itself says there."""
