"""A small replay of vLLM 0.20's scheduler, sufficient to score step latencies against recorded traces.

It exists so that the latency terms can be fitted without the simulator. First come, first served; chunked prefill; one
token budget; adapter slots and host cache by LRU; KV blocks on demand with preemption of the newest; the full prompt
must fit before admission; asynchronous scheduling one step ahead.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from simlora.latency.model import StepLatency
from simlora.latency.step import DISK, HOST, Prefill, StepPlan, StepTiming

Row = tuple[float, int, int, int, int]
"""arrival_s, adapter (0 = base), rank, prompt tokens, output tokens."""


NEVER = float("-inf")


def advance(timing: StepTiming, now_s: float, flight_end_s: float) -> tuple[float, float]:
    """When the host has launched a step that it began to plan at now_s, and when the GPU finishes it.

    flight_end_s: when the GPU finishes the step before (NEVER: it is idle).
    """
    ready = now_s + timing.host_s + timing.load_s
    if timing.sync_s:
        ready = max(flight_end_s, ready)
        host_end = ready + timing.sync_s
        start = ready
    else:
        host_end = max(flight_end_s, ready)
        start = max(flight_end_s, now_s + timing.load_s)
        if timing.launch_bound:
            return host_end, max(start + timing.gpu_s, ready + timing.tail_s)
    if timing.launch_bound:
        return host_end, max(start + timing.gpu_s, host_end + timing.tail_s)
    return host_end, host_end + timing.gpu_s


@dataclass(slots=True)
class Request:
    index: int
    arrival_s: float
    adapter: int
    rank: int
    prompt: int
    output: int
    computed: int = 0
    """Tokens in the KV cache once everything scheduled has run."""
    sampled: int = 0
    """Output tokens scheduled so far."""
    blocks: int = 0
    target: int = 0
    """Tokens to prefill: the prompt, or after a preemption prompt + sampled."""
    token_s: list[float] = field(default_factory=list)


Chunk = tuple[Request, int, int, bool, bool]
"""request, first token, tokens, whether it is a prefill, whether a token comes out."""


@dataclass(frozen=True)
class Limits:
    max_num_seqs: int
    max_num_batched_tokens: int
    num_gpu_blocks: int
    block_size: int
    max_loras: int
    max_cpu_loras: int


class AdapterCache:
    """Slots and host cache, both least recently used."""

    def __init__(self, slots: int, host: int, initial: dict[str, list[int] | int] | None) -> None:
        self.slots, self.host_size = slots, host
        self.gpu: OrderedDict[int, None] = OrderedDict()
        self.host: OrderedDict[int, None] = OrderedDict()
        if initial:
            for name, cache in (("gpu", self.gpu), ("host", self.host)):
                for other in range(int(initial[f"{name}_others"])):  # type: ignore[arg-type]
                    cache[-1 - other] = None
                for adapter in initial[name]:  # type: ignore[union-attr]
                    cache[adapter] = None

    def touch(self, adapters: Iterable[tuple[int, int]]) -> list[tuple[int, int, str]]:
        loads = []
        for adapter, rank in adapters:
            if adapter not in self.host:
                if len(self.host) >= self.host_size:
                    old, _ = self.host.popitem(last=False)
                    self.gpu.pop(old, None)
                self.host[adapter] = None
                tier = DISK
            else:
                tier = HOST
            self.host.move_to_end(adapter)
            if adapter not in self.gpu:
                if len(self.gpu) >= self.slots:
                    self.gpu.popitem(last=False)
                self.gpu[adapter] = None
                loads.append((adapter, rank, tier))
            self.gpu.move_to_end(adapter)
        return loads


@dataclass
class Replay:
    """Plays requests through one engine. `run` returns the requests with the client's time of every token."""

    latency: StepLatency
    limits: Limits
    initial: dict[str, list[int] | int] | None = None
    enable_lora: bool = True
    steps: list[tuple[float, int, int, StepTiming]] = field(default_factory=list)

    def run(self, rows: list[Row], until_s: float = float("inf")) -> list[Request]:
        lim = self.limits
        self.free = lim.num_gpu_blocks - 1
        self.cache = AdapterCache(lim.max_loras, lim.max_cpu_loras, self.initial) if self.enable_lora else None
        requests = [Request(i, *row, target=row[3]) for i, row in enumerate(rows)]
        in_s = self.latency.frontend_in_s
        pending = deque(sorted(requests, key=lambda r: r.arrival_s))
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.preemptions = 0
        mapping: tuple[int, ...] | None = None
        now, flight, flight_end = 0.0, None, NEVER
        while (pending or self.waiting or self.running or flight is not None) and now < until_s:
            while pending and pending[0].arrival_s + in_s <= now:
                self.waiting.append(pending.popleft())
            chunks = self._schedule()
            if not chunks:
                if flight is not None:
                    now, flight = max(now, flight_end), self._emit(flight, max(now, flight_end))
                elif pending:
                    now = max(now, pending[0].arrival_s + in_s)
                else:
                    break
                flight_end = NEVER
                continue
            prefills, decodes, context = [], [], 0
            ids: dict[int, int] = {}
            lora_tokens = 0
            for request, start, new, prefill, _ in chunks:
                if prefill:
                    prefills.append(Prefill(request.index, start, new))
                else:
                    decodes.append(request.index)
                    context += start
                if request.adapter:
                    ids[request.adapter] = request.rank
                    lora_tokens += new
            tokens = sum(chunk[2] for chunk in chunks)
            indices = tuple(chunk[0].index for chunk in chunks)
            new_mapping = (-1, *indices) if prefills else indices
            changed = bool(prefills) or new_mapping != mapping
            mapping = new_mapping
            loads = tuple(self.cache.touch(ids.items())) if self.cache and ids else ()
            plan = StepPlan(
                tuple(prefills),
                len(decodes),
                context,
                tokens,
                len(chunks),
                len(ids),
                lora_tokens,
                max(ids.values(), default=0),
                changed,
                loads,
                1,
            )
            timing = self.latency.price(plan)
            host_end, end = advance(timing, now, flight_end)
            self.steps.append((host_end - now, len(decodes), tokens, timing))
            if flight is not None:
                self._emit(flight, host_end)
            flight, flight_end = chunks, end
            now = host_end
        return requests

    def _emit(self, chunks: list[Chunk], now: float) -> None:
        out = self.latency.frontend_out_s(len(self.running))
        for request, _, _, _, emits in chunks:
            if not emits:
                continue
            if len(request.token_s) < request.output:
                request.token_s.append(now + out)
            if len(request.token_s) >= request.output and request in self.running:
                self.running.remove(request)
                self.free += request.blocks
                request.blocks = 0
        return None

    def _schedule(self) -> list[Chunk]:
        lim = self.limits
        budget = lim.max_num_batched_tokens
        chunks: list[Chunk] = []
        preempted = False
        position = 0
        while position < len(self.running) and budget > 0:
            request = self.running[position]
            position += 1
            if request.sampled >= request.output:
                continue
            new = min(max(request.target - request.computed, 1), budget)
            done = self._allocate(request, request.computed + new)
            while not done:
                victim = self.running.pop()
                preempted = True
                self._preempt(victim)
                if victim is request:
                    break
                done = self._allocate(request, request.computed + new)
            if not done:
                break
            budget -= new
            self._take(request, new, chunks)
        if preempted:
            return chunks
        adapters = {chunk[0].adapter for chunk in chunks} - {0}
        skipped: list[Request] = []
        while self.waiting and budget > 0 and len(self.running) < lim.max_num_seqs:
            request = self.waiting[0]
            if request.adapter and len(adapters) >= lim.max_loras and request.adapter not in adapters:
                skipped.append(self.waiting.popleft())
                continue
            need = -(-request.target // lim.block_size)
            if need > self.free:
                break
            new = min(request.target, budget)
            self._allocate(request, new)
            self.waiting.popleft()
            if request.adapter:
                adapters.add(request.adapter)
            self.running.append(request)
            budget -= new
            self._take(request, new, chunks)
        for request in reversed(skipped):
            self.waiting.appendleft(request)
        return chunks

    def _take(self, request: Request, new: int, chunks: list[Chunk]) -> None:
        prefill = request.computed < request.target - 1 or request.sampled == 0
        emits = request.computed + new >= request.target
        chunks.append((request, request.computed, new, prefill, emits))
        request.computed += new
        if emits:
            request.sampled += 1
            request.target = request.computed + 1

    def _allocate(self, request: Request, tokens: int) -> bool:
        need = -(-tokens // self.limits.block_size) - request.blocks
        if need > self.free:
            return False
        if need > 0:
            self.free -= need
            request.blocks += need
        return True

    def _preempt(self, request: Request) -> None:
        self.preemptions += 1
        self.free += request.blocks
        request.blocks = 0
        request.target = max(request.prompt + request.sampled, request.prompt)
        request.computed = 0
        self.waiting.appendleft(request)
