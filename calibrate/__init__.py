"""Measures a CUDA GPU, so that the latency model can be fitted to its kernels, copies and links."""

from __future__ import annotations

from simlora.calibrate.campaign import Outcome, run_calibration

__all__ = ["Outcome", "run_calibration"]
