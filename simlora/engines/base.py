"""What the simulation asks of an engine. Engines are plain objects without a clock."""

from __future__ import annotations

from typing import Protocol

from simlora.engines.request import Request
from simlora.latency.step import StepPlan

SLOTS, KV, SEQS, TOKENS = 0, 1, 2, 3
"""Why the next waiting request was not admitted: adapter slots, KV blocks, seats, or the token budget (which includes
waiting for the step in progress)."""
REASONS = ("slots", "kv", "seqs", "tokens")


Delivery = tuple[list[Request], list[Request]]
"""What came out of the engine besides one token for every decoding request: requests that got the first token of their
residence, and requests that got their last one."""


class Engine(Protocol):
    """A continuous-batching engine. Times are seconds; steps are numbered from 0."""

    version: int
    """Grows whenever the composition of the planned batch changes."""
    blocked: int
    """Reason (SLOTS, KV, SEQS, TOKENS) that kept the head of the queue out of the last plan."""
    arrival_reason: int
    """Why the last arrival waits; TOKENS when the next plan may admit it."""
    preempted: list[Request]
    """Decoding requests that the last plan preempted."""
    loading: list[Request]
    """Requests whose admission into the last plan caused a load, in the order of its loads."""

    def enqueue(self, request: Request, now_s: float) -> bool:
        """Accept an arrival. True when the next plan could admit it, so that a coalesced run has to end."""

    def form_step(self, now_s: float) -> StepPlan | None:
        """Plan the next step, or None when there is nothing to schedule."""

    def commit(self, steps: int, now_s: float) -> Delivery:
        """The last plan ran for `steps` steps (0: it was None); returns what came out while they did."""

    def pass_over(self, last_plan_s: float) -> None:
        """The last step of the run was planned at last_plan_s: give the arrivals that came during the run the places in
        the queue that they would have with a plan for each step. Call it before `commit`."""

    def repeat(self) -> int:
        """Plan one more step like the last one; returns the tokens in the KV cache before it."""

    def waiting_by_reason(self) -> tuple[int, int, int, int]:
        """Waiting requests by REASONS after the last plan."""
