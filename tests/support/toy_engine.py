"""An engine in one file, where a real one has a schema in scenario/engines/ and a folder in engines/: one request at a
time, first come, first served, its adapter copied in its first step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from pydantic import Field

from simlora.engines.base import SEQS, Capacity
from simlora.engines.inputs import Inputs
from simlora.engines.request import Request
from simlora.engines.shortages import common
from simlora.engines.spec import EngineSpec, Limits
from simlora.engines.sync_engine import SyncEngine
from simlora.engines.whole_adapters import buffer_words, largest_rank, projection_loads
from simlora.latency.profile import EngineProfile
from simlora.latency.step import HOST, StepPlan
from simlora.memory.buffers import buffer_ledger
from simlora.memory.inputs import MemoryInputs
from simlora.scenario.base import auto
from simlora.scenario.engines.base import PublishedEngine
from simlora.scenario.engines.published_checks import check_common
from simlora.scenario.root import Scenario


class SoloConfig(PublishedEngine):
    """One request at a time."""

    spec: ClassVar[str] = f"{__name__}:SPEC"
    kind: Literal["solo"] = Field(default="solo", description="Serving engine")
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1, description="Share of GPU memory the engine may use")
    max_num_batched_tokens: int = auto("Tokens in one step; null: max_model_len", ge=1)

    max_num_seqs: ClassVar[int] = 1
    max_loras: ClassVar[int] = 1
    max_lora_rank: ClassVar[int] = 256
    max_cpu_loras: ClassVar[int] = 1 << 20
    block_size: ClassVar[int] = 16
    async_scheduling: ClassVar[bool] = False
    enable_chunked_prefill: ClassVar[bool] = False
    enforce_eager: ClassVar[bool] = True
    eviction: ClassVar[str] = "lru"

    def resolved(self, scenario: Scenario) -> Self:
        engine = self.with_common(scenario, kernels="loop")
        return engine.filled(max_num_batched_tokens=engine.max_model_len)

    def check(self, scenario: Scenario) -> None:
        check_common(self, scenario)


class SoloEngine(SyncEngine):
    """A scheduler for one request."""

    def __init__(self, capacity: Capacity) -> None:
        super().__init__(capacity)
        self.queue: deque[Request] = deque()
        self.adapter = 0
        """In the one buffer."""
        self._planned = -1

    def blocks(self, request: Request) -> int:
        return -(-(request.prompt_tokens + request.output_tokens) // self.capacity.block_size)

    def fits(self, request: Request) -> bool:
        return self.blocks(request) <= self.capacity.kv_blocks

    def enqueue(self, request: Request, now_s: float) -> bool:
        self.queue.append(request)
        self.arrival_reason = SEQS
        return not self.running

    def form_step(self, now_s: float) -> StepPlan | None:
        self.loading, self.blocked = [], SEQS
        if self.running or not self.queue:
            changed, self._planned = self.version != self._planned, self.version
            return self.plan((), self.steps_to_completion(), changed=changed) if self.running else None
        request = self.queue.popleft()
        self.admit(request, now_s)
        missing = request.adapter not in (0, self.adapter)
        self.count_load(request, int(missing))
        if missing:
            self.evictions += self.adapter != 0
            self.adapter, self.loading = request.adapter, [request]
        loads = ((request.adapter, request.rank, HOST),) if missing else ()
        plan = self.plan([(request, request.prompt_tokens)], loads=loads)
        self.complete_prompt(request)
        return plan

    def release(self, request: Request, now_s: float) -> None:
        """Nobody else holds anything."""

    def extend(self, steps: int) -> None:
        """Everything is there from the start."""

    def used_blocks(self) -> int:
        return sum(map(self.blocks, self.running.values()))

    def waiting_count(self) -> int:
        return len(self.queue)

    def violations(self) -> Iterator[tuple[str, str]]:
        if len(self.running) > 1:
            yield "INV-3", f"{len(self.running)} requests run"


def make_solo(inputs: Inputs) -> SoloEngine:
    return SoloEngine(Capacity(inputs.ledger.kv_units, inputs.ledger.kv_unit_tokens, slots=1))


SPEC = EngineSpec(
    kind="solo",
    build=make_solo,
    ledger=lambda scenario: buffer_ledger(MemoryInputs.of(scenario)),
    shortages=common,
    profile=lambda engine: EngineProfile(
        "solo", "alternating", "loop", "loop", projection_loads(engine), torch_launches=15
    ),
    options=lambda scenario, share: iter(()),
    adapter_memory=buffer_words,
    slot_rank=largest_rank,
    limits=Limits(tokens=None),
)
