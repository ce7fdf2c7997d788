"""Accuracy of the simulator against recorded runs: two sections of reports/accuracy.md.

    python studies/accuracy.py [--truth FOLDER] [--calibrations FOLDER] [--out FILE.md]

--truth: recorded runs (default: tests/recorded). --calibrations: for each run without-RUN.json, a calibration that was
fitted without that run (`simlora calibrate --from-runs RUNS --held-out FOLDER`); other runs use the shipped one, and
the table says whether it has seen them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import report_file

from simlora.engines.pricing import scenario_calibration
from simlora.latency.store import load_calibration
from simlora.runs.recorded import RecordedRun, read_recorded_run, run_folders
from simlora.validate.compare import compare
from simlora.validate.rows import DECODE, LOAD, PREFILL, Row
from simlora.validate.scenario_of_run import ReplayOptions, scenario_of_run
from simlora.validate.table import KNIFE_EDGE, error_text

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "reports" / "accuracy.md"

CALM_TTFT_S = 0.5
"""Runs whose measured mean TTFT is below are held to the tighter targets."""
CALM = {"request_throughput_rps": 0.03, "tpot_mean_s": 0.08, "ttft_mean_s": 0.15, "ttft_p99_s": 0.30}
LOADED = {"request_throughput_rps": 0.05, "tpot_mean_s": 0.15, "ttft_mean_s": 0.35}
SINGLE = {DECODE: 0.08, PREFILL: 0.15, LOAD: 0.25}
COLUMNS = ("request_throughput_rps", "tpot_mean_s", "ttft_mean_s", "ttft_p99_s")
NAMES = {"request_throughput_rps": "throughput", "tpot_mean_s": "TPOT mean", "ttft_mean_s": "TTFT mean"} | {
    "ttft_p99_s": "TTFT p99",
    DECODE: "decode ITL",
    PREFILL: "prefill TTFT",
    LOAD: "load TTFT",
}
HEAD = f"""# Accuracy against a real server

Written by `python studies/accuracy.py`. Errors are simulated / measured - 1; in brackets the same with all step \
times 5 % shorter and 5 % longer. {KNIFE_EDGE} marks a measured value between those two. Each run is one recording: \
how much a repetition would differ is not known.
"""


@dataclass(frozen=True)
class Compared:
    """One run's rows, and whether its calibration was fitted to it."""

    recorded: RecordedRun
    rows: list[Row]
    seen: bool

    @property
    def targets(self) -> dict[str, float]:
        """Metric -> largest |error|."""
        ttft_s = next((row.measured for row in self.rows if row.metric == "ttft_mean_s"), None)
        return CALM if ttft_s is not None and ttft_s < CALM_TTFT_S else LOADED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--truth", type=Path, default=ROOT / "tests" / "recorded")
    parser.add_argument("--calibrations", type=Path, help="folder with without-RUN.json")
    parser.add_argument("--out", type=Path, default=REPORT)
    args = parser.parse_args()
    sections = run_sections(args.truth, args.calibrations)
    report_file.update(args.out, HEAD, sections)
    print("\n".join(part for section in sections.items() for part in section))


def run_sections(truth: Path, calibrations: Path | None) -> dict[str, str]:
    compared = [compare_run(read_recorded_run(folder), calibrations) for folder in run_folders([truth])]
    whole = [item for item in compared if item.recorded.requests is not None]
    return {
        "Whole runs": "\n".join(runs_table(whole)),
        "Single measurements": "\n".join(measurements_table(compared)),
    }


def compare_run(recorded: RecordedRun, calibrations: Path | None) -> Compared:
    own = calibrations / f"without-{recorded.name}.json" if calibrations else None
    options = ReplayOptions(calibration=str(own) if own and own.exists() else None)
    scenario = scenario_of_run(recorded, recorded.ranks, options)
    used = load_calibration(options.calibration) if options.calibration else None
    calibration = used or scenario_calibration(scenario)
    seen = any(Path(name).name == recorded.name for name in calibration.provenance.source_runs)
    return Compared(recorded, compare(recorded, options), seen)


def runs_table(compared: Sequence[Compared]) -> list[str]:
    columns = " | ".join(NAMES[name] for name in COLUMNS)
    lines = [f"| run | mean TTFT measured | seen in the fit | {columns} | targets |", "|---" * (len(COLUMNS) + 4) + "|"]
    verdicts: list[str] = []
    for item in compared:
        for label, by_metric in assumptions(item.rows).items():
            cells = [error_text(by_metric[name]) for name in COLUMNS]
            ttft_s = by_metric["ttft_mean_s"].measured
            name = f"{item.recorded.name}{label}"
            seen = "yes" if item.seen else "no"
            shown = "-" if ttft_s is None else f"{1000 * ttft_s:.0f} ms"
            verdict = verdict_of(by_metric, item.targets)
            verdicts.append(verdict)
            lines.append(f"| {name} | {shown} | {seen} | " + " | ".join(cells) + f" | {verdict} |")
    counts = [sum(verdict.startswith(kind) for verdict in verdicts) for kind in ("met", "knife-edge", "missed")]
    summary = "{} of {} rows meet their targets, {} are knife-edges (at most one in four may be), {} miss."
    return [*lines, "", summary.format(counts[0], len(verdicts), counts[1], counts[2])]


def assumptions(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Label of an assumption on residents ("" where they are known) -> metric -> row."""
    grouped: dict[str, dict[str, Row]] = {}
    for row in rows:
        if not row.is_measurement:
            grouped.setdefault("".join(f" ({value})" for value in row.key.values()), {})[row.metric] = row
    return grouped


def verdict_of(by_metric: dict[str, Row], targets: dict[str, float]) -> str:
    """met, or what misses its target; a value within 5 % of step time is a knife-edge, not a miss."""
    missed: list[str] = []
    edges: list[str] = []
    for metric, limit in targets.items():
        row = by_metric[metric]
        if row.error is not None and abs(row.error) <= limit:
            continue
        (edges if row.in_band else missed).append(f"{NAMES[metric]} > {limit:.0%}")
    if missed:
        return "missed: " + ", ".join(missed)
    return "knife-edge: " + ", ".join(edges) if edges else "met"


def measurements_table(compared: Sequence[Compared]) -> list[str]:
    lines = ["| run | what | rows | median of the errors' sizes | largest | target | rows beyond |", "|---" * 7 + "|"]
    for item in compared:
        for metric, limit in SINGLE.items():
            errors = [abs(row.error) for row in item.rows if row.metric == metric and row.error is not None]
            if not errors:
                continue
            beyond = [row for row in item.rows if row.metric == metric and row.error and abs(row.error) > limit]
            named = "; ".join(f"{_key(row)}: {row.error:+.1%}" for row in beyond) or "none"
            size = f"{len(errors)} | {median(errors):.1%} | {max(errors):.1%} | {limit:.0%}"
            lines.append(f"| {item.recorded.name} | {NAMES[metric]} | {size} | {named} |")
    return lines


def _key(row: Row) -> str:
    return ", ".join(f"{name} {value}" for name, value in row.key.items())


if __name__ == "__main__":
    main()
