"""SGLang: coalesced == step by step == a scheduler that walks lists, and nothing is lost."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import LATENCIES, examples
from support.compare import played, played_naively
from support.engine_laws import assert_conserves, assert_modes_agree, play
from support.fakes import TICK_S, FakeLatency, RoundLatency, requests_of_rows
from support.naive_sglang import NaiveSglang, Settings

from simlora.cluster.router import RoundRobin
from simlora.engines.overlap_loading import OverlapLoading
from simlora.engines.request import Request, Requests
from simlora.engines.sglang.budget import TokenRatio
from simlora.engines.sglang.drainer import Drainer
from simlora.engines.sglang.engine import SglangEngine, SglangLimits
from simlora.engines.sglang.slots import SlotPool
from simlora.latency.step import StepPlan
from simlora.memory.copies import CopyEngine, Stage
from simlora.sim.clock import Clock
from simlora.sim.replica import EngineReplica
from simlora.sim.simulation import Simulation

COPY_S = {"host": 20_000 * TICK_S, "disk": 200_000 * TICK_S, "remote": 500_000 * TICK_S}
Row = tuple[int, int, int, int]


@dataclass(frozen=True)
class Case:
    """One server and its requests: rows of (gap to the arrival before in ticks, adapter, prompt, output)."""

    settings: Settings
    rows: tuple[Row, ...]
    latency: RoundLatency

    def requests(self) -> list[Request]:
        return requests_of_rows(self.rows)

    def engine(self) -> SglangEngine:
        return make_engine(self.settings)

    def naive(self) -> tuple[NaiveSglang, list]:  # type: ignore[type-arg]
        replica = NaiveSglang(self.settings)
        return replica, replica.run(self.requests(), self.latency)


def make_engine(settings: Settings, shared_link: bool = False) -> SglangEngine:
    """shared_link: copies share bandwidth; else each takes its own time, however many there are."""
    limits = SglangLimits(
        settings.running, settings.chunk, settings.prefill, settings.kv, settings.slots, settings.pinned, settings.mixed
    )
    ratio = TokenRatio(settings.ratio, settings.floor, settings.decay)
    pool = SlotPool(settings.slots, settings.pinned, settings.policy, settings.host, settings.remote)
    drainer = Drainer(settings.slots, settings.drain_s) if settings.drain_s > 0 else None
    loader = None
    if settings.copy_s is not None:

        def stages(rank: int, tier: str) -> list[Stage]:
            if shared_link:
                read = [Stage("disk", rank * 0.003)] if tier != "host" else []
                return [*read, Stage("host", rank * 0.002, 0.001)]
            return [Stage("host", 0.0, settings.copy_s[tier])]

        loader = OverlapLoading(CopyEngine({"host": 1.0, "disk": 1.0}), stages)
    return SglangEngine(limits, ratio, pool if settings.slots else None, drainer, loader)


@st.composite
def cases(
    draw: st.DrawFn,
    slots: tuple[int, int] = (1, 4),
    overlap: bool | None = None,
    drain: bool | None = None,
    mixed: bool | None = None,
    spare_kv: tuple[int, int] = (0, 60),
    seats: tuple[int, int] = (1, 8),
    requests: int = 14,
    max_prompt: int = 40,
    max_output: int = 30,
    ratio: tuple[float, ...] = (0.75, 0.0625),
) -> Case:
    count = draw(st.integers(0, 6))
    places = draw(st.integers(*slots))
    pinned = min(draw(st.integers(0, 2)), places - 1, count) if places else 0
    gaps = st.sampled_from((0, 0, 1000, 3000, 8000, 40_000, 400_000))
    output = st.one_of(st.just(1), st.integers(1, max_output))
    row = st.tuples(gaps, st.integers(0, count), st.integers(1, max_prompt), output)
    rows = draw(st.lists(row, min_size=1, max_size=requests))
    longest = max(prompt + output for _, _, prompt, output in rows)
    host = draw(st.sampled_from((None, places, places + 1, places + 2))) if places else None
    chunk = draw(st.integers(1, 60))
    settings = Settings(
        running=draw(st.integers(*seats)),
        chunk=chunk,
        prefill=draw(st.sampled_from((chunk, chunk + 7, max(chunk // 2, 1), 1000))),
        kv=longest + 2 + draw(st.integers(*spare_kv)),
        slots=places,
        pinned=frozenset(range(1, pinned + 1)),
        mixed=draw(st.booleans()) if mixed is None else mixed,
        ratio=draw(st.sampled_from(ratio)),
        floor=0.0625,
        decay=draw(st.sampled_from((2**-6, 2**-3))),
        policy=draw(st.sampled_from(("lru", "fifo"))),
        host=host,
        remote=host is not None and draw(st.booleans()),
        drain_s=(draw(st.sampled_from((1000, 8000, 60_000))) * TICK_S if draw(st.booleans()) else 0.0)
        if drain is None
        else drain * 8000 * TICK_S,
        copy_s=COPY_S if places and (draw(st.booleans()) if overlap is None else overlap) else None,
    )
    if not places:
        settings = replace(settings, drain_s=0.0)
    latency = draw(st.sampled_from(tuple(LATENCIES.values())))
    return Case(settings, tuple(rows), replace(latency, valid_steps=draw(st.sampled_from((2, 5, 1 << 40)))))


def agree(case: Case, coalesce: bool = True) -> None:
    simulation = play(case.engine, case.requests(), case.latency, coalesce)
    naive, jobs = case.naive()
    assert played(simulation.requests) == played_naively(jobs)
    engine = simulation.replicas[0].engine
    assert engine.counters().evictions == naive.evictions
    assert engine.used_blocks() == 0 and naive.free == case.settings.kv
    assert_conserves(simulation)


@examples(150)
@given(cases())
def test_everything_binds(case: Case) -> None:
    agree(case)


@examples(120)
@given(cases(overlap=False, drain=False, spare_kv=(400, 600)))
def test_with_memory_for_all(case: Case) -> None:
    agree(case)


SHORT_OF_MEMORY = cases(
    seats=(3, 8), spare_kv=(0, 40), slots=(4, 8), drain=False, max_prompt=8, max_output=60, ratio=(0.0625,)
)


@examples(150)
@given(SHORT_OF_MEMORY)
def test_with_retractions(case: Case) -> None:
    agree(case)


@examples(100)
@given(cases(drain=True, slots=(1, 3), spare_kv=(200, 300)))
def test_draining(case: Case) -> None:
    agree(case)


@examples(100)
@given(cases(overlap=True, slots=(1, 3), seats=(2, 8)))
def test_overlapped_loading(case: Case) -> None:
    agree(case)


@examples(60)
@given(cases(slots=(0, 0)))
def test_without_lora(case: Case) -> None:
    agree(case)


@examples(150)
@given(st.one_of(cases(requests=10), SHORT_OF_MEMORY))
def test_every_plan(case: Case) -> None:
    """Not only when requests came and went: each step's requests, tokens, contexts, adapters and loads."""

    def comparable(plan: StepPlan) -> StepPlan:
        return plan._replace(max_repeat=1, mix=None, loads=tuple(sorted(plan.loads)))

    planned = []

    def note(replica: EngineReplica, now_s: float) -> None:
        if replica._plan is not None:
            planned.append((now_s, comparable(replica._plan)))

    clock = Clock()
    requests = Requests(case.requests())
    replica = EngineReplica(0, case.engine(), case.latency, requests, coalesce=False)
    replica.on_boundary = note
    Simulation(clock, [replica], RoundRobin(1), requests, case.latency.frontend_in_s).run()
    naive, _ = case.naive()
    assert planned == [(now_s, comparable(plan)) for now_s, plan in naive.plans]


@dataclass(frozen=True)
class CopyingLatency(FakeLatency):
    """Steps are slower while adapters are copied."""

    def price(self, plan):  # type: ignore[no-untyped-def]
        timing = super().price(plan)
        return timing._replace(base_s=timing.base_s * (1.25 if plan.copying else 1.0))


@examples(90)
@given(cases(overlap=True, requests=20), st.integers(1, 3), st.sampled_from(("round-robin", "lora-affinity")))
def test_coalesced_is_step_by_step(case: Case, replicas: int, router: str) -> None:
    """With copies that share links and slow the steps down, and times that are rounded."""
    for latency in (CopyingLatency(), CopyingLatency(valid_steps=3)):
        assert_modes_agree(
            lambda: make_engine(case.settings, shared_link=True), case.requests, latency, replicas=replicas,
            router=router,
        )  # fmt: skip


@examples(120)
@given(st.one_of(cases(requests=20), SHORT_OF_MEMORY))
def test_coalesced_is_step_by_step_in_all_modes(case: Case) -> None:
    assert_modes_agree(case.engine, case.requests, FakeLatency())
