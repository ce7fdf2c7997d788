"""What the simulation asks of an engine. Engines are plain objects without a clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from simlora.engines.request import Request
from simlora.latency.step import StepPlan

SLOTS, KV, SEQS, TOKENS = 0, 1, 2, 3
"""Why the next waiting request was not admitted: adapter slots, KV blocks, seats, or the token budget (which includes
waiting for the step in progress, or for the scheduler's next look at the queue)."""
NEVER_S = float("inf")

Delivery = tuple[list[Request], list[Request]]
"""What came out of the engine besides one token for every decoding request: requests that got the first token of their
residence, and requests that got their last one."""


class Capacity(NamedTuple):
    """What an engine can hold."""

    kv_blocks: int
    """Units of KV memory: blocks, or rows of one token."""
    block_size: int
    """Tokens in a unit."""
    slots: int
    """Adapters that can be on the GPU at a time, as a router sees it."""


class State(NamedTuple):
    """What a router or sampler may see of an engine."""

    running: int
    waiting: int
    free_blocks: int
    adapters: frozenset[int]
    """Adapters with requests in the running batch."""
    finishing: int
    """Requests counted as outstanding whose last token is out by then."""


class Counters(NamedTuple):
    """What an engine did since it started."""

    tiers: tuple[int, int, int, int]
    """Admissions with an adapter by where it was found: GPU, host, disk, remote."""
    loads_by_rank: dict[int, int]
    """Own rank -> adapters brought to the GPU."""
    evictions: int
    preemptions: int
    aborted: int = 0
    """Requests that the engine refused or gave up."""


class Engine(Protocol):
    """A batching engine that plans a step when the tokens of the one before are out. Times are seconds; steps are
    numbered from 0.

    The replica calls form_step at every boundary between runs of identical steps, then commit when the run is over.
    What an engine decides may depend on its state and on now_s alone, never on how many boundaries lay between: a run
    of k steps must leave it exactly as k runs of one step do.
    """

    capacity: Capacity
    tokens_per_decode: int
    """Tokens computed for each decoding request in a step: 1, or 1 + draft tokens."""
    version: int
    """Grows whenever the composition of the planned batch changes, or anything else that its price depends on."""
    wake_s: float
    """After form_step: when the next plan may differ though no request arrives or leaves (a copy that ends, a timer);
    NEVER_S if never. With nothing planned, the engine is asked again then."""
    arrival_reason: int
    """Why the last arrival waits; TOKENS when the next plan may admit it."""
    preempted: list[Request]
    """Decoding requests that the last plan preempted."""
    loading: list[Request]
    """Requests on whose behalf the last plan loads, in the order of plan.loads."""
    aborted: list[Request]
    """Requests that the last plan gave up for good; the replica takes them out and marks them rejected."""
    rank_tokens: int
    """Sum over the LoRA tokens of the last plan of their adapter's own rank."""
    preemptions: int

    def fits(self, request: Request) -> bool:
        """Whether the request could run alone; where not, it is rejected on arrival."""

    def enqueue(self, request: Request, now_s: float) -> bool:
        """Accept an arrival. True when the next plan could differ for it, so that a coalesced run has to end."""

    def form_step(self, now_s: float) -> StepPlan | None:
        """Plan the next step, or None when there is nothing to compute now."""

    def commit(self, steps: int, now_s: float) -> Delivery:
        """The last plan ran for `steps` steps (0: it was None); returns what came out while they did."""

    def mark_skipped(self, last_plan_s: float) -> None:
        """The last step of the run was planned at last_plan_s: give the arrivals that came during the run the places in
        the queue that they would have with a plan for each step. Call it before `commit`."""

    def repeat(self) -> int:
        """Plan one more step like the last one; returns the tokens in the KV cache before it."""

    def used_blocks(self) -> int:
        """KV memory in use."""

    def num_running(self) -> int:
        """Requests that neither wait nor are done."""

    def waiting_count(self) -> int:
        """Requests in its queues."""

    def waiting_by_reason(self) -> tuple[int, int, int, int]:
        """Waiting requests after the last plan: for slots, KV, sequences, tokens."""

    def state(self, steps: int) -> State:
        """The state once `steps` more steps of the last plan have passed."""

    def counters(self) -> Counters:
        """Totals so far."""

    def violations(self) -> Iterator[tuple[str, str]]:
        """(invariant, what is wrong) for every invariant that does not hold now; recounted from its requests."""


@runtime_checkable
class Handover(Protocol):
    """An engine that can hand over requests, besides being an Engine."""

    def movable(self) -> Sequence[Request]:
        """Requests that can be withdrawn, oldest first."""

    def withdraw(self, request: Request, now_s: float) -> bool:
        """Cancel a request between two steps; what it needs to go on elsewhere is in it. True if it was running."""
