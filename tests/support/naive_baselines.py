"""The baselines written out plainly: one list of waiting and one of running requests, looked through in every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simlora.engines.baselines.base import BaselineLimits
from simlora.engines.request import Request
from simlora.latency.step import Prefill, StepPlan


@dataclass(eq=False)
class Task:
    """A request inside a naive baseline."""

    index: int
    adapter: int
    rank: int
    prompt: int
    output: int
    arrival_s: float
    done: int = 0
    """Tokens that came out."""
    rejected: bool = False
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    load_tier: int = 0


class NaiveBaseline:
    """kind: sequential, grouped or merged-swap. All times are the engine's own, step by step."""

    def __init__(self, kind: str, limits: BaselineLimits, slots: int, pinned: frozenset[int], latency: Any) -> None:
        self.kind, self.limits, self.latency, self.pinned = kind, limits, latency, pinned
        self.capacity = slots
        self.resident = sorted(pinned)
        """Least recently used first."""
        self.waiting: list[Task] = []
        self.running: list[Task] = []
        self.adapter = -1
        self.opening: list[Task] | None = None
        """What the batch has still to take of those that it opened with."""
        self.merged = (0, 0)
        self.evictions = 0
        self.batch: list[Task] = []

    def run(self, requests: Sequence[Request]) -> list[Task]:
        tasks = [Task(r.index, r.adapter, r.rank, r.prompt_tokens, r.output_tokens, r.arrival_s) for r in requests]
        pending, now_s = list(tasks), 0.0
        while pending or self.waiting or self.running:
            if not self.waiting and not self.running:
                now_s = pending[0].arrival_s + self.latency.frontend_in_s
                self._arrive(pending)
                continue
            now_s = self._step(now_s, pending)
        return tasks

    def _arrive(self, pending: list[Task]) -> None:
        task = pending.pop(0)
        limits = self.limits
        task.rejected = self._blocks(task) > limits.kv_blocks or task.prompt > limits.max_num_batched_tokens
        if not task.rejected:
            self.waiting.append(task)

    def _blocks(self, task: Task) -> int:
        return -(-(task.prompt + task.output - 1) // self.limits.block_size)

    def _step(self, now_s: float, pending: list[Task]) -> float:
        decoding = list(self.running)
        prompts, loads = self._admit(now_s)
        extra_s = self._switch(prompts)
        batch = decoding + prompts
        adapters = {task.adapter for task in batch} - {0}
        changed = bool(prompts) or batch != self.batch
        self.batch = [] if prompts else batch
        plan = StepPlan(
            tuple(Prefill(task.index, 0, task.prompt) for task in prompts), len(decoding),
            sum(task.prompt + task.done - 1 for task in decoding),
            len(decoding) + sum(task.prompt for task in prompts), len(batch), len(adapters),
            sum(task.prompt for task in prompts if task.adapter) + sum(task.adapter > 0 for task in decoding),
            max((task.rank for task in batch), default=0), changed, tuple(loads), 1, extra_s=extra_s,
        )  # fmt: skip
        t = self.latency.price(plan)
        host = t.host_s + t.load_s + t.sync_s
        end_s = now_s + (max(t.load_s + t.gpu_s, host + t.tail_s) if t.launch_bound else host + t.gpu_s)
        while pending and pending[0].arrival_s + self.latency.frontend_in_s < end_s:
            self._arrive(pending)
        client_s = end_s + self.latency.frontend_out_s(len(batch))
        for task in batch:
            task.done += 1
            if task.done == 1:
                task.first_token_s = client_s
            if task.done == task.output:
                task.last_token_s = client_s
                self.running.remove(task)
        self._let_go(batch)
        return float(end_s)

    def _let_go(self, batch: list[Task]) -> None:
        """Adapters that nobody runs any more are used last now, in the order of their last request's number."""
        held = {task.adapter for task in self.running}
        last = {task.adapter: task.index for task in sorted(batch, key=lambda task: task.index)}
        for adapter in sorted(last, key=last.__getitem__):
            if adapter and adapter not in held:
                self.resident.remove(adapter)
                self.resident.append(adapter)

    def _admit(self, now_s: float) -> tuple[list[Task], list[tuple[int, int, str]]]:
        limits, prompts, loads = self.limits, [], []
        if self.kind != "sequential" and not self.running:
            self.adapter = self.waiting[0].adapter
            self.opening = []
        tokens, stopped_by_tokens = len(self.running), False
        while candidates := self._candidates():
            task = candidates[0]
            used = sum(map(self._blocks, self.running))
            if len(self.running) == limits.max_num_seqs or used + self._blocks(task) > limits.kv_blocks:
                break
            if not self._finds_slot(task):
                break
            if tokens + task.prompt > limits.max_num_batched_tokens:
                stopped_by_tokens = True
                break
            others = sum(other.adapter != self.adapter for other in self.waiting)
            closed = self.opening is None and others >= limits.switch_after
            if self.kind != "sequential" and self.running and closed:
                break
            self.waiting.remove(task)
            if task.adapter and task.adapter not in self.resident:
                self._load(task)
                loads.append((task.adapter, task.rank, "host"))
            self.running.append(task)
            task.admitted_s = now_s
            prompts.append(task)
            tokens += task.prompt
        if not stopped_by_tokens:
            self.opening = None
        return prompts, loads

    def _candidates(self) -> list[Task]:
        return [task for task in self.waiting if self.kind == "sequential" or task.adapter == self.adapter]

    def _idle(self) -> list[int]:
        kept = {task.adapter for task in self.running} | self.pinned
        return [adapter for adapter in self.resident if adapter not in kept]

    def _finds_slot(self, task: Task) -> bool:
        there = not task.adapter or task.adapter in self.resident
        return there or len(self.resident) < self.capacity or bool(self._idle())

    def _load(self, task: Task) -> None:
        if len(self.resident) == self.capacity:
            self.resident.remove(self._idle()[0])
            self.evictions += 1
        self.resident.append(task.adapter)
        task.load_tier = 1

    def _switch(self, prompts: list[Task]) -> float:
        if self.kind != "merged-swap" or not prompts or prompts[0].adapter == self.merged[0]:
            return 0.0
        old_rank, self.merged = self.merged[1], (prompts[0].adapter, prompts[0].rank)
        return float(self.latency.merge_s(prompts[0].rank, old_rank))
