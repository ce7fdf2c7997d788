"""Accuracy on S-LoRA's published runs on an A10G and an A100-80GB: reports/accuracy-slora.md.

    python studies/accuracy_slora.py FILE.csv [--json OUT.json]

The engine is the published code (artifact: true) with the pool sizes of the authors' scripts. Nothing is calibrated on
these GPUs or fitted to these rows: operators are a roofline, host and copies are carried over from another machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import report_file
from slora_rows import GPUS, POOL, SloraRow, adapters_of, read_rows, requests_of

from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate

REPORT = Path(__file__).resolve().parents[1] / "reports" / "accuracy-slora.md"
BESIDE = 2400
OBJECTIVE_S = 6.0
THROUGHPUT, SYSTEM_THROUGHPUT, LOSS = 0.10, 0.25, 0.02
"""Largest |error| of the throughput of S-LoRA, of the two other systems, and of the loss from 1 to 200 adapters."""
KNEE_S = 6.0
"""A rate sweep's knee: the mean time to the first token passes this."""
NAMES = {"slora": "S-LoRA", "no_mem": "no unified memory", "bmm": "padded BMM"}
HEAD = (
    "GPU", "setting", "system", "adapters", "req/s offered", "cv", "pool", "req/s completed: measured", "simulated",
    "error", "mean TTFT: measured", "simulated", "within 6 s: measured", "simulated",
)  # fmt: skip
CAUSES = {
    "padded BMM on the A10G within 25 %": "steps with 20 adapters or more wait for the host, which launches 4.5 "
    "kernels and takes 13 to 15 views for each run of requests of one adapter, each layer and each of q, k, v and o; "
    "what a launch and a view take is measured on another host with a later PyTorch. One adapter of rank 8 (S1) was "
    "measured slower than one of rank 64 (S2), which nothing in the code explains",
}
"""What a miss comes from."""
LARGE_BATCHES = (
    "S-LoRA's rows there are 6 to 19 % too fast. 125 to 220 requests run at once, on the A10G 25. What grows with them "
    "in the published code and is in no term: before it samples, a Python loop lists every distinct token that the "
    "running requests have generated (get_post_sample_tensors in slora/server/router/model_infer/infer_batch.py), and "
    "the sampler sorts all probabilities of all requests (post_process.py). The loop, rebuilt, took 4.0 ms for 216 "
    "requests of 130 tokens on another CPU; as 5.2 ms, by the two CPUs' Python loops, it would bring the means of S1 "
    "and S2 from +6 and +17 % to +3 and +11 %. The sort was not timed. Token attention slower than at 80 % of the "
    "memory's rate does not fit both GPUs: at three quarters of that the means would be -1 and +6 %, but the A10G's "
    "-7 % in place of -3 %. Padded BMM waits for the host as on the A10G."
)
"""What the rows on the larger GPU come from."""
ABOUT = (
    "Llama-7B; prompts and outputs of 8 to 511 tokens, generator and seed as published; uniform popularity; pool sizes "
    "(max_total_token_num) from the authors' scripts. engine: slora with artifact: true. No unified memory: "
    "unified_memory: false, adapters outside a smaller KV pool, which they are still charged against; padded BMM: "
    "that with kernels: padded-bmm. No calibration is of these GPUs: a roofline of the datasheet, host and copies of "
    "another machine; no constant is fitted to these rows."
)


@dataclass(frozen=True)
class Result:
    """A row and what the simulation gives for it."""

    row: SloraRow
    throughput_rps: float
    latency_s: float
    ttft_s: float
    attainment: float

    @property
    def error(self) -> float:
        return self.throughput_rps / self.row.throughput_rps - 1


def run(path: Path, json_path: Path | None) -> str:
    """Simulate the rows; writes them where asked to, and returns the report (Markdown)."""
    results = [play(row) for row in read_rows(path)]
    if json_path is not None:
        rows = [vars(result.row) | {"simulated": _simulated(result)} for result in results]
        report_file.write(json_path, json.dumps({"targets": verdicts(results), "rows": rows}, indent=1) + "\n")
    return report(results)


def play(row: SloraRow, **engine: Any) -> Result:
    """One published run, simulated. engine: settings to change."""
    log = simulate(build_inputs(scenario_of(row, **engine), adapters_of(row), requests_of(row)))
    requests = log.requests
    ttft_s = requests.first_token_s - requests.arrival_s
    return Result(
        row,
        len(ttft_s) / log.end_s,
        float(np.mean(requests.last_token_s - requests.arrival_s)),
        float(np.mean(ttft_s)),
        float(np.mean(ttft_s < OBJECTIVE_S)),
    )


def scenario_of(row: SloraRow, **engine: Any) -> Scenario:
    """The row as a scenario. Beside a KV pool that does not hold adapters these get what the larger pool would have
    taken, or BESIDE rows: more than the running requests need."""
    ranks, separate = row.ranks, {}
    if row.system != "slora":
        rows = min(4 * sum(ranks), max(POOL[row.device] - row.pool_tokens, BESIDE))
        separate = {"unified_memory": False, "pool_size_lora": rows}
    kernels = {"kernels": "padded-bmm"} if row.system == "bmm" else {}
    name = f"{row.device} {row.setting} {row.system}, {row.adapters} adapters, {row.rate_rps:g} rps, cv {row.cv:g}"
    return scenario_from_dict(
        {
            "name": name,
            "model": "llama-2-7b",
            "gpu": GPUS[row.device],
            "engine": {
                "kind": "slora",
                "artifact": True,
                "max_total_token_num": row.pool_tokens,
                "max_model_len": 3072,
                "gpu_memory_utilization": 0.99,
                **separate,
                **kernels,
                **engine,
            },
            "adapters": {"count": row.adapters, "ranks": {rank: ranks.count(rank) / len(ranks) for rank in set(ranks)}},
            "storage": {"host_gib": 1024},
        }
    )


# --- targets ----------------------------------------------------------------------------------------------------


def verdicts(results: list[Result]) -> dict[str, dict[str, Any]]:
    """Target -> {met, figure}."""
    a10g = [result for result in results if result.row.device == "a10g"]
    own = [result for result in a10g if result.row.system == "slora"]
    out = {"throughput of S-LoRA on the A10G within 10 %": _within(own, THROUGHPUT)}
    for setting in ("S1", "S2"):
        out[f"knee of the rate sweep, {setting}"] = _knee(_sweep(own, setting, "rate"))
        out[f"loss from 1 to 200 adapters, {setting}, within 2 points"] = _loss(_sweep(own, setting, "adapters"))
    for system in ("no_mem", "bmm"):
        others = [result for result in a10g if result.row.system == system]
        out[f"{NAMES[system]} on the A10G within 25 %"] = _within(others, SYSTEM_THROUGHPUT)
    out["S-LoRA before no unified memory before padded BMM"] = _order(results)
    return out


def _sweep(results: Iterable[Result], setting: str, sweep: str) -> list[Result]:
    """The rows of a sweep, wherever they were published: the rest of the workload is the sweep's."""
    fixed: dict[str, Callable[[SloraRow], bool]] = {
        "rate": lambda row: row.adapters == 200 and row.cv == 1,
        "adapters": lambda row: row.rate_rps == 2 and row.cv == 1,
    }
    rows = [result for result in results if result.row.setting == setting and fixed[sweep](result.row)]
    return sorted(rows, key=lambda result: (result.row.rate_rps, result.row.adapters))


def _within(results: list[Result], limit: float) -> dict[str, Any]:
    errors = [result.error for result in results]
    worst = max(results, key=lambda result: abs(result.error))
    inside = sum(abs(error) <= limit for error in errors)
    mean = float(np.mean(np.abs(errors)))
    figure = f"{inside} of {len(errors)} rows; mean {mean:.1%}, largest {worst.error:+.1%} ({_label(worst.row)})"
    return {"met": inside == len(errors), "figure": figure}


def _knee(results: list[Result]) -> dict[str, Any]:
    """The first rate at which requests wait: the same one measured and simulated."""

    def knee(ttft_s: Callable[[Result], float]) -> float | None:
        return next((result.row.rate_rps for result in results if ttft_s(result) > KNEE_S), None)

    measured, simulated = knee(lambda result: result.row.ttft_s), knee(lambda result: result.ttft_s)
    return {"met": measured == simulated, "figure": f"measured {measured} requests/s, simulated {simulated}"}


def _loss(results: list[Result]) -> dict[str, Any]:
    first, last = results[0], results[-1]
    measured = 1 - last.row.throughput_rps / first.row.throughput_rps
    simulated = 1 - last.throughput_rps / first.throughput_rps
    met = abs(simulated - measured) <= LOSS
    return {"met": met, "figure": f"measured {measured:.1%}, simulated {simulated:.1%}"}


def _order(results: list[Result]) -> dict[str, Any]:
    """Workloads that all three systems were given, where the measured order is the expected one."""
    by_workload: dict[tuple[object, ...], dict[str, Result]] = {}
    for result in results:
        by_workload.setdefault(result.row.workload, {})[result.row.system] = result
    rows = [found for found in by_workload.values() if len(found) == len(NAMES)]
    clear = [found for found in rows if _falls([found[name].row.throughput_rps for name in NAMES])]
    right = sum(_falls([found[name].throughput_rps for name in NAMES]) for found in clear)
    return {"met": right == len(clear), "figure": f"{right} of {len(clear)} workloads (of {len(rows)}) measured so"}


def _falls(values: list[float]) -> bool:
    return values == sorted(values, reverse=True)


# --- text -------------------------------------------------------------------------------------------------------


def report(results: list[Result]) -> str:
    lines = ["# Accuracy on S-LoRA's published runs", ""]
    lines += [
        "Written by `python studies/accuracy_slora.py FILE.csv`.",
        "",
        ABOUT,
        "",
        "## Targets",
        "",
        "| target | result |  |",
        "|---|---|---|",
    ]
    for name, verdict in verdicts(results).items():
        missed = f"missed: {CAUSES[name]}" if name in CAUSES else "missed"
        lines.append(f"| {name} | {verdict['figure']} | {'met' if verdict['met'] else missed} |")
    lines += ["", "## Rows on the A100-80", "", LARGE_BATCHES, "", "## Rows", ""]
    lines += ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    return "\n".join([*lines, *(_line(result) for result in results), ""])


def _line(result: Result) -> str:
    row = result.row
    cells = [row.device, row.setting, NAMES[row.system], row.adapters, f"{row.rate_rps:g}", f"{row.cv:g}"]
    cells += [row.pool_tokens, f"{row.throughput_rps:.3f}", f"{result.throughput_rps:.3f}", f"{result.error:+.1%}"]
    cells += [f"{row.ttft_s:.1f} s", f"{result.ttft_s:.1f} s", f"{row.attainment:.2f}", f"{result.attainment:.2f}"]
    return "| " + " | ".join(map(str, cells)) + " |"


def _label(row: SloraRow) -> str:
    return f"{row.setting}, {row.adapters} adapters, {row.rate_rps:g} requests/s, cv {row.cv:g}"


def _simulated(result: Result) -> dict[str, float]:
    names = ("throughput_rps", "latency_s", "ttft_s", "attainment")
    return {name: getattr(result, name) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="FILE.csv", help="the published rows")
    parser.add_argument("--json", type=Path, help="write the rows and verdicts there")
    parser.add_argument("--out", type=Path, default=REPORT)
    args = parser.parse_args()
    text = run(args.data, args.json)
    report_file.write(args.out, text)
    print(text)


if __name__ == "__main__":
    main()
