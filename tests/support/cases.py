"""Random small serving scenarios: few requests, little of everything, so that every limit binds now and then."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from hypothesis import Phase, settings
from hypothesis import strategies as st
from support.fakes import TICK_S, RoundLatency, TableLatency, columns_of, make_cluster, make_tiers, requests_of_rows
from support.naive_tiers import NaiveTiers
from support.naive_vllm import Job, NaiveReplica

from simlora.engines.request_columns import RequestColumns
from simlora.engines.vllm.batch import VllmLimits
from simlora.sim.simulation import Simulation

FACTOR = float(os.environ.get("SIMLORA_EXAMPLES_FACTOR", "1"))
"""Multiplies the number of examples of the property tests, for a longer search."""


def examples(count: int) -> settings:
    """Reproducible and bounded. A factor above 1 also looks at other examples."""
    return settings(
        max_examples=max(1, int(count * FACTOR)),
        derandomize=FACTOR <= 1,
        database=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )


COARSE = RoundLatency(
    host=2000, host_request=0, gpu=4000, gpu_request=0, gpu_adapter=0, token=0, context=0, front_in=0, front_out=0
)
"""Everything in thousands of ticks, as the arrivals are: many things happen at the same instant."""
LATENCIES = {
    "gpu-bound": RoundLatency(),
    "host-bound": RoundLatency(host=9000),
    "crossing": RoundLatency(host=4300, context=3),
    "launch-bound": RoundLatency(tail=700),
    "ties": COARSE,
    "growing ties": replace(COARSE, context=1000),
}
"""Regimes in which a repeated step costs the host as much as a new one."""
REBUILDING = {
    "rebuild": RoundLatency(rebuild=2500),
    "rebuild-sync": RoundLatency(rebuild=1500, sync=1200),
    "rebuild-crossing": RoundLatency(host=4300, context=3, rebuild=1500, sync=900),
    "rebuild-launch-bound": RoundLatency(tail=700, rebuild=1500, sync=1200),
}
"""Regimes in which a changed batch costs the host more."""


TABLES = {name: TableLatency(**vars(latency)) for name, latency in (LATENCIES | REBUILDING).items()}
"""The same by tables, so that the loop does not ask the scheduler about plain steps."""


@dataclass(frozen=True)
class Case:
    """One engine and its requests: rows of (gap to the arrival before in ticks, adapter, prompt, output)."""

    limits: VllmLimits
    rows: tuple[tuple[int, int, int, int], ...]
    latency: RoundLatency
    host: int
    """Places for adapters in host memory."""
    remote: bool = False

    def requests(self) -> RequestColumns:
        return columns_of(requests_of_rows(self.rows))

    def simulation(self, requests: RequestColumns, coalesce: bool = True, **kw) -> Simulation:  # type: ignore[no-untyped-def]
        return make_cluster(requests, self.limits, self.tiers, coalesce=coalesce, latency=self.latency, **kw)

    def tiers(self):  # type: ignore[no-untyped-def]
        return make_tiers(self.limits, self.host, self.remote) if self.limits.max_loras else None

    def naive(self) -> tuple[NaiveReplica, list[Job]]:
        """The same requests through the naive engine."""
        limits = self.limits
        tiers = NaiveTiers(limits.max_loras, self.host, limits.pinned, self.remote) if limits.max_loras else None
        replica = NaiveReplica(limits, self.latency, tiers)
        return replica, replica.run(self.requests())

    def with_limits(self, **changes: object) -> Case:
        return replace(self, limits=replace(self.limits, **changes))  # type: ignore[arg-type]


@st.composite
def cases(
    draw: st.DrawFn,
    latencies: tuple[RoundLatency, ...] = tuple(LATENCIES.values()),
    adapters: tuple[int, int] = (0, 6),
    slots: tuple[int, int] = (1, 4),
    pinned: tuple[int, int] = (0, 2),
    spare_kv: tuple[int, int] = (0, 12),
    seats: tuple[int, int] = (1, 8),
    requests: int = 16,
    max_prompt: int = 60,
    max_output: int = 30,
    gaps: tuple[int, ...] = (0, 0, 1000, 3000, 8000, 40_000, 400_000),
) -> Case:
    """slots and adapters of 0: LoRA is off. spare_kv: KV blocks besides those of the largest request."""
    count = draw(st.integers(*adapters))
    max_loras = draw(st.integers(*slots)) if count else 0
    fixed = min(draw(st.integers(*pinned)), max_loras - 1, count) if max_loras else 0
    output = st.one_of(st.just(1), st.integers(1, max_output))
    row = st.tuples(st.sampled_from(gaps), st.integers(0, count), st.integers(1, max_prompt), output)
    rows = draw(st.lists(row, min_size=1, max_size=requests))
    block_size = draw(st.sampled_from((1, 4, 16)))
    max_num_seqs = draw(st.integers(*seats))
    chunked = draw(st.sampled_from((True, True, False)))
    longest = max(prompt + output for _, _, prompt, output in rows)
    budget = max_num_seqs + draw(st.integers(0, 40)) if chunked else max(max_num_seqs, longest)
    limits = VllmLimits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        kv_blocks=-(-longest // block_size) + draw(st.integers(*spare_kv)),
        block_size=block_size,
        max_loras=max_loras,
        max_lora_rank=16,
        async_scheduling=draw(st.booleans()),
        enable_chunked_prefill=chunked,
        reserve_full_prompt=draw(st.booleans()),
        skipped_first=draw(st.booleans()),
        pinned=frozenset(range(1, fixed + 1)),
    )
    latency = draw(st.sampled_from(latencies))
    if draw(st.booleans()):
        latency = replace(latency, valid_steps=draw(st.integers(1, 5)))
    host = max_loras + draw(st.integers(0, 3))
    return Case(limits, tuple(rows), latency, host, draw(st.booleans()))


@dataclass(frozen=True)
class Cluster:
    """How a case is spread over replicas, and where the run is cut."""

    replicas: int
    router: str
    scrape_s: float
    delay_s: float

    def play(self, case: Case, coalesce: bool, cut_s: float | None = None, **kw) -> Simulation:  # type: ignore[no-untyped-def]
        simulation = case.simulation(case.requests(), coalesce, **vars(self), cut_s=cut_s, **kw)
        simulation.run()
        return simulation


clusters = st.builds(
    Cluster,
    replicas=st.integers(1, 3),
    router=st.sampled_from(("round-robin", "least-requests", "lora-affinity")),
    scrape_s=st.sampled_from((0.0, 3000 * TICK_S, 50_000 * TICK_S, 0.05, 0.0007)),
    delay_s=st.sampled_from((0.0, 2000 * TICK_S, 0.03)),
)
ALONE = Cluster(1, "round-robin", 0.0, 0.0)


@st.composite
def cuts(draw: st.DrawFn, case: Case) -> float:
    """Instants around an arrival, on a coarse grid and between."""
    arrivals = [r.arrival_s + case.latency.frontend_in_s for r in case.requests()]
    after = draw(st.one_of(st.sampled_from((0, 1000, 2000, 4000)), st.integers(0, 30_000)))
    return draw(st.sampled_from(arrivals)) + after * TICK_S
