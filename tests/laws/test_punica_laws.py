"""Punica: coalesced == step by step == a loop over lists, and nothing is lost, migrated requests included."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import LATENCIES, examples
from support.compare import life, played, played_naively, row_sums, same_sums
from support.engine_laws import assert_conserves, assert_modes_agree, play
from support.fakes import TICK_S, FakeLatency, RoundLatency, requests_of_rows
from support.naive_punica import NaivePunica, Settings

from simlora.cluster.punica import PunicaConsolidation, PunicaPlacement
from simlora.cluster.router import RoundRobin
from simlora.engines.overlap_loading import OverlapLoading
from simlora.engines.punica.adapters import PunicaAdapters
from simlora.engines.punica.engine import PunicaEngine, PunicaLimits
from simlora.engines.request import Request, Requests
from simlora.latency.step import StepPlan
from simlora.memory.copies import CopyEngine, Stage
from simlora.memory.residents import ResidentSet
from simlora.sim.clock import Clock
from simlora.sim.invariants import InvariantChecker
from simlora.sim.replica import EngineReplica
from simlora.sim.simulation import Simulation

Row = tuple[int, int, int, int]
RANK = 16


@dataclass(frozen=True)
class Case:
    """One GPU and its requests: rows of (gap to the arrival before in ticks, adapter, prompt, output)."""

    settings: Settings
    rows: tuple[Row, ...]
    latency: RoundLatency

    def requests(self) -> list[Request]:
        return requests_of_rows(self.rows, lambda adapter: RANK if adapter else 0)

    def engine(self) -> PunicaEngine:
        return make_engine(self.settings)

    def naive(self) -> tuple[NaivePunica, list]:  # type: ignore[type-arg]
        replica = NaivePunica(self.settings)
        return replica, replica.run(self.requests(), self.latency)


def make_engine(settings: Settings, shared_link: bool = False) -> PunicaEngine:
    """shared_link: copies share bandwidth; else each takes its own time, however many there are."""
    limits = PunicaLimits(settings.batch, settings.pages, settings.page, settings.buffers, settings.prefetch)
    if not settings.buffers:
        return PunicaEngine(limits, None)

    def stages(rank: int, tier: str) -> list[Stage]:
        if shared_link:
            return [Stage("host", rank * 0.002, 0.001)]
        return [Stage("host", 0.0, settings.copy_s or 0.0)]

    copies = None if settings.copy_s is None else OverlapLoading(CopyEngine({"host": 1.0}), stages)
    return PunicaEngine(limits, PunicaAdapters(ResidentSet(settings.buffers), copies))


@st.composite
def cases(
    draw: st.DrawFn,
    buffers: tuple[int, int] = (1, 4),
    spare_pages: tuple[int, int] = (0, 12),
    batch: tuple[int, int] = (1, 8),
    requests: int = 16,
    overlap: bool | None = None,
) -> Case:
    count, places = draw(st.integers(0, 6)), draw(st.integers(*buffers))
    gaps = st.sampled_from((0, 0, 1000, 3000, 8000, 40_000, 400_000))
    output = st.one_of(st.just(1), st.integers(1, 40))
    row = st.tuples(gaps, st.integers(0, count if places else 0), st.integers(1, 40), output)
    rows = draw(st.lists(row, min_size=1, max_size=requests))
    page = draw(st.sampled_from((1, 4, 16)))
    longest = max(prompt + output for _, _, prompt, output in rows)
    beside = draw(st.booleans()) if overlap is None else overlap
    settings = Settings(
        batch=draw(st.integers(*batch)),
        pages=-(-longest // page) + draw(st.integers(*spare_pages)),
        page=page,
        buffers=places,
        copy_s=draw(st.sampled_from((5000, 20_000, 100_000))) * TICK_S if beside else None,
        prefetch=draw(st.booleans()),
    )
    latency = draw(st.sampled_from(tuple(LATENCIES.values())))
    return Case(settings, tuple(rows), replace(latency, valid_steps=draw(st.sampled_from((2, 5, 1 << 40)))))


def agree(case: Case) -> None:
    simulation = play(case.engine, case.requests(), case.latency)
    naive, jobs = case.naive()
    assert played(simulation.requests) == played_naively(jobs)
    engine = simulation.replicas[0].engine
    assert engine.counters().evictions == naive.evictions
    assert engine.used_blocks() == 0 and naive.free == case.settings.pages
    assert_conserves(simulation)


@examples(150)
@given(cases())
def test_everything_binds(case: Case) -> None:
    agree(case)


@examples(150)
@given(cases(spare_pages=(0, 4), batch=(3, 8), buffers=(0, 6), requests=10))
def test_out_of_pages(case: Case) -> None:
    agree(case)


@examples(150)
@given(cases(buffers=(1, 2), spare_pages=(300, 400), overlap=True))
def test_few_buffers(case: Case) -> None:
    agree(case)


@examples(120)
@given(cases(requests=10))
def test_every_plan(case: Case) -> None:
    """Not only when requests came and went: each step's requests, tokens, contexts, adapters and loads."""

    def comparable(plan: StepPlan) -> StepPlan:
        return plan._replace(max_repeat=1, mix=None)

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
    assert planned == naive.plans


@dataclass(frozen=True)
class CopyingLatency(FakeLatency):
    """Steps are slower while adapters are copied."""

    def price(self, plan):  # type: ignore[no-untyped-def]
        timing = super().price(plan)
        return timing._replace(base_s=timing.base_s * (1.25 if plan.copying else 1.0))


@examples(100)
@given(cases(requests=24), st.integers(1, 3), st.sampled_from(("round-robin", "least-requests")))
def test_coalesced_is_step_by_step(case: Case, replicas: int, router: str) -> None:
    """With copies that share links and slow the steps down, and times that are rounded."""
    for latency in (CopyingLatency(), CopyingLatency(valid_steps=3)):
        assert_modes_agree(
            lambda: make_engine(case.settings, shared_link=True), case.requests, latency, replicas=replicas,
            router=router,
        )  # fmt: skip


@dataclass(frozen=True)
class Cluster:
    """GPUs behind Punica's own scheduler."""

    gpus: int
    tick_s: float | None

    def play(
        self, case: Case, coalesce: bool, latency: RoundLatency | FakeLatency, cut_s: float | None = None
    ) -> Simulation:
        settings, clock, checker = case.settings, Clock(), InvariantChecker()
        engines = [make_engine(settings, shared_link=True) for _ in range(self.gpus)]
        requests = Requests(case.requests())
        replicas = [EngineReplica(i, engine, latency, requests, coalesce) for i, engine in enumerate(engines)]
        for replica in replicas:
            replica.on_boundary = checker.check
        gpu = settings.batch, settings.pages, settings.page
        router = PunicaPlacement(*gpu) if self.tick_s is None else PunicaConsolidation(*gpu, self.tick_s)
        simulation = Simulation(clock, replicas, router, requests, latency.frontend_in_s, cut_s=cut_s)
        simulation.run()
        checker.check_end(simulation.requests, drained=cut_s is None)
        return simulation


clusters = st.builds(Cluster, st.integers(2, 4), st.sampled_from((None, 0.02, 3000 * TICK_S, 0.0501)))


SPREAD = cases(requests=14, batch=(2, 4), spare_pages=(60, 90), buffers=(0, 4))
"""Small batches with room, so that GPUs are used one after the other, and emptied."""


@examples(150)
@given(st.one_of(cases(requests=24, spare_pages=(0, 30)), SPREAD), clusters, st.booleans())
def test_placement_and_migration(case: Case, cluster: Cluster, rounded: bool) -> None:
    """Coalesced is step by step, and every request gets its tokens once wherever it goes."""
    latency = CopyingLatency() if rounded else case.latency
    fast, slow = (cluster.play(case, coalesce, latency) for coalesce in (True, False))
    assert [life(r) for r in fast.requests] == [life(r) for r in slow.requests]
    for one, other in zip(fast.replicas, slow.replicas, strict=True):
        assert one.engine.counters() == other.engine.counters()
        assert same_sums(row_sums(one), row_sums(other)) == []
    assert_conserves(fast)
    for request in fast.requests:  # decoded tokens and first ones of each residence add up to what was asked
        assert request.rejected or request.last_step - request.start_step + 1 + request.emitted == request.output_tokens
    emitted = sum(row_sums(r)["decoded"] for r in fast.replicas) + sum(len(first_tokens(r)) for r in fast.requests)
    assert emitted == sum(request.output_tokens for request in fast.requests if not request.rejected)


def test_held_requests_are_offered_one_at_a_time() -> None:
    """GPU 1 could finish request 11 before request 12 is looked at, if both were sent off in one event."""
    settings = Settings(batch=1, pages=4, page=1, buffers=1, copy_s=None, prefetch=False)
    rows = [(0, 0, 1, 1), (0, 0, 2, 1), *[(0, 0, 1, 1)] * 7, (0, 0, 1, 3), *[(0, 0, 1, 1)] * 3]
    case = Case(settings, tuple(rows), RoundLatency())
    fast, slow = (Cluster(2, None).play(case, coalesce, case.latency) for coalesce in (True, False))
    assert [life(r) for r in fast.requests] == [life(r) for r in slow.requests]


def first_tokens(request: Request) -> list[float]:
    """Each residence's first token: the request's first one, and those after an interruption."""
    return [] if request.rejected else [request.first_token_s, *request.interrupted]


@examples(60)
@given(cases(requests=16), clusters, st.floats(0.01, 1.0))
def test_a_cut_run_is_the_beginning_of_the_whole(case: Case, cluster: Cluster, cut_s: float) -> None:
    whole = cluster.play(case, True, case.latency)
    part = cluster.play(case, True, case.latency, cut_s)
    for one, other in zip(whole.requests, part.requests, strict=True):
        if one.last_token_s <= cut_s:
            assert one.last_token_s == other.last_token_s
