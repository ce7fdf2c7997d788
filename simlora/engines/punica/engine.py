"""Punica's scheduler on one GPU: policy only, no clock.

Every step has at most one new prompt, whole, and a token for each request in the batch; the prompt's first token comes
out of the same step. First come, first served, except that a request whose adapter is still being copied lets those
behind it pass. KV pages are taken on demand; when none is left the newest request is evicted, to be computed again as a
new one in its old place. Sources: arXiv:2310.18547 and benchmarks/bench_textgen_lora.py (code 591b598).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from simlora.engines.base import KV, SEQS, SLOTS, TOKENS, Capacity, Counters
from simlora.engines.punica.adapters import PunicaAdapters
from simlora.engines.request import Request
from simlora.engines.sync_engine import Load, SyncEngine
from simlora.latency.step import HOST, StepPlan


@dataclass(frozen=True)
class PunicaLimits:
    """The scheduler's settings after all defaults are resolved."""

    max_batch_size: int
    kv_pages: int
    page_tokens: int
    buffers: int
    """Adapters on the GPU; 0 with LoRA off."""
    prefetch: bool = True
    """Adapters of all waiting requests are copied, as far as there are buffers; False: only that of the next one."""


def age(request: Request) -> tuple[float, int]:
    """The order in which requests are served."""
    return request.arrival_s, request.index


class PunicaEngine(SyncEngine):
    """One GPU."""

    def __init__(self, limits: PunicaLimits, adapters: PunicaAdapters | None) -> None:
        """adapters: None with LoRA off."""
        super().__init__(Capacity(limits.kv_pages, limits.page_tokens, limits.buffers))
        self.limits, self.adapters = limits, adapters
        self.free = limits.kv_pages
        self.held: list[Request] = []
        """Waiting requests that have a buffer, oldest first."""
        self.line: list[Request] = []
        """Waiting requests that have none, oldest first."""
        self._copied = False

    # --- arrivals -----------------------------------------------------------------------------------------------

    def fits(self, request: Request) -> bool:
        return self.decodes.most_blocks(request.prompt_tokens, request.output_tokens) <= self.limits.kv_pages

    def enqueue(self, request: Request, now_s: float) -> bool:
        """Its adapter begins to move at once, not at the next step."""
        loading = self._in_flight()
        insort(self.line, request, key=age)
        self._hold_buffers(now_s)
        self._set_wake()
        self.arrival_reason = TOKENS if self._in_flight() - loading else self._reason(request)
        return self.arrival_reason == TOKENS

    def _reason(self, request: Request) -> int:
        """What keeps an arrival out of the next step; TOKENS if nothing is known to. One that comes from another GPU
        can be older than what the last plan looked at."""
        if request in self.line:
            return SLOTS if self._ahead else self.blocked
        if self._is_loading(request):
            return SLOTS
        if self.blocked == SLOTS or (self.blocked == KV and self._oldest_ready() is request):
            return TOKENS
        return self.blocked

    @property
    def _ahead(self) -> bool:
        """Adapters of all waiting requests are copied, as far as there are buffers."""
        return self.adapters is None or (self.adapters.overlapped and self.limits.prefetch)

    def _in_flight(self) -> set[int]:
        return set() if self.adapters is None else set(self.adapters.in_flight)

    # --- planning -----------------------------------------------------------------------------------------------

    def form_step(self, now_s: float) -> StepPlan | None:
        self.preempted, self.loading = [], []
        if self.adapters is not None:
            self.adapters.finish(now_s)
        self._grow()
        self._hold_buffers(now_s)
        request = self._next_prompt()
        plan = None
        if request is not None:
            plan = self._prompt_plan(request, now_s)
        elif self.decodes.count:
            plan = self._decode_plan()
        self._set_wake()
        return plan

    def _set_wake(self) -> None:
        if self.adapters is not None:
            self.wake_s = self.adapters.next_s

    def _grow(self) -> None:
        """A page for every decode that needs one in the next step; the newest requests make room."""
        while (need := self.decodes.growth(self.step + 1) if self.decodes.count else 0) > self.free:
            self._evict(max(self.running.values(), key=age))
        self.free -= need

    def _hold_buffers(self, now_s: float) -> None:
        """Waiting requests get buffers in their order; nobody passes one that finds none."""
        most = len(self.line) + len(self.held) if self._ahead else 1
        while self.line and len(self.held) < most:
            request = self.line[0]
            if self.adapters is not None and not self.adapters.hold(request, now_s):
                break
            del self.line[0]
            insort(self.held, request, key=age)

    def _next_prompt(self) -> Request | None:
        """The oldest request whose adapter is there, if the batch and the free pages let it in."""
        request = self._oldest_ready()
        if request is None:
            self.blocked = SLOTS if self.line and not self.held else TOKENS
        elif len(self.running) >= self.limits.max_batch_size:
            self.blocked = SEQS
        elif self._pages(request) > self.free:
            self.blocked = KV
        else:
            self.blocked = TOKENS
            return request
        return None

    def _oldest_ready(self) -> Request | None:
        return next((request for request in self.held if not self._is_loading(request)), None)

    def _pages(self, request: Request) -> int:
        return -(-request.prefill_tokens // self.limits.page_tokens)

    def _is_loading(self, request: Request) -> bool:
        return self.adapters is not None and not self.adapters.ready(request)

    def _prompt_plan(self, request: Request, now_s: float) -> StepPlan:
        del self.held[bisect_left(self.held, age(request), key=age)]
        self.admit(request, now_s)
        self.free -= self._pages(request)
        request.computed = 0
        loads: tuple[Load, ...] = ()
        if request.adapter and self.adapters is not None:
            tier = int(self.adapters.first_use(request))
            self.tier_counts[tier] += 1
            if tier:
                request.load_tier = tier
            if tier and not self.adapters.overlapped:
                loads = ((request.adapter, request.rank, HOST),)
                self.loading = [request]
        self._settle(True)
        plan = self.plan([(request, request.prefill_tokens)], loads=loads, copying=self._copied)
        self.complete_prompt(request)
        return plan

    def _decode_plan(self) -> StepPlan:
        batch = self.decodes
        steps = min(self.steps_to_completion(), 1 + batch.steps_within(self.step + 2, self.free))
        self._settle(False)
        return self.plan((), steps, copying=self._copied)

    def _settle(self, prompt: bool) -> None:
        """The next step has its price."""
        copying = self.adapters is not None and self.adapters.copying
        if prompt or copying != self._copied:
            self.version += 1
        self._copied = copying

    # --- leaving ------------------------------------------------------------------------------------------------

    def _evict(self, request: Request) -> None:
        """Compute it again later: its pages are free, but its adapter stays."""
        self._interrupt(request)
        self.preemptions += 1
        self.preempted.append(request)
        insort(self.held, request, key=age)

    def _interrupt(self, request: Request) -> None:
        self.version += 1
        held = self.blocks_after(request, self.step)
        self.free += held
        request.recomputed_tokens += request.base + self.step + 1
        request.emitted += self.step + 1 - request.start_step
        request.prefill_tokens = request.prompt_tokens + request.emitted
        request.computed = 0
        request.preemptions += 1
        self.decodes.remove(request.index)
        del self.running[request.index]
        self.active.leave(request.adapter)

    def movable(self) -> list[Request]:
        """Requests that can be withdrawn, oldest first."""
        return sorted([*self.running.values(), *self.held, *self.line], key=age)

    def withdraw(self, request: Request, now_s: float) -> bool:
        """Cancel a request between two steps, so that another GPU can go on with its prompt and what it generated.
        True if it was running."""
        if request in self.line:
            self.line.remove(request)
            return False
        running = request.index in self.running
        if running:
            self._interrupt(request)
        else:
            self.held.remove(request)
        if self.adapters is not None:
            self.adapters.let_go(request, now_s)
        return running

    # --- what comes out -----------------------------------------------------------------------------------------

    def release(self, request: Request, now_s: float) -> None:
        self.free += self.blocks_after(request, request.last_step)
        if self.adapters is not None:
            self.adapters.let_go(request, now_s)

    def extend(self, steps: int) -> None:
        self.free -= self.decodes.new_blocks(self.step + 1, steps)

    def growth(self, steps: int) -> int:
        return self.decodes.new_blocks(self.step + 1, steps) if steps > 0 else 0

    def used_blocks(self) -> int:
        return self.limits.kv_pages - self.free

    def counters(self) -> Counters:
        if self.adapters is not None:
            self.evictions, self.loads_by_rank = self.adapters.evictions, self.adapters.loads_by_rank
        return super().counters()

    def waiting_count(self) -> int:
        return len(self.held) + len(self.line)

    def waiting_by_reason(self) -> tuple[int, int, int, int]:
        counts = [0, 0, 0, 0]
        loading = 0 if self.adapters is None else sum(self.adapters.in_flight.values())
        counts[SLOTS] = loading
        counts[SLOTS if self._ahead else self.blocked] += len(self.line)
        counts[self.blocked] += len(self.held) - loading
        return counts[0], counts[1], counts[2], counts[3]

    def violations(self) -> Iterator[tuple[str, str]]:
        pages = sum(self.blocks_after(r, max(self.step, r.start_step)) for r in self.running.values())
        if self.free < 0 or self.free + pages != self.limits.kv_pages:
            yield "INV-3", f"free {self.free} + used {pages} != {self.limits.kv_pages} KV pages"
        if len(self.running) > self.limits.max_batch_size:
            yield "INV-3", f"{len(self.running)} requests run"
        ranks = {request.rank for request in self.running.values() if request.adapter}
        if len(ranks) > 1:
            yield "INV-4", f"ranks {sorted(ranks)} in one batch"
        if self.adapters is None:
            return
        buffers = self.adapters.buffers
        for request in (*self.running.values(), *self.held):
            if request.adapter and request.adapter not in buffers:
                yield "INV-4", f"adapter {request.adapter} of request {request.index} is in no buffer"
        if any(self._is_loading(request) for request in self.running.values()):
            yield "INV-4", "a request runs while its adapter is copied"
        holders = sum(request.adapter > 0 for request in (*self.running.values(), *self.held))
        if holders != sum(buffers.uses(adapter) for adapter in buffers):
            yield "INV-4", "buffers are held by others than the requests with adapters"
