"""Measures a CUDA GPU, so that the latency model can be fitted to its kernels, copies and links."""

from __future__ import annotations

from .campaign import CampaignResult, fit_only, run_calibration

__all__ = ["CampaignResult", "fit_only", "run_calibration"]
