"""LoRAX (a7394ba, May 2026): prompts between decode steps, blocks reserved at admission, adapters that take turns.

A state machine of router/src/infer.rs, batching_task: a batch of prompts is formed from the queues of active adapters,
then the batch decodes; before every decode step comes a round of attempts to add prompts (lorax_batching.py). Without a
batch, the scheduler looks again whenever a request arrives or the loader (lorax_loader.py) has done something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from simlora.engines.base import KV, NEVER_S, SLOTS, TOKENS, Capacity, Counters
from simlora.engines.lorax.batching import Batching, Chunk, LoraxLimits, Round
from simlora.engines.lorax.loader import Loader
from simlora.engines.lorax.queues import BUDGET, AdapterQueue
from simlora.engines.lorax.ranks import LazyGraphs, PaddedRanks
from simlora.engines.lorax.shard import Hold, Shard
from simlora.engines.request import Request
from simlora.engines.sync_engine import SyncEngine
from simlora.latency.step import StepPlan


class LoraxEngine(SyncEngine):
    """One replica. pad: own rank -> padded rank. graphs: None where no step waits for a graph."""

    def __init__(
        self, limits: LoraxLimits, loader: Loader, pad: Callable[[int], int], graphs: LazyGraphs | None = None
    ) -> None:
        super().__init__(Capacity(limits.kv_blocks, limits.block_size, limits.max_active_adapters))
        self.limits, self.loader, self.graphs = limits, loader, graphs
        self.batching = Batching(limits, loader)
        self.queues = self.batching.queues
        self.shard = Shard(loader, self.queues)
        self.ranks = PaddedRanks(pad)
        self.prefilling: list[Request] = []
        """Whose prompts are computed in chunks and not complete, oldest first."""
        self.round: Round | None = None
        self._prefill_step = 0
        """The decode step before the last prompts."""
        self._mapped = 0
        """`version` of the last step, if it was of decodes alone."""

    # --- arrivals -----------------------------------------------------------------------------------------------

    def fits(self, request: Request) -> bool:
        """False also where the router refuses it: too many requests inside, or an adapter above the whole budget."""
        limits = self.limits
        if len(self.running) + self.queues.waiting >= limits.max_concurrent_requests:
            return False
        if limits.blocks(request) > limits.kv_blocks:
            return False
        if request.prompt_tokens > limits.max_batch_prefill_tokens and not limits.chunked_prefill:
            return False
        return self.loader.times.cost(request.adapter, request.rank) <= 1.0

    def enqueue(self, request: Request, now_s: float) -> bool:
        queue, new = self.queues.append(request)
        if new:
            self.loader.download(queue)
        servable = queue.adapter in self.queues.servable
        self.arrival_reason = self.batching.blocked if servable else SLOTS
        if not self.running or not self.loader.idle or self.queues.waiting == 1:
            return True
        if self.batching.gate:
            return self.queues.waiting >= self.batching.gate
        behind = len(queue.requests) > 1  # then it changes neither what is exchanged nor who is chosen
        return not behind or (servable and self.batching.blocked != KV)

    # --- planning -----------------------------------------------------------------------------------------------

    def form_step(self, now_s: float) -> StepPlan | None:
        self.shard.settle(now_s)
        self.wake_s, self.loading, self.aborted = NEVER_S, [], []
        return self._go_on(now_s) if self.running else self._begin(now_s)

    def _begin(self, now_s: float) -> StepPlan | None:
        """Nothing runs: form a batch, or let the loader work until something changes."""
        self.round = None
        terms = Round(0, self.limits.max_batch_prefill_tokens)
        while True:
            batch = self.batching.next_batch(now_s, terms, self._in_use)
            if batch:
                return self._prefill(batch, now_s)
            if self.shard.stuck:
                self._give_up()
            if not self.shard.work(now_s):
                return None
            if not self.shard.settle(now_s):
                self.wake_s = self.loader.ends_s
                return None

    def _give_up(self) -> None:
        """The clients of those who wait for ever give up."""
        self.aborted = self.queues.clear()
        self.num_aborted += len(self.aborted)
        self.shard.used()

    def _go_on(self, now_s: float) -> StepPlan:
        """A batch runs: prompts if some can be added, else a decode step."""
        batch: list[Chunk] = []
        if self.round is None:
            step_tokens = self.decodes.count + sum(tokens for _, tokens in self._next_chunks())
            self.round = self.batching.open_round(len(self.running), step_tokens, self._waited)
            batch = self.batching.next_batch(now_s, self.round, self._in_use)
        elif self.limits.eager_prefill:
            batch = self.batching.next_batch(now_s, self.round, self._in_use)
        else:
            self.batching.blocked = TOKENS
        if batch:
            self.round.prefilled = True
            return self._prefill(batch, now_s)
        stale, self.round = self.round.prefilled, None
        return self._decode(now_s, stale)

    def _prefill(self, batch: list[Chunk], now_s: float) -> StepPlan:
        """The batch's prompts, alone; with chunked prefill everybody else takes part."""
        self.shard.used()
        chunks = [*self._next_chunks(), *batch]
        for request, _ in batch:
            self._admit(request, now_s)
        self.version += 1
        self._mapped = -1
        plan = self._compute(chunks, self._hold(now_s), decodes=self.limits.chunked_prefill)
        self._prefill_step = self.step
        return plan

    def _decode(self, now_s: float, stale: bool) -> StepPlan:
        """One token for everybody, and the next chunks of prompts begun. stale: the last attempt to add prompts was
        made under terms that do not hold any more."""
        hold, chunks = self._hold(now_s), self._next_chunks()
        changed = bool(chunks) or self.version != self._mapped
        if chunks or hold.loads or hold.other_s:
            self.version += 1  # where only the loader works, the price changes, the batch does not
        steps = 1 if chunks or not self.loader.idle else self._horizon(now_s, stale)
        plan = self._compute(chunks, hold, max_repeat=steps, changed=changed)
        self._mapped = -1 if chunks else self.version
        if self.graphs is not None and not chunks:
            capture_s = self.graphs.stall_s(plan)
            if capture_s:
                plan = plan._replace(extra_s=plan.extra_s + capture_s)
        return plan

    def _horizon(self, now_s: float, stale: bool) -> int:
        """Decode steps for which the plan stays as it is, completions and the timer included."""
        steps = self.steps_to_completion()
        if not self.queues.waiting:
            return steps
        if stale:
            return 1
        if self.batching.gate or self.batching.short:
            patience = self.limits.max_waiting_tokens - self._waited
            if not self.limits.chunked_prefill:
                steps = min(steps, patience)
        if not self.batching.gate:
            self.wake_s = self.queues.next_change_s(now_s, self._in_use)
        return steps

    @property
    def _waited(self) -> int:
        """1 after prompts, and 1 more with every decode step."""
        return 1 + self.step - self._prefill_step

    def _hold(self, now_s: float) -> Hold:
        hold = self.shard.hold(now_s)
        self.loading = list(hold.loading)
        return hold

    def _compute(self, chunks: Sequence[Chunk], hold: Hold, decodes: bool = True, **details: Any) -> StepPlan:
        plan = self.plan(chunks, decodes=decodes, loads=hold.loads, extra_s=hold.other_s, **details)
        mix = self.ranks.mix(chunks, decodes)
        for request, tokens in chunks:
            request.computed += tokens
            if request.computed == request.prefill_tokens:
                self.complete_prompt(request)
                self.ranks.decodes(request)
        self.prefilling = [r for r, _ in chunks if r.computed < r.prefill_tokens]
        return plan._replace(max_rank=mix.max_rank, mix=mix)

    def _next_chunks(self) -> list[Chunk]:
        """What each prompt under way computes next: a token for everybody else is set aside, the oldest come first."""
        left = self.limits.max_batch_prefill_tokens - (len(self.running) - 1)
        chunks = []
        for request in self.prefilling:
            tokens = max(min(request.prefill_tokens - request.computed, left), 1)
            left -= tokens
            chunks.append((request, tokens))
        return chunks

    def _admit(self, request: Request, now_s: float) -> None:
        self.admit(request, now_s)
        self.ranks.join(request)
        queue = self.queues.known[request.adapter]
        if request.adapter:
            self.tier_counts[queue.loaded_from] += 1
            request.load_tier, queue.loaded_from = queue.loaded_from, 0

    def _in_use(self, adapter: int) -> bool:
        return adapter in self.ranks.requests or (self.round is not None and adapter in self.round.left)

    # --- what the simulation asks -------------------------------------------------------------------------------

    def release(self, request: Request, now_s: float) -> None:
        self.batching.free += self.limits.blocks(request)
        self.ranks.leave(request)
        if self.round is not None:
            self.round.left.add(request.adapter)

    def extend(self, steps: int) -> None:
        """The blocks were reserved at admission."""

    def used_blocks(self) -> int:
        return self.limits.kv_blocks - self.batching.free

    def waiting_count(self) -> int:
        return self.queues.waiting

    def waiting_by_reason(self) -> tuple[int, int, int, int]:
        counts = [0, 0, 0, 0]
        counts[self.batching.blocked] = self.queues.servable_waiting
        counts[SLOTS] += self.queues.waiting - self.queues.servable_waiting
        return counts[0], counts[1], counts[2], counts[3]

    def counters(self) -> Counters:
        return super().counters()._replace(loads_by_rank=self.loader.loads_by_rank, evictions=self.loader.offloads)

    def violations(self) -> Iterator[tuple[str, str]]:
        return _violations(self)


def _violations(engine: LoraxEngine) -> Iterator[tuple[str, str]]:
    """INV-3: blocks and the memory budget. INV-4: adapters, queues and the batch agree."""
    limits, queues = engine.limits, engine.queues
    reserved = sum(map(limits.blocks, engine.running.values()))
    if reserved != engine.used_blocks() or engine.batching.free < 0:
        yield "INV-3", f"{engine.used_blocks()} blocks in use, {reserved} reserved by requests"
    taken = sum(queue.units or 0 for queue in queues.active.values())
    if taken + queues.budget != BUDGET or queues.budget < 0:
        yield "INV-3", f"active adapters cost {taken}, {queues.budget} left of {BUDGET}"
    if len(queues.active) > limits.max_active_adapters:
        yield "INV-3", f"{len(queues.active)} adapters active"
    if len(engine.running) + queues.waiting > limits.max_concurrent_requests:
        yield "INV-3", f"{len(engine.running)} requests run and {queues.waiting} wait"
    for adapter in {request.adapter for request in engine.running.values()}:
        if not queues.known[adapter].active or not queues.known[adapter].ready:
            yield "INV-4", f"adapter {adapter} in the batch, but not on the GPU"
    known = list(queues.known.values())
    yield from _queues(engine, known)
    yield from _batch(engine)


def _queues(engine: LoraxEngine, known: list[AdapterQueue]) -> Iterator[tuple[str, str]]:
    queues = engine.queues
    for queue in known:
        pending = sum(other is queue for other in queues.pending)
        if pending + (queue.adapter in queues.active) != queue.tracked or (queue.requests and not queue.tracked):
            yield "INV-4", f"adapter {queue.adapter}: tracked {queue.tracked}, pending {pending}"
        if queue.active != (queue.adapter in queues.active) or (queue.ready and not queue.active):
            yield "INV-4", f"adapter {queue.adapter}: active {queue.active}, ready {queue.ready}"
    servable = {q.adapter: len(q.requests) for q in known if q.ready and q.requests}
    if servable.keys() != queues.servable.keys() or sum(servable.values()) != queues.servable_waiting:
        yield "INV-4", f"servable {list(queues.servable)}, by their queues {list(servable)}"
    if sum(len(queue.requests) for queue in known) != queues.waiting:
        yield "INV-4", f"{queues.waiting} requests wait, by their queues {servable}"
    if queues.waiting and not engine.running and engine.loader.idle:
        yield "INV-4", "requests wait, and nothing will change that"


def _batch(engine: LoraxEngine) -> Iterator[tuple[str, str]]:
    running = engine.running.values()
    requests: dict[int, int] = {}
    for request in running:
        requests[request.adapter] = requests.get(request.adapter, 0) + 1
    if requests != engine.ranks.requests:
        yield "INV-4", f"adapters in use {engine.ranks.requests}, by the requests {requests}"
    if engine.decodes.count + len(engine.prefilling) != len(running):
        yield "INV-4", f"{engine.decodes.count} decode, {len(engine.prefilling)} prefill, of {len(running)}"
