"""What the user may choose when recorded runs are simulated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReplayOptions:
    """None: what the run says, or the nearest there is."""

    calibration: str | None = None
    """Name of a shipped calibration, or path of one."""
    gpu: str | None = None
    """The catalogue's name of the GPU."""
