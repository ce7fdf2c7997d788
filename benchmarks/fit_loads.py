"""Fits adapter loads and the front end. Called by fit_first_calibration.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from fit_terms import Key, lone_ttft_s, process_of, with_parameters
from replay_vllm import Limits, Replay, Request
from scipy.optimize import least_squares
from truth_runs import Run

from simlora.latency.calibration import Calibration
from simlora.latency.scaling import scale_host
from simlora.latency.step import DISK, HOST

LOAD_PRIORS: dict[Key, tuple[float, float]] = {
    ("copies", "module_s"): (70e-6, 1.0),
    ("copies", "mismatch_module_s"): (10e-6, 0.3),  # 10 to 27 % of the whole on an older engine
    ("copies", "disk_module_s"): (200e-6, 1.0),
    ("copies", "disk_bytes_per_s"): (1e9, 1.0),
}
LOAD_ERROR, EARLY_ERROR = 0.07, 0.22
EARLY_S = 5.0
"""Requests that arrive before this time feel the loads of a trace that starts without its adapters."""

PHASES = {"cold": DISK, "warm": HOST, "hot": None}


def pinned_copy_bytes_per_s(rows: list[dict[str, float]]) -> float:
    """Rate of large pinned copies, from the two largest sizes measured."""
    last, first = rows[-1], rows[-3]
    return (last["h2d_bytes"] - first["h2d_bytes"]) / (last["pinned"] - first["pinned"])


def _from_disk(run: Run) -> set[int]:
    """Adapters of a trace that were neither in a slot nor in the host's cache when it began."""
    initial = run.meta["initial_adapters"]
    if not run.engine.enable_lora or not initial:
        return set()
    return set(run.tables["requests"].adapter) - {0, *initial["gpu"], *initial["host"]}


def load_rows(run: Run) -> list[tuple[int, str | None, float]]:
    """(rank, tier, median TTFT) of the load table; warm adapters that never left their slots count as hot."""
    rows = []
    for (rank, phase), group in run.tables["load"].groupby(["rank", "phase"]):
        many = group["repeat"].nunique() > run.engine.max_loras if phase == "warm" else True
        rows.append((int(rank), PHASES[phase] if many else None, float(group.ttft_s.median())))
    return rows


class LoadFit:
    """Load terms from the load tables, and from the first seconds of traces that start without their adapters."""

    def __init__(self, base: Calibration, factors: dict[str, float], micro: list[Run], traces: list[Run]) -> None:
        self.base, self.factors, self.micro = base, factors, [run for run in micro if "load" in run.tables]
        self.traces = [run for run in traces if len(_from_disk(run)) >= 3]

    def solve(self) -> dict[Key, float]:
        keys = list(LOAD_PRIORS)
        start = [math.log(LOAD_PRIORS[key][0]) for key in keys]
        solution = least_squares(
            lambda x: self._residuals(dict(zip(keys, np.exp(x).tolist(), strict=True))), start, diff_step=0.02
        ).x
        return dict(zip(keys, np.exp(solution).tolist(), strict=True))

    def _residuals(self, values: dict[Key, float]) -> Any:
        calibration = with_parameters(self.base, values)
        out = []
        for run in self.micro:
            latency = run.latency(scale_host(calibration, self.factors[process_of(run)]))
            for rank, tier, measured in load_rows(run):
                load = (rank, tier) if tier else None
                out.append(math.log(lone_ttft_s(latency, 32, True, load, 2) / measured) / LOAD_ERROR)
        for run in self.traces:
            early = run.tables["requests"].sort_values("arrival_s", kind="stable").query(f"arrival_s < {EARLY_S}")
            _, requests = replay(run, scale_host(calibration, self.factors[process_of(run)]), until_s=2.0 * EARLY_S)
            ttft = np.mean([r.token_s[0] - r.arrival_s for r in requests[: len(early)] if r.token_s])
            out.append(math.log(float(ttft) / early.ttft_s.mean()) / EARLY_ERROR)
        out += [math.log(values[key] / mean) / width for key, (mean, width) in LOAD_PRIORS.items()]
        return np.array(out)


# --- replay and front end --------------------------------------------------------------------------------------------


def replay(
    run: Run, calibration: Calibration, step_scale: float = 1.0, until_s: float = 1e9
) -> tuple[Replay, list[Request]]:
    """The trace's requests through the scheduler replay."""
    table = run.tables["requests"].sort_values("arrival_s", kind="stable")
    limits, engine = run.meta["resolved"], run.engine
    bounds = Limits(
        limits["max_num_seqs"], limits["max_num_batched_tokens"], limits["num_gpu_blocks"], limits["block_size"],
        engine.max_loras, limits["max_cpu_loras"] or 1,
    )  # fmt: skip
    latency = run.latency(calibration)
    player = Replay(latency.scaled(step_scale), bounds, run.meta["initial_adapters"], engine.enable_lora)
    columns = (table.arrival_s, table.adapter, table["rank"], table.prompt_tokens, table.output_tokens)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    return player, player.run(rows, until_s=min((run.meta["cut_s"] or 1e9) + 5.0, until_s))


def times(run: Run, requests: list[Request]) -> tuple[Any, Any, Any, Any]:
    """arrival, output tokens, TTFT and E2E of a replay; NaN where it did not finish by the recording's cut."""
    cut = run.meta["cut_s"] or math.inf
    arrival = np.array([request.arrival_s for request in requests])
    output = np.array([request.output for request in requests])
    ttft = np.array([r.token_s[0] - r.arrival_s if r.token_s else math.nan for r in requests])
    done = [len(r.token_s) == r.output and r.token_s[-1] <= cut for r in requests]
    e2e = np.array([r.token_s[-1] - r.arrival_s if ok else math.nan for r, ok in zip(requests, done, strict=True)])
    return arrival, output, ttft, e2e


def fit_front_end(calibration: Calibration, factors: dict[str, float], traces: list[Run]) -> dict[Key, float]:
    """Growth of the way out with the requests that run: what lightly loaded traces take beyond a replay without it."""
    calibration = with_parameters(calibration, {("front_end", "out_request_s"): 0.0})
    running: list[float] = []
    beyond: list[float] = []
    for run in traces:
        player, requests = replay(run, scale_host(calibration, factors[process_of(run)]))
        del player
        table = run.tables["requests"].sort_values("arrival_s", kind="stable")
        _, _, ttft, _ = times(run, requests)
        difference = table.ttft_s.to_numpy() - ttft
        if np.nanmean(table.ttft_s) > 0.1:
            continue
        count = _running_at(run)
        running += count.tolist()
        beyond += difference.tolist()
    others, target = np.array(running) - 1.0, np.array(beyond)
    slope = least_squares(lambda x: (others * x[0] - target) / 0.003, [1e-5], loss="soft_l1").x[0]
    return {("front_end", "out_request_s"): max(float(slope), 0.0)}


def _running_at(run: Run) -> Any:
    """Requests in the system when each request's first token came, from the recording itself."""
    table = run.tables["requests"].sort_values("arrival_s", kind="stable")
    first = (table.arrival_s + table.ttft_s).to_numpy()
    begin, end = np.sort(first), np.sort((table.arrival_s + table.e2e_s).to_numpy())
    return np.searchsorted(begin, first, side="right") - np.searchsorted(end, first, side="left")
