"""One compared value: a metric of a run, measured and simulated. Knows nothing of how either came about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
