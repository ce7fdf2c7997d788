"""Fits scenarios/calibrations/nvidia-h200.json to the recorded runs of ../shared/truth and prints how well it does.

    python benchmarks/fit_first_calibration.py                  # fit, leave-one-trace-out table, write the file
    python benchmarks/fit_first_calibration.py --no-hold-out    # the fit alone (half a minute)

LoRA kernels come from directly measured kernel times; operators, attention and host terms from micro runs and step
logs; loads from load tables; the front end from traces. A held-out trace is predicted from micro runs and the other
traces, on a host of factor 1 (machine A) or of the one factor that its machine has (B).
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from first_calibration import skeleton
from fit_loads import LoadFit, fit_front_end, load_rows, pinned_copy_bytes_per_s, replay, times
from fit_terms import Key, StepFit, decode_itl_s, fit_kernels, lone_ttft_s, prefill_rows, with_parameters
from truth_runs import Run, metrics, read_copies, read_peers, read_runs

from simlora.latency.calibration import OPTIONAL_TERMS, Calibration
from simlora.latency.scaling import scale_host
from simlora.latency.store import load_calibration

TARGET = Path(__file__).resolve().parents[1] / "scenarios" / "calibrations" / "nvidia-h200.json"
MEASURED_APART = ("collectives", *OPTIONAL_TERMS)
"""Terms that no run is fitted to: kept as the shipped file has them."""
COMMAND = "python benchmarks/fit_first_calibration.py"
PEER_GROUPS = ("slots", "max_rank")
LIMITS = {"light": (0.03, 0.08, 0.15, 0.30), "heavy": (0.05, 0.15, 0.35, math.inf)}
"""Aims for throughput, mean TPOT, mean TTFT and p99 TTFT; heavy: mean TTFT of half a second and more."""


def fit(base: Calibration, micro: list[Run], traces: list[Run]) -> tuple[Calibration, dict[str, float]]:
    """All terms, and the host factor of every engine process (1: the calibration's own)."""
    calibration = with_parameters(base, {("copies", "bytes_per_s"): pinned_copy_bytes_per_s(read_copies())})
    values, factors = StepFit(calibration, micro, traces).solve()
    calibration = with_parameters(calibration, values)
    calibration = with_parameters(calibration, fit_front_end(calibration, factors, traces))
    calibration = with_parameters(calibration, LoadFit(calibration, factors, micro, traces).solve())
    return calibration, factors


def machine_factor(factors: dict[str, float], machine: str) -> float:
    """Mean factor of a machine's processes; 1 for machine A, whose mean defines the calibration."""
    logs = [math.log(value) for name, value in factors.items() if name.startswith(machine) and machine != "A"]
    return math.exp(float(np.mean(logs))) if logs else 1.0


def kernel_errors(base: Calibration) -> tuple[dict[Key, float], float, float]:
    """Parameters from all rows; RMS error on them; RMS error on rows of a slot configuration left out of the fit."""
    rows = read_peers()
    values, (matrix, measured) = fit_kernels(base, rows)
    fitted = matrix @ np.array(list(values.values())) / measured - 1.0
    left_out: list[float] = []
    for group in sorted({tuple(row[name] for name in PEER_GROUPS) for row in rows}):
        inside = [tuple(row[name] for name in PEER_GROUPS) == group for row in rows]
        others, _ = fit_kernels(base, [row for row, held in zip(rows, inside, strict=True) if not held])
        error = matrix @ np.array(list(others.values())) / measured - 1.0
        left_out += error[np.array(inside)].tolist()
    return values, rms(fitted), rms(left_out)


def rms(errors: Any) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


# --- evaluation ------------------------------------------------------------------------------------------------------


def micro_errors(calibration: Calibration, micro: list[Run]) -> list[tuple[str, str, str, float, float]]:
    """(run, kind, case, measured s, relative error) of every micro measurement, on a host of factor 1."""
    rows = []
    for run in micro:
        latency = run.latency(calibration)
        for row in run.tables["decode"].itertuples():
            case = f"batch {row.batch}, {row.distinct_adapters} adapters, rank {row.rank}, context {row.prompt_tokens}"
            rows.append((run.name, "decode", case, row.itl_p50_s, decode_itl_s(latency, row) / row.itl_p50_s - 1.0))
        for row in prefill_rows(run).itertuples():
            found = lone_ttft_s(latency, row.prompt_tokens, row.rank > 0, None, 1)
            case = f"{row.prompt_tokens} tokens, rank {row.rank}"
            rows.append((run.name, "prefill", case, row.ttft_s, found / row.ttft_s - 1.0))
        for rank, tier, measured in load_rows(run) if "load" in run.tables else ():
            found = lone_ttft_s(latency, 32, True, (rank, tier) if tier else None, 2)
            rows.append((run.name, "load", f"rank {rank} from {tier or 'slot'}", measured, found / measured - 1.0))
    return rows


def trace_errors(calibration: Calibration, run: Run, scale: float = 1.0) -> tuple[dict[str, float], dict[str, float]]:
    """Measured metrics, and those of a replay."""
    table = run.tables["requests"].sort_values("arrival_s", kind="stable")
    columns = [table[name].to_numpy() for name in ("arrival_s", "output_tokens", "ttft_s", "e2e_s")]
    _, requests = replay(run, calibration, scale)
    return metrics(*columns), metrics(*times(run, requests))


Comparison = tuple[dict[str, float], dict[str, float], dict[str, float], dict[str, float]]
"""Measured, predicted, and predicted with all step times 5 % shorter and longer."""


def compare(calibration: Calibration, run: Run) -> Comparison:
    measured, found = trace_errors(calibration, run)
    return measured, found, trace_errors(calibration, run, 0.95)[1], trace_errors(calibration, run, 1.05)[1]


def print_traces(title: str, results: dict[str, Comparison]) -> None:
    """y: within the aim; b: outside, but the measured value lies in the band of step times x0.95 to x1.05; n: not."""
    print(f"\n{title}\nrun                req/s                 TPOT mean ms          TTFT mean s           TTFT p99 s")
    names = ("request_throughput_rps", "tpot_mean_s", "ttft_mean_s", "ttft_p99_s")
    for run, (measured, found, short, long) in results.items():
        limits = LIMITS["light" if measured["ttft_mean_s"] < 0.5 else "heavy"]
        errors = [found[name] / measured[name] - 1.0 for name in names]
        cells = []
        for name, error in zip(names, errors, strict=True):
            unit = 1e3 if name == "tpot_mean_s" else 1.0
            cells.append(f"{measured[name] * unit:6.3f}{found[name] * unit:7.3f} {error:+6.1%}")
        inside = [min(short[n], long[n]) <= measured[n] <= max(short[n], long[n]) for n in names]
        met = "".join(
            "y" if abs(error) <= limit else "b" if band else "n"
            for error, limit, band in zip(errors, limits, inside, strict=True)
        )
        print(f"{run:18s}" + "  ".join(cells) + "  " + met)


def leave_one_out(
    base: Calibration, micro: list[Run], traces: list[Run], factor_b: float, folder: Path | None
) -> dict[str, Any]:
    """Every trace predicted by a fit that never saw it; the fits go to folder/without-RUN.json."""
    results = {}
    for held in traces:
        others = [run for run in traces if run is not held]
        calibration, factors = fit(base, micro, others)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            data = describe(calibration, factors | {"B": factor_b}, {}, [run.name for run in micro + others])
            data["provenance"]["host_factors"] = {"A": 1.0, "B": round(factor_b, 3)}
            (folder / f"without-{held.name}.json").write_text(json.dumps(data, indent=1) + "\n")
        factor = factor_b if held.machine == "B" else 1.0
        results[held.name] = compare(scale_host(calibration, factor), held)
    return results


# --- the file --------------------------------------------------------------------------------------------------------


def describe(
    calibration: Calibration,
    factors: dict[str, float],
    errors: dict[str, tuple[float, float | None]],
    runs: list[str],
) -> Any:
    """The calibration as JSON, with provenance, errors and ranges; runs: names of those it was fitted to."""
    data = calibration.model_dump(mode="json", by_alias=True, exclude={"extrapolated", "notes"})
    data["provenance"] |= {
        "command": COMMAND,
        "source_runs": [*runs, "kernels-h200.jsonl"],
        "host_factors": {machine: round(machine_factor(factors, machine), 3) for machine in ("A", "B")},
    }
    for term, (fitted, held_out) in errors.items():
        data["terms"][term]["fit_error"] = round(fitted, 4)
        data["terms"][term]["held_out_error"] = None if held_out is None else round(held_out, 4)
    for term in data["terms"].values():
        if term is not None:
            term["parameters"] = {name: _rounded(value) for name, value in term["parameters"].items()}
    shipped = load_calibration("nvidia-h200").model_dump(mode="json", by_alias=True)["terms"]
    data["terms"] |= {name: shipped[name] for name in MEASURED_APART}
    return data


def _rounded(value: float | bool | None) -> float | bool | None:
    """Six digits, where it is a number."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-hold-out", action="store_true", help="skip the leave-one-trace-out table")
    parser.add_argument("--out", type=Path, default=TARGET)
    parser.add_argument("--held-out", type=Path, help="folder for the leave-one-out fits, for benchmarks/accuracy.py")
    options = parser.parse_args()
    micro, traces = read_runs("micro"), read_runs("trace")
    base = skeleton()
    kernels, kernel_fit, kernel_held = kernel_errors(base)
    base = with_parameters(base, kernels)
    calibration, factors = fit(base, micro, traces)
    factor_b = machine_factor(factors, "B")
    print("host factors by engine process:", {name: round(value, 3) for name, value in factors.items()})
    rows = micro_errors(calibration, micro)
    for run_name, kind, case, measured, error in rows:
        print(f"{run_name:13s} {kind:8s} {case:44s} {measured * 1e3:8.2f} ms {error:+7.1%}")
    scaled = {"A": calibration, "B": scale_host(calibration, factor_b)}
    print_traces("fitted on all traces", {run.name: compare(scaled[run.machine], run) for run in traces})
    decode = rms([row[4] for row in rows if row[1] == "decode"])
    prefill = rms([row[4] for row in rows if row[1] == "prefill"])
    loads = rms([row[4] for row in rows if row[1] == "load"])
    held: float | None = None
    if not options.no_hold_out:
        results = leave_one_out(base, micro, traces, factor_b, options.held_out)
        print_traces("leave one trace out", results)
        held = rms([found["tpot_mean_s"] / measured["tpot_mean_s"] - 1.0 for measured, found, _, _ in results.values()])
    errors = {
        "lora_kernels": (kernel_fit, kernel_held),
        "operators": (decode, held),
        "attention": (decode, held),
        "host": (prefill, held),
        "copies": (loads, None),
    }
    names = [run.name for run in micro + traces]
    options.out.write_text(json.dumps(describe(calibration, factors, errors, names), indent=1) + "\n")
    print("wrote", options.out)


if __name__ == "__main__":
    main()
