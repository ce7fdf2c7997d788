"""Accuracy on four published base-model runs of vLLM 0.19, without a calibration of their GPUs: a section of
reports/accuracy.md.

    python studies/accuracy_base.py [--data FOLDER] [--out FILE.md]

First by roofline alone; then, for the two dense runs on one GPU type, after engine terms were fitted to the other one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import report_file
from accuracy import HEAD, REPORT
from llmservingsim_runs import DATA, convert, run_names

from simlora.latency.scaling import ROOFLINE_FLOPS_FRACTION, ROOFLINE_MEMORY_FRACTION
from simlora.runs.recorded import read_recorded_run
from simlora.validate.compare import compare
from simlora.validate.fit import fit_from_runs
from simlora.validate.scenario_of_run import ReplayOptions

METRICS = {"request_throughput_rps": "throughput", "ttft_mean_s": "TTFT mean", "tpot_mean_s": "TPOT mean"} | {
    "e2e_mean_s": "E2E mean"
}
HEADING = "Base model: published runs of vLLM 0.19 on other GPUs"
PAIR = ("RTXPRO6000_Llama-3.1-8B", "RTXPRO6000_Qwen3-32B")
ROOFLINE_TARGET, FITTED_TARGET = 0.30, 0.10
"""Largest |error| of the mean TPOT."""
ABOUT = (
    "300 requests each (casys-kaist/LLMServingSim, MIT), LoRA off, simulated by the rules of 0.20. Qwen3-32B ran with "
    "tensor parallelism 2; Qwen3-30B-A3B as two replicas with their experts spread over both GPUs, simulated as two "
    "that hold all of them. No calibration is of these GPUs or architectures: roofline takes "
    f"{ROOFLINE_MEMORY_FRACTION:.0%} of the datasheet's bandwidth and {ROOFLINE_FLOPS_FRACTION:.0%} of its FLOPS, and "
    "host and front end from the H200. The last rows: fitted by `simlora calibrate --from-runs` to another model's run "
    "on that GPU. Written by `python studies/accuracy_base.py`."
)


def run(data: Path) -> str:
    """The section's text (Markdown)."""
    with TemporaryDirectory() as folder:
        work = Path(folder)
        runs = {name: convert(name, work, data) for name in run_names(data)}
        lines = ["| run | calibration | " + " | ".join(METRICS.values()) + " | TPOT aim |", "|---" * 7 + "|"]
        for name, path in runs.items():
            lines.append(_line(name, "roofline", errors(path, None), ROOFLINE_TARGET))
        for seen, other in (PAIR, PAIR[::-1]):
            if seen in runs and other in runs:
                fitted = fit_from_runs([runs[seen]], None, work / "fitted.json").path
                label = f"fitted to {seen}"
                lines.append(_line(other, label, errors(runs[other], str(fitted)), FITTED_TARGET))
    return "\n".join([ABOUT, "", *lines])


def errors(folder: Path, calibration: str | None) -> dict[str, float]:
    """Metric -> simulated / measured - 1."""
    rows = compare(read_recorded_run(folder), ReplayOptions(calibration=calibration))
    return {row.metric: row.error for row in rows if row.error is not None}


def _line(name: str, calibration: str, found: dict[str, float], target: float) -> str:
    cells = " | ".join(f"{found[metric]:+.1%}" for metric in METRICS)
    met = "met" if abs(found["tpot_mean_s"]) <= target else "missed"
    return f"| {name} | {calibration} | {cells} | {target:.0%}: {met} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of NAME__meta.json and NAME__requests.jsonl")
    parser.add_argument("--out", type=Path, default=REPORT)
    args = parser.parse_args()
    text = run(args.data)
    report_file.update(args.out, HEAD, {HEADING: text})
    print(text)


if __name__ == "__main__":
    main()
