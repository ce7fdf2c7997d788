"""Random small LoRAX scenarios: little budget for adapters, few blocks, short turns, so that every rule binds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st
from support.cases import LATENCIES, REBUILDING
from support.fakes import TICK_S, RoundLatency, requests_of_rows
from support.naive_lorax import NaiveLorax

from simlora.engines.lorax.batching import LoraxLimits
from simlora.engines.lorax.engine import LoraxEngine
from simlora.engines.lorax.loader import Loader, LoaderTimes
from simlora.engines.lorax.profile import padded_rank
from simlora.engines.request import Request
from simlora.latency.step import StepPlan, StepTiming

RANKS = (8, 16, 40)
SHARES = {0: 0.0, 8: 0.125, 16: 0.25, 40: 0.625}
"""Of the memory budget, by rank."""


@dataclass(frozen=True)
class Stalling:
    """A latency of round numbers with the time that the engine adds to a step, and loads that many times faster."""

    inner: Any = field(default_factory=RoundLatency)
    faster: int = 1
    """A power of two."""

    @property
    def frontend_in_s(self) -> float:
        return self.inner.frontend_in_s

    def price(self, plan: StepPlan) -> StepTiming:
        loads_s = sum(self.load_s(rank, tier) for _, rank, tier in plan.loads)
        return self.inner.price(plan)._replace(load_s=loads_s + plan.extra_s)

    def load_s(self, rank: int, tier: str) -> float:
        return self.inner.load_s(rank, tier) / self.faster

    def frontend_out_s(self, running: float) -> float:
        return self.inner.frontend_out_s(running)


ROUND = tuple(Stalling(latency) for latency in (*LATENCIES.values(), *REBUILDING.values()))


def rank_of(adapter: int) -> int:
    return RANKS[adapter % len(RANKS)] if adapter else 0


@dataclass(frozen=True)
class LoraxCase:
    """Rows of (gap to the arrival before in ticks, adapter, prompt, output)."""

    limits: LoraxLimits
    rows: tuple[tuple[int, int, int, int], ...]
    latency: Any = field(default_factory=Stalling)
    download: int | None = None
    """Ticks; None: all adapters are on the disk."""
    offload: int = 700
    host_cache: bool = False
    resident: frozenset[int] = frozenset({0})

    def requests(self) -> list[Request]:
        return requests_of_rows(self.rows, rank_of)

    def times(self) -> LoaderTimes:
        download = self.download
        return LoaderTimes(
            load_s=self.latency.load_s,
            cost=lambda adapter, rank: 0.0 if adapter in self.resident else SHARES[rank],
            download_s=None if download is None else lambda rank: (download + rank) * TICK_S,
            offload_s=self.offload * TICK_S,
            host_cache=self.host_cache,
            resident=self.resident,
        )

    def engine(self) -> LoraxEngine:
        return LoraxEngine(self.limits, Loader(self.times()), padded_rank)

    def naive(self) -> NaiveLorax:
        return NaiveLorax(self.limits, self.times(), self.latency, padded_rank)


@st.composite
def lorax_cases(
    draw: st.DrawFn,
    latencies: tuple[Any, ...] = ROUND,
    adapters: tuple[int, int] = (0, 7),
    spare_kv: tuple[int, int] = (0, 40),
    requests: int = 16,
    max_prompt: int = 40,
    max_output: int = 30,
    gaps: tuple[int, ...] = (0, 0, 1000, 3000, 8000, 40_000, 400_000),
    chunked: tuple[bool, ...] = (False, False, True),
    names: tuple[int, ...] = (),
    ratios: tuple[float, ...] = (1.2, 0.3, 0.0, 1.0, 2.5),
) -> LoraxCase:
    """names: adapters to choose from, instead of some of the first."""
    count = draw(st.integers(*adapters))
    row = st.tuples(
        st.sampled_from(gaps), st.sampled_from(names) if names else st.integers(0, count), st.integers(1, max_prompt),
        st.one_of(st.just(1), st.integers(1, max_output)),
    )  # fmt: skip
    rows = draw(st.lists(row, min_size=1, max_size=requests))
    block_size = draw(st.sampled_from((1, 4, 16)))
    longest = max(prompt + output for _, _, prompt, output in rows)
    limits = LoraxLimits(
        kv_blocks=-(-longest // block_size) + draw(st.integers(*spare_kv)),
        block_size=block_size,
        max_batch_prefill_tokens=draw(st.integers(2, 60)),
        waiting_served_ratio=draw(st.sampled_from(ratios)),
        max_waiting_tokens=draw(st.sampled_from((20, 1, 3, 7))),
        max_concurrent_requests=draw(st.sampled_from((1024, 1024, 6))),
        max_active_adapters=draw(st.sampled_from((1024, 1, 2))),
        adapter_cycle_time_s=draw(st.sampled_from((5000, 20_000, 50_001, 300_000))) * TICK_S,
        chunked_prefill=draw(st.sampled_from(chunked)),
        eager_prefill=draw(st.sampled_from((True, True, False))),
    )
    latency = replace(draw(st.sampled_from(latencies)), faster=draw(st.sampled_from((1, 32, 256))))
    if draw(st.booleans()) and isinstance(latency.inner, RoundLatency):
        latency = replace(latency, inner=replace(latency.inner, valid_steps=draw(st.integers(1, 5))))
    resident = frozenset({0, 1}) if count and draw(st.sampled_from((False, False, True))) else frozenset({0})
    return LoraxCase(
        limits, tuple(rows), latency, draw(st.sampled_from((None, None, 0, 30_000))),
        draw(st.sampled_from((700, 0, 9000))), draw(st.booleans()), resident,
    )  # fmt: skip
