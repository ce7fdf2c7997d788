"""Synthetic run logs for the tests of results and reports.

play() is a tiny serving engine (FCFS, one prompt per step in full, seats and adapter slots, host and GPU in turn) that
keeps its own account of where request time goes. random_log() is fast, large and only loosely consistent.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from simlora.engines.run_log import RUN_COLUMNS
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario
from simlora.sim.log import ReplicaLog, RequestLog, SimulationLog

HOST_S, BASE_S, ATTENTION_S, LORA_S, COLLECTIVE_S, LOAD_S = 0.002, 0.005, 0.001, 0.003, 0.0005, 0.018
IN_S, OUT_S = 0.001, 0.004
"""Front end: delay of a request on its way in, and of its tokens on their way out."""


def scenario(**changes: dict) -> Scenario:
    data: dict = {
        "name": "synthetic",
        "model": "llama-3.1-8b",
        "gpu": "h200-141gb",
        "engine": {
            "max_loras": 2,
            "max_lora_rank": 64,
            "max_cpu_loras": 8,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 512,
        },
        "adapters": {"count": 4, "ranks": {8: 0.5, 64: 0.5}},
        "slo": {"ttft_s": 0.5, "tpot_s": 0.05},
    }
    return scenario_from_dict(data | changes)


@dataclass
class _Request:
    index: int
    routed_s: float
    adapter: int
    output: int
    left: int = 0
    admitted_s: float = float("nan")
    first_s: float = float("nan")
    last_s: float = float("nan")
    load_s: float = 0.0
    tier: int = 0
    first_run: int = -1
    last_run: int = -1
    token_times: list[float] = field(default_factory=list)


class Played:
    """A log and what really happened: request-seconds by category, and all token times."""

    def __init__(self, log: SimulationLog, spent: dict[str, float], tokens: list[list[float]]) -> None:
        self.log, self.spent, self.tokens = log, spent, tokens


def play(
    arrival_s: list[float],
    adapters: list[int],
    outputs: list[int],
    seats: int = 4,
    slots: int = 2,
    coalesce: bool = True,
    cut_s: float | None = None,
    **changes: dict,
) -> Played:
    """Serve the requests on one replica, to the end or to cut_s."""
    order = np.argsort(np.array(arrival_s), kind="stable")
    requests = [_Request(i, arrival_s[j] + IN_S, adapters[j], outputs[j]) for i, j in enumerate(order)]
    arrivals = [arrival_s[j] for j in order]
    engine = _Engine(requests, seats, slots, coalesce, cut_s)
    engine.run()
    end_s = cut_s if cut_s is not None else engine.now_s + OUT_S
    ranks = [0 if r.adapter == 0 else 8 if r.adapter % 2 else 64 for r in requests]
    done = [not np.isnan(r.last_s) for r in requests]
    log = RequestLog(
        arrival_s=np.array(arrivals),
        adapter=_ints([r.adapter for r in requests]),
        rank=_ints(ranks),
        prompt_tokens=_ints([32] * len(requests)),
        output_tokens=_ints([r.output for r in requests]),
        status=_ints([0 if ok else 2 for ok in done]),
        replica=_ints([0] * len(requests)),
        routed_s=np.array([r.routed_s for r in requests]),
        admitted_s=np.array([r.admitted_s for r in requests]),
        first_token_s=np.array([r.first_s for r in requests]),
        last_token_s=np.array([r.last_s for r in requests]),
        preemptions=_ints([0] * len(requests)),
        recomputed_tokens=_ints([0] * len(requests)),
        cached_tokens=_ints([0] * len(requests)),
        load_tier=_ints([r.tier for r in requests]),
        load_s=np.array([r.load_s for r in requests]),
        first_run=_ints([r.first_run for r in requests]),
        last_run=_ints([r.last_run for r in requests]),
    )
    replica = ReplicaLog(
        runs={name: np.array([row[i] for row in engine.rows], dtype=float) for i, name in enumerate(RUN_COLUMNS)},
        async_scheduling=False,
        gpus=1,
        kv_blocks=1000,
        block_size=16,
        slots=slots,
        gpu_hits=engine.hits,
        host_hits=engine.loads,
        disk_loads=0,
        remote_loads=0,
        load_bytes=engine.loads * 1_000_000,
        evictions=max(engine.loads - slots, 0),
        preemptions=0,
        start_s=30.0,
    )
    # What the engine cannot see: the way in, and the way out of each token that ends a phase.
    spent = engine.spent
    for request, arrival in zip(requests, arrivals, strict=True):
        spent["route"] += request.routed_s - arrival
        spent["host"] += OUT_S if not np.isnan(request.last_s) else 0.0
    log_ = SimulationLog(
        scenario(**changes), log, (replica,), end_s, {}, {"id": "test", "sha256": "0" * 64}, ("a note",)
    )
    return Played(log_, spent, [r.token_times for r in requests])


class _Engine:
    def __init__(self, requests: list[_Request], seats: int, slots: int, coalesce: bool, cut_s: float | None) -> None:
        self.coming, self.seats, self.slots, self.coalesce, self.cut_s = list(requests), seats, slots, coalesce, cut_s
        self.waiting: list[_Request] = []
        self.running: list[_Request] = []
        self.resident: list[int] = []
        self.now_s = 0.0
        self.rows: list[list[float]] = []
        self.hits = self.loads = 0
        names = ("slots", "kv", "seqs", "tokens")
        self.spent = dict.fromkeys([f"queue_{name}" for name in names], 0.0) | dict.fromkeys(
            ("route", "load", "prefill", "decode_base", "decode_lora", "host", "collective"), 0.0
        )

    def run(self) -> None:
        while self.coming or self.waiting or self.running:
            if not self.waiting and not self.running:
                self.now_s = max(self.now_s, self.coming[0].routed_s)
            if self.cut_s is not None and self.now_s >= self.cut_s:
                return
            self._arrived()
            prefill, load_s = self._admit()
            self._step(prefill, load_s)

    def _arrived(self) -> None:
        while self.coming and self.coming[0].routed_s <= self.now_s:
            self.waiting.append(self.coming.pop(0))

    def _admit(self) -> tuple[_Request | None, float]:
        """At most one request a step; requests whose adapter finds no slot are passed over."""
        active = {r.adapter for r in self.running if r.adapter}
        for request in self.waiting if len(self.running) < self.seats else []:
            if request.adapter and request.adapter not in active and len(active) >= self.slots:
                continue
            self.waiting.remove(request)
            self.running.append(request)
            request.admitted_s = self.now_s
            return request, self._load(request, active)
        return None, 0.0

    def _load(self, request: _Request, active: set[int]) -> float:
        if not request.adapter:
            return 0.0
        if request.adapter in self.resident:
            self.hits += 1
            return 0.0
        if len(self.resident) >= self.slots:
            self.resident.remove(next(adapter for adapter in self.resident if adapter not in active))
        self.resident.append(request.adapter)
        self.loads += 1
        request.tier, request.load_s = 1, LOAD_S
        return LOAD_S

    def _step(self, prefill: _Request | None, load_s: float) -> None:
        decoding = [r for r in self.running if r is not prefill]
        lora_s = LORA_S if any(r.adapter for r in self.running) else 0.0
        gpu_s = BASE_S + ATTENTION_S + lora_s + COLLECTIVE_S
        gap_s = HOST_S + gpu_s
        steps = self._horizon(prefill, decoding, gap_s)
        start_s, first_gap_s = self.now_s, gap_s + load_s
        if self.cut_s is not None and start_s + first_gap_s + gap_s * (steps - 1) > self.cut_s:
            self.now_s = self.cut_s  # what has not ended leaves nothing behind
            return
        boundaries = [start_s + first_gap_s + gap_s * i for i in range(steps)]
        end_s = boundaries[-1]
        active = {r.adapter for r in self.running if r.adapter}
        waiting = dict.fromkeys(("slots", "kv", "seqs", "tokens"), 0.0)
        for request in self.waiting:
            blocked = request.adapter and request.adapter not in active and len(active) >= self.slots
            waiting["slots" if blocked else "seqs" if len(self.running) >= self.seats else "tokens"] += end_s - start_s
        for request in self.coming:
            if request.routed_s < end_s:
                waiting["tokens"] += end_s - request.routed_s
        for name, value in waiting.items():
            self.spent[f"queue_{name}"] += value
        self._account(prefill, len(decoding), steps, load_s, lora_s)
        duration = end_s - start_s
        row = [start_s, first_gap_s, len(decoding), gap_s, 0.0, steps, len(decoding), int(prefill is not None)]
        row += [32 if prefill else 0, 40 * len(decoding), len(self.running)]
        row += [waiting[name] / duration for name in ("slots", "kv", "seqs", "tokens")]
        row += [len(active), 3 * len(self.running), HOST_S, load_s, BASE_S, ATTENTION_S, lora_s, COLLECTIVE_S, 0.25]
        self.rows.append([*row, 0])  # no preemptions
        self._emit(prefill, decoding, boundaries)
        self.now_s = end_s

    def _horizon(self, prefill: _Request | None, decoding: list[_Request], gap_s: float) -> int:
        if prefill is not None or not self.coalesce:
            return 1
        steps = min(r.left for r in decoding)
        until = ([self.coming[0].routed_s] if self.coming else []) + ([self.cut_s] if self.cut_s is not None else [])
        for instant in until:
            steps = min(steps, max(1, int(np.ceil((instant - self.now_s) / gap_s))))
        return steps

    def _account(self, prefill: _Request | None, decoding: int, steps: int, load_s: float, lora_s: float) -> None:
        for name, value in (
            ("decode_base", BASE_S + ATTENTION_S),
            ("decode_lora", lora_s),
            ("collective", COLLECTIVE_S),
        ):
            self.spent[name] += decoding * steps * value
        self.spent["host"] += decoding * steps * HOST_S
        self.spent["load"] += (decoding + (prefill is not None)) * load_s
        if prefill is not None:
            self.spent["prefill"] += HOST_S + BASE_S + ATTENTION_S + lora_s + COLLECTIVE_S

    def _emit(self, prefill: _Request | None, decoding: list[_Request], boundaries: list[float]) -> None:
        run = len(self.rows) - 1
        if prefill is not None:
            prefill.left = prefill.output - 1
            prefill.first_s, prefill.first_run = boundaries[-1] + OUT_S, run
            prefill.token_times.append(boundaries[-1])
        for request in decoding:
            request.token_times += boundaries
            request.left -= len(boundaries)
        for request in [r for r in self.running if r.left == 0]:
            self.running.remove(request)
            request.last_s, request.last_run = request.token_times[-1] + OUT_S, run


def random_log(requests: int, runs: int, seed: int = 1, replicas: int = 1, adapters: int = 100) -> SimulationLog:
    """Plausible sizes and order of times, for speed and for laws that hold for any log."""
    rng = np.random.default_rng(seed)
    replica_logs, ends = [], []
    for _ in range(replicas):
        steps = rng.integers(1, 20, runs)
        columns = {name: np.zeros(runs) for name in RUN_COLUMNS}
        columns |= {
            "steps": steps.astype(float),
            "gap_s": rng.uniform(0.005, 0.03, runs),
            "slope_s": rng.uniform(0, 1e-6, runs),
        }
        columns["first_gap_s"] = columns["gap_s"] * rng.uniform(1, 1.3, runs)
        later = steps - 1
        duration = columns["first_gap_s"] + columns["gap_s"] * later + columns["slope_s"] * (later * (later - 1) / 2)
        columns["start_s"] = np.cumsum(duration) - duration
        for name in ("decode_count", "running", "first_weight", "num_adapters"):
            columns[name] = rng.integers(0, 60, runs).astype(float)
        for name in ("waiting_slots", "waiting_kv", "waiting_seqs", "waiting_tokens", "load_s"):
            columns[name] = np.where(rng.random(runs) < 0.2, rng.integers(0, 5, runs), 0) * (
                0.01 if name == "load_s" else 1.0
            )
        for name, share in (
            ("host_s", 0.3),
            ("base_s", 0.5),
            ("attention_s", 0.1),
            ("lora_s", 0.2),
            ("collective_s", 0.05),
        ):
            columns[name] = columns["gap_s"] * share
        columns["kv_used_blocks"] = rng.uniform(0, 1000, runs)
        columns["prefill_tokens"] = np.where(rng.random(runs) < 0.2, rng.integers(1, 500, runs), 0).astype(float)
        columns["context_tokens"] = columns["decode_count"] * 500
        columns["waste_rank_fraction"] = rng.random(runs)
        ends.append(float(columns["start_s"][-1] + duration[-1]) if runs else 100.0)
        replica_logs.append(_random_replica(columns, rng))
    end_s = max(ends)
    log = _random_requests(rng, requests, replica_logs, end_s, adapters)
    calibration = {"id": "random", "sha256": "f" * 64}
    extrapolated = {"lora.slots": end_s * 0.1, "base.context": 0.0}
    return SimulationLog(scenario(), log, tuple(replica_logs), end_s, extrapolated, calibration)


def _random_replica(columns: dict[str, np.ndarray], rng: np.random.Generator) -> ReplicaLog:
    hits = rng.integers(0, 1000, 4).tolist()
    return ReplicaLog(columns, True, 1, 1000, 16, 32, *hits, int(sum(hits)) * 1_000_000, hits[1], 7, 60.0)


def _random_requests(
    rng: np.random.Generator, n: int, replicas: list[ReplicaLog], end_s: float, adapters: int
) -> RequestLog:
    arrival = np.sort(rng.uniform(0, end_s * 0.9, n))
    replica = rng.integers(0, len(replicas), n)
    routed = arrival + 0.001
    admitted = routed + rng.exponential(0.05, n)
    first = admitted + rng.exponential(0.1, n) + 0.02
    last = first + rng.exponential(3.0, n)
    first_run, last_run = np.full(n, -1), np.full(n, -1)
    for index, one in enumerate(replicas):
        own, starts = replica == index, one.runs["start_s"]
        if len(starts):
            first_run[own] = np.searchsorted(starts, first[own] - 0.01, side="right") - 1
            last_run[own] = np.maximum(np.searchsorted(starts, last[own], side="right") - 1, first_run[own])
    status = np.where(last < end_s, 0, 2)
    status[rng.random(n) < 0.01] = 1
    nothing = status == 1
    waiting = (status == 2) & (rng.random(n) < 0.5)
    adapter = np.minimum(rng.zipf(1.5, n) - 1, adapters)
    hide = np.where(status == 0, 0.0, np.nan)
    return RequestLog(
        arrival, adapter, np.where(adapter == 0, 0, np.where(adapter % 2, 8, 64)), rng.integers(1, 500, n),
        np.where(rng.random(n) < 0.05, 1, rng.integers(2, 300, n)), status, np.where(nothing, -1, replica),
        np.where(nothing, np.nan, routed), np.where(nothing | waiting, np.nan, admitted),
        np.where(nothing | waiting, np.nan, first), last + hide, np.zeros(n, dtype=int), np.zeros(n, dtype=int),
        np.zeros(n, dtype=int), rng.integers(0, 4, n), rng.exponential(0.01, n),
        np.where(nothing | waiting, -1, first_run), np.where(status == 0, last_run, -1),
    )  # fmt: skip


def _ints(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)
