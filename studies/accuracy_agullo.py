"""Accuracy on the published multi-LoRA runs of vLLM 0.8.5 on a 64 GB H100: reports/accuracy-h100.md.

    python studies/accuracy_agullo.py FILE.csv [--rows ROWS.jsonl] [--json OUT.json] [--calibration NAME_OR_PATH]

SMAPE is full-scale: the mean of |s - m| / ((|s| + |m|) / 2), as a fraction. Rows that were used in fitting the
calibration are named and left out.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import report_file
from agullo_rows import FINISHED, FITTED, SATURATED, AgulloRow, read_rows
from agullo_run import play

from simlora.errors import ConfigError

REPORT = Path(__file__).resolve().parents[1] / "reports" / "accuracy-h100.md"
CALM_TTFT_S = 1.0
"""Finished rows whose measured mean TTFT is below are scored by SMAPE, the others by a factor."""
TIE = 0.02
"""Slot counts whose throughput is within this of the best are as good."""
SWEEP_ROWS = 3
TARGETS = {
    "throughput_smape": 0.05,
    "throughput_saturated_smape": 0.08,
    "itl_smape": 0.10,
    "ttft_smape": 0.25,
    "ttft_knee_median_factor": 2.0,
    "slots_agreement": 0.80,
}
NAMES = {
    "throughput_smape": "throughput",
    "throughput_saturated_smape": "throughput, saturated rows",
    "itl_smape": "ITL",
    "ttft_smape": "TTFT, finished rows under 1 s",
    "ttft_knee_median_factor": "TTFT, other finished rows: median factor",
    "slots_agreement": "best slot count agrees",
}
ASSUMED = (
    "All adapters are registered before the run, as the server did (max_cpu_loras holds them all, so that nothing is "
    "read from disk); the last ones registered are in slots. What the Qwen adapters hold is inferred from their load "
    "time: attention only. Prompts are not published: lengths have ShareGPT's shape and the row's means. Arrivals are "
    "those of the published client with its seed. The client's scrapes of /metrics, which stop the API server, are "
    "simulated; a client has at most 26,000 connections."
)
Simulated = dict[str, float] | str
"""A row's metrics, or why it cannot be simulated."""


@dataclass(frozen=True)
class Result:
    """A row and what the simulation gives for it."""

    row: AgulloRow
    simulated: dict[str, float]

    def smape(self, metric: str) -> float:
        s, m = self.simulated[metric], self.row.measured[metric]
        return 2.0 * abs(s - m) / (abs(s) + abs(m)) if s or m else 0.0

    @property
    def finished(self) -> bool:
        return self.row.share >= FINISHED

    @property
    def saturated(self) -> bool:
        return self.row.share < SATURATED

    @property
    def calm(self) -> bool:
        return self.finished and self.row.measured["ttft_s"] < CALM_TTFT_S

    @property
    def knee_factor(self) -> float:
        """How many times too large or too small the mean TTFT is."""
        s, m = self.simulated["ttft_s"], self.row.measured["ttft_s"]
        return max(s / m, m / s) if s > 0.0 else math.inf


def run(path: Path, json_path: Path | None, calibration: str | None, log: Path | None = None) -> str:
    """Simulate and score the file's rows; writes the scores where asked to, and returns the report (Markdown)."""
    rows, left_out = read_rows(path)
    used = [row for row in rows if row.fitted]
    results, failed = simulate([row for row in rows if not row.fitted], calibration, log)
    for reason in failed.values():
        left_out[reason] = left_out.get(reason, 0) + 1
    scores = score(results)
    scores["per_model"] = {
        model: score([result for result in results if result.row.model == model])
        for model in sorted({result.row.model for result in results})
    }
    if json_path is not None:
        text = json.dumps(scores | {"fitted": [row.path for row in used]}, indent=1)
        report_file.write(json_path, text + "\n")
    return report(scores, results, used, left_out)


def simulate(
    rows: Sequence[AgulloRow], calibration: str | None, log: Path | None = None, every: int = 50
) -> tuple[list[Result], dict[str, str]]:
    """All rows, on all cores, the long ones (overloaded) first, so that no core waits for them at the end; and why rows
    cannot be simulated, by path. Rows in the log are not simulated again, the others are added to it."""
    found = read_log(log) if log is not None and log.exists() else {}
    order = sorted((row for row in rows if row.path not in found), key=lambda row: -row.offered_rps)
    with (log or Path(os.devnull)).open("a") as file, multiprocessing.Pool(os.cpu_count(), maxtasksperchild=40) as pool:
        for path, result in pool.imap_unordered(partial(_simulate, calibration=calibration), order):
            found[path] = result
            file.write(json.dumps({"path": path, "simulated": result}) + "\n")
            file.flush()
            if every and len(found) % every == 0:
                print(f"{len(found)} of {len(rows)} rows", file=sys.stderr, flush=True)
    inorder = [(row, found[row.path]) for row in rows]
    failed = {row.path: item for row, item in inorder if isinstance(item, str)}
    return [Result(row, item) for row, item in inorder if not isinstance(item, str)], failed


def read_log(path: Path) -> dict[str, Simulated]:
    """Path of a row -> what was simulated for it."""
    records = map(json.loads, path.read_text().splitlines())
    return {record["path"]: record["simulated"] for record in records}


def _simulate(row: AgulloRow, calibration: str | None) -> tuple[str, Simulated]:
    try:
        return row.path, play(row, calibration).metrics
    except ConfigError as error:
        return row.path, f"cannot be simulated: {error.key}"


def score(results: Sequence[Result]) -> dict[str, Any]:
    """The metrics of TARGETS (None: no row defines it), and the number of rows."""
    factors = [result.knee_factor for result in results if result.finished and not result.calm]
    return {
        "throughput_smape": _smape(results, "throughput_rps"),
        "throughput_saturated_smape": _smape(results, "throughput_rps", lambda result: result.saturated),
        "itl_smape": _smape(results, "itl_s"),
        "ttft_smape": _smape(results, "ttft_s", lambda result: result.calm),
        "ttft_knee_median_factor": median(factors) if factors else None,
        "slots_agreement": slots_agreement(results),
        "rows": len(results),
    }


def _smape(
    results: Sequence[Result], metric: str, kept: Callable[[Result], bool] = lambda result: True
) -> float | None:
    values = [result.smape(metric) for result in results if kept(result)]
    return math.fsum(values) / len(values) if values else None


def sweeps(results: Sequence[Result]) -> list[list[Result]]:
    """Rows that differ in slots alone, for sweeps of SWEEP_ROWS slot counts or more."""
    groups: dict[Any, list[Result]] = defaultdict(list)
    for result in results:
        groups[result.row.sweep].append(result)
    return [group for group in groups.values() if len({item.row.max_loras for item in group}) >= SWEEP_ROWS]


def slots_agreement(results: Sequence[Result]) -> float | None:
    """Share of sweeps in which the slot count of the best simulated throughput is one of the best measured ones."""
    found = sweeps(results)
    return sum(map(_agrees, found)) / len(found) if found else None


def _agrees(sweep: Sequence[Result]) -> bool:
    best = max(result.row.measured["throughput_rps"] for result in sweep)
    chosen = max(sweep, key=lambda result: result.simulated["throughput_rps"])
    return chosen.row.measured["throughput_rps"] >= (1.0 - TIE) * best


def report(
    scores: dict[str, Any], results: Sequence[Result], used: Sequence[AgulloRow], left_out: dict[str, int]
) -> str:
    models = scores["per_model"]
    lines = [
        "# Accuracy against published runs of vLLM 0.8.5 on an H100 (64 GB)",
        "",
        "Written by `python studies/accuracy_agullo.py FILE.csv`. Runs of an hour with many adapters "
        "(FerranAgulloLopez/GPULLMAdapterOptimization, Apache-2.0), simulated with the calibration `nvidia-h100`: "
        "its operators, attention, LoRA and host terms are fitted to single steps and to rows of `real_results/qwen*`. "
        "SMAPE is full-scale: the mean of |s - m| / ((|s| + |m|) / 2).",
        "",
        f"{scores['rows']} runs that the fit has not seen; {len(used)} rows were seen in fitting and are left out "
        f"(every row of `{FITTED}*`). Also left out: "
        + ("; ".join(f"{count} rows: {reason}" for reason, count in left_out.items()) or "none")
        + ".",
        "",
        "| metric | target | all | " + " | ".join(models) + " |",
        "|---" * (3 + len(models)) + "|",
    ]
    for key, target in TARGETS.items():
        cells = [_cell(key, value[key]) for value in (scores, *models.values())]
        bound = "at least" if key == "slots_agreement" else "at most"
        lines.append(f"| {NAMES[key]} | {bound} {_cell(key, target)} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", ASSUMED, "", *folder_table(results)])


def folder_table(results: Sequence[Result]) -> list[str]:
    """The same by folder: where the errors are."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        parts = result.row.path.split("/")
        groups[f"{result.row.model}, {parts[-2] if len(parts) > 1 else parts[0]}"].append(result)
    keys = list(TARGETS)
    lines = ["| runs | rows | " + " | ".join(NAMES[key] for key in keys) + " |", "|---" * (2 + len(keys)) + "|"]
    for name, group in sorted(groups.items()):
        scores = score(group)
        lines.append(f"| {name} | {len(group)} | " + " | ".join(_cell(key, scores[key]) for key in keys) + " |")
    return [*lines, ""]


def _cell(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if key == "ttft_knee_median_factor" else f"{value:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="FILE.csv", help="the published runs")
    parser.add_argument("--rows", type=Path, help="simulated rows, read and added to, so that a cut pass goes on")
    parser.add_argument("--json", type=Path, help="write the scores there")
    parser.add_argument("--calibration", help="another one than the nearest shipped")
    parser.add_argument("--out", type=Path, default=REPORT)
    args = parser.parse_args()
    text = run(args.data, args.json, args.calibration, args.rows)
    report_file.write(args.out, text)
    print(text)


if __name__ == "__main__":
    main()
