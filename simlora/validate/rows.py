"""What a validation found: compared values with what has to be said of them. Knows nothing of how they came about."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simlora.results.atomic_write import write_whole

DECODE, PREFILL, LOAD = "decode_itl_s", "prefill_ttft_s", "load_ttft_s"
"""Metrics of single measurements."""

SHORTER, LONGER = 0.95, 1.05
"""Factors on all step times by which a metric's sensitivity is shown."""


@dataclass(frozen=True)
class Row:
    """measured and simulated are in the metric's own unit; None: not defined."""

    run: str
    metric: str
    measured: float | None
    simulated: float | None
    simulated_step_x095: float | None
    """With all step times 5 % shorter."""
    simulated_step_x105: float | None
    key: Mapping[str, Any] = field(default_factory=dict)
    """What tells apart the rows of one metric: batch, rank, phase, ..."""

    @property
    def error(self) -> float | None:
        """simulated / measured - 1; 0 where both are 0, None where that is not defined."""
        if self.measured is None or self.simulated is None:
            return None
        if self.measured == 0:
            return 0.0 if self.simulated == 0 else None
        return self.simulated / self.measured - 1

    @property
    def is_measurement(self) -> bool:
        """A single measurement, not a metric of a whole run."""
        return self.metric in (DECODE, PREFILL, LOAD)

    @property
    def in_band(self) -> bool:
        """The measured value lies between those of shorter and longer steps: within what 5 % of step time explain."""
        shorter, longer = self.simulated_step_x095, self.simulated_step_x105
        if self.measured is None or shorter is None or longer is None:
            return False
        return min(shorter, longer) <= self.measured <= max(shorter, longer)

    def to_dict(self) -> dict[str, Any]:
        """The row for JSON."""
        return {
            "run": self.run,
            "metric": self.metric,
            **self.key,
            "measured": self.measured,
            "simulated": self.simulated,
            "error": self.error,
            "simulated_step_x095": self.simulated_step_x095,
            "simulated_step_x105": self.simulated_step_x105,
        }


@dataclass(frozen=True)
class ValidationReport:
    """The outcome of `validate`."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    """Assumptions and approximations, each once, with the run's name where it concerns one."""

    def of_requests(self) -> list[Row]:
        """Rows of whole runs."""
        return [row for row in self.rows if not row.is_measurement]

    def of_measurements(self) -> list[Row]:
        """Rows of single measurements (decode, prefill, loads)."""
        return [row for row in self.rows if row.is_measurement]


def write_json(rows: Sequence[Row], path: str | Path) -> Path:
    """Write the rows as a JSON list; the file is there whole, or not at all.

    Raises:
        ConfigError: it cannot be written.
    """
    text = json.dumps([row.to_dict() for row in rows], indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    return write_whole(path, text, "--json")
