"""What every second of a replica was spent on, as piecewise constant functions of time that can be integrated quickly.

A run's time has two intervals: the head (B_0 to B_1) and the tail (B_1 to B_k). Each is split into the parts of a step:
- decode_base (base operators and attention), decode_lora, collective: GPU time, at most the interval;
- load: what adapter loads add beyond the larger of GPU and host time, at most load_s;
- host: what is left, CPU time that no GPU time hides.
Under asynchronous scheduling the GPU still works on the step before while a plan is made, so the GPU time of a head is
that of the previous run's last step (none after an idle period), and a gap is max(gpu, host); without it, the head
holds the run's own first step, and a gap is host + gpu. With pipeline stages a run is one batch, its parts are those
of all stages, and batches overlap: where their parts exceed the interval, they share it. Knows nothing of requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from simlora.sim.log import ReplicaLog

Floats = npt.NDArray[np.float64]

PARTS = ("load", "decode_base", "decode_lora", "host", "collective")
WAITS = ("waiting_slots", "waiting_kv", "waiting_seqs", "waiting_tokens")

_CONTIGUOUS_S = 1e-9
"""A run that starts later than this after the end of the one before follows an idle period."""


@dataclass(frozen=True)
class Timeline:
    """Boundaries and parts of all runs of one replica, in order of time. Arrays are [num_runs], times seconds."""

    replica: ReplicaLog

    @cached_property
    def start_s(self) -> Floats:
        """[num_runs], B_0 of sim/log.py: when the run's plan was formed."""
        return self.replica.runs["start_s"]

    @cached_property
    def first_boundary_s(self) -> Floats:
        """[num_runs], B_1. Start to B_1 is a run's head, the rest its tail."""
        return self.start_s + self.replica.runs["first_gap_s"]

    @cached_property
    def end_s(self) -> Floats:
        """[num_runs], B_k: where the next run starts, unless the replica is idle."""
        runs = self.replica.runs
        later = runs["steps"] - 1
        return self.first_boundary_s + runs["gap_s"] * later + runs["slope_s"] * (later * (later - 1) / 2)

    @cached_property
    def duration_s(self) -> Floats:
        """[num_runs], of head and tail together."""
        return self.end_s - self.start_s

    @cached_property
    def gpu_s(self) -> Floats:
        """GPU time of all steps of each run on one GPU, the growth of the context included; with pipeline stages, their
        mean."""
        runs, pipeline = self.replica.runs, self.replica.pipeline
        steps = runs["steps"]
        total = self._step_gpu_s * steps + runs["slope_s"] * (steps * (steps - 1) / 2)
        return total if pipeline is None else total / pipeline.stages

    @cached_property
    def _step_gpu_s(self) -> Floats:
        runs = self.replica.runs
        return runs["base_s"] + runs["attention_s"] + runs["lora_s"] + runs["collective_s"]

    @cached_property
    def parts(self) -> dict[str, tuple[Floats, Floats]]:
        """Part -> seconds in the (head, tail) of each run, [num_runs] each; an interval's parts sum to its length."""
        runs = self.replica.runs
        own = {
            "decode_base": runs["base_s"] + runs["attention_s"],
            "decode_lora": runs["lora_s"],
            "collective": runs["collective_s"],
        }
        later = runs["steps"] - 1
        growth = runs["slope_s"] * (later * (later - 1) / 2)
        head_gpu = self._step_before(own) if self.replica.async_scheduling else own
        tail_gpu = {name: value * later for name, value in own.items()} | {
            "decode_base": own["decode_base"] * later + growth
        }
        head = self._split(runs["first_gap_s"], head_gpu, runs["host_s"], runs["load_s"])
        tail = self._split(self.end_s - self.first_boundary_s, tail_gpu, runs["host_s"] * later, np.zeros_like(later))
        return {name: (head[name], tail[name]) for name in PARTS}

    @cached_property
    def load_s(self) -> Floats:
        """[num_runs], seconds that adapter loads added."""
        head, tail = self.parts["load"]
        return head + tail

    @cached_property
    def points_s(self) -> Floats:
        """[3 num_runs]: start, first boundary and end of every run, where the integrals below are known."""
        points = np.stack((self.start_s, self.first_boundary_s, self.end_s), axis=1).ravel()
        return np.maximum.accumulate(points)

    def integral(self, head: Floats, tail: Floats, at_s: Floats) -> Floats:
        """[len(at_s)]: integral, from the beginning to each at_s, of a function that sums to head and tail ([num_runs])
        within each run."""
        if not len(self.start_s):
            return np.zeros_like(at_s)
        total = np.cumsum(np.stack((np.zeros_like(head), head, tail), axis=1).ravel())
        return np.interp(at_s, self.points_s, total)

    def spent(self, part: str, from_s: Floats, to_s: Floats) -> Floats:
        """Seconds of each interval from_s .. to_s (arrays of one length) that went into the part. Raises KeyError for a
        part that is none of PARTS."""
        head, tail = self.parts[part]
        return self.integral(head, tail, to_s) - self.integral(head, tail, from_s)

    @cached_property
    def wait_mix(self) -> dict[str, Floats]:
        """Wait reason -> share of the waiting requests that wait for it, per run; all 0 where none waits."""
        runs = self.replica.runs
        waiting = sum((runs[name] for name in WAITS), start=np.zeros_like(self.start_s))
        return {name: np.divide(runs[name], waiting, out=np.zeros_like(waiting), where=waiting > 0) for name in WAITS}

    def mean(self, column: str | Floats, end_s: float, begin_s: float = 0.0) -> float | None:
        """Time mean of a run column over begin_s .. end_s, 0 while the replica is idle; None for an empty span."""
        if end_s <= begin_s:
            return None
        values = self.replica.runs[column] if isinstance(column, str) else column
        tail_s = self.end_s - self.first_boundary_s
        bounds = np.array([begin_s, end_s])
        area = self.integral(values * self.replica.runs["first_gap_s"], values * tail_s, bounds)
        return float(area[1] - area[0]) / (end_s - begin_s)

    def _step_before(self, own: dict[str, Floats]) -> dict[str, Floats]:
        """GPU parts of the last step of the run before; 0 for the first run and after an idle period."""
        runs = self.replica.runs
        growth = runs["slope_s"] * (runs["steps"] - 1)
        last = own | {"decode_base": own["decode_base"] + growth}
        follows = np.zeros(len(self.start_s), dtype=bool)
        follows[1:] = self.start_s[1:] - self.end_s[:-1] <= _CONTIGUOUS_S
        return {name: np.where(follows, np.roll(value, 1), 0.0) for name, value in last.items()}

    def _split(self, span: Floats, gpu: dict[str, Floats], host: Floats, load: Floats) -> dict[str, Floats]:
        """Divide intervals of length `span` into PARTS."""
        gpu_total = sum(gpu.values(), start=np.zeros_like(span))
        loading = np.clip(span - np.maximum(gpu_total, host), 0.0, load)
        gpu_time = np.minimum(gpu_total, span - loading)
        scale = np.divide(gpu_time, gpu_total, out=np.zeros_like(span), where=gpu_total > 0)
        out = {name: value * scale for name, value in gpu.items()}
        return out | {"load": loading, "host": span - loading - gpu_time}
