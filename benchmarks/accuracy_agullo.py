"""Accuracy on the published multi-LoRA runs of vLLM 0.8.5 on a 64 GB H100. Called by accuracy.py --agullo.

SMAPE is full-scale: the mean of |s - m| / ((|s| + |m|) / 2), as a fraction. Rows used in fitting the calibration are
simulated with --all only, and never scored.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from agullo_rows import FINISHED, SATURATED, AgulloRow, read_rows
from agullo_run import play

CALM_TTFT_S = 1.0
TIE = 0.02
"""Slot counts whose throughput is within this of the best are as good."""
SWEEP_ROWS = 3
METRICS = ("throughput_rps", "itl_s", "tpot_s", "ttft_s")


@dataclass(frozen=True)
class Result:
    row: AgulloRow
    simulated: dict[str, float]

    def smape(self, metric: str) -> float:
        s, m = self.simulated[metric], self.row.measured[metric]
        return 2.0 * abs(s - m) / (abs(s) + abs(m)) if s or m else 0.0


def simulate_rows(rows: Sequence[AgulloRow], calibration: str | None, progress: bool = False) -> list[Result]:
    """All rows, on all cores."""
    results = []
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for index, result in enumerate(pool.imap(partial(_simulate, calibration=calibration), rows), start=1):
            results.append(result)
            if progress and index % 20 == 0:
                print(f"{index} of {len(rows)} rows", flush=True)
    return results


def _simulate(row: AgulloRow, calibration: str | None) -> Result:
    return Result(row, play(row, calibration).metrics)
