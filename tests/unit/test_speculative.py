"""The acceptance model of speculative decoding."""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import examples

from simlora.engines.vllm.speculative import SpeculativeBatch


def emissions(batch: SpeculativeBatch, request: int) -> list[int]:
    """Tokens that each decode step of the request emits."""
    steps = range(batch.first_step(request) + 1, batch.last_step(request) + 2)
    emitted = [batch.emitted(request, step) for step in steps]
    return [after - before for before, after in pairwise(emitted)]


@pytest.mark.parametrize("draft", [1, 2, 4])
@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.7, 0.95, 1.0])
def test_mean_emission(draft: int, acceptance: float) -> None:
    """1 + a + ... + a^k tokens a step, within 4 standard errors."""
    batch = SpeculativeBatch(16, draft, acceptance, seed=3)
    steps: list[int] = []
    for request in range(10):
        batch.add(request, 10, 2000, 0, 0)
        steps += emissions(batch, request)[:-1]  # the last step is cut to what was asked
    mean = sum(steps) / len(steps)
    expected = sum(acceptance**i for i in range(draft + 1))
    variance = sum((s - mean) ** 2 for s in steps) / len(steps)
    assert batch.emitted_per_step == pytest.approx(expected)
    assert abs(mean - expected) <= 4 * math.sqrt(variance / len(steps)) + 1e-12
    assert set(steps) <= set(range(1, draft + 2))


@examples(100)
@given(st.integers(1, 5), st.floats(0, 1), st.integers(1, 60), st.integers(0, 99), st.integers(0, 5))
def test_a_request_emits_what_was_asked(draft: int, acceptance: float, output: int, request: int, step: int) -> None:
    batch = SpeculativeBatch(4, draft, acceptance, seed=1)
    batch.add(request, 10, output, 0, step)
    assert 1 + sum(emissions(batch, request)) == output
    assert all(1 <= e <= draft + 1 for e in emissions(batch, request))


@examples(50)
@given(st.permutations(range(6)), st.integers(0, 5))
def test_draws_belong_to_the_request(order: list[int], left_out: int) -> None:
    """Neither the order of admission, nor the step, nor the other requests change them."""
    alone = []
    for request in range(6):
        batch = SpeculativeBatch(16, 3, 0.6, seed=9)
        batch.add(request, 10, 40, 0, 0)
        alone.append(emissions(batch, request))
    together = SpeculativeBatch(16, 3, 0.6, seed=9)
    for position, request in enumerate(order):
        if request != left_out:
            together.add(request, 10, 40, 0, position)
            assert emissions(together, request) == alone[request]
    assert len({tuple(a) for a in alone}) == 6


def test_another_seed_draws_otherwise() -> None:
    drawn = []
    for seed in (1, 2):
        batch = SpeculativeBatch(16, 3, 0.6, seed)
        batch.add(0, 10, 60, 0, 0)
        drawn.append(emissions(batch, 0))
    assert drawn[0] != drawn[1]


@examples(100)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30), st.integers(0, 2)), min_size=1, max_size=6),
    st.integers(1, 4),
    st.sampled_from((1, 4, 16)),
)
def test_aggregates(members: list[tuple[int, int, int]], draft: int, block_size: int) -> None:
    """Context and block demand, recounted per request; a step holds blocks for all its draft tokens."""
    batch, alive = SpeculativeBatch(block_size, draft, 0.5, seed=2), {}
    for request, (prompt, output, adapter) in enumerate(members):
        alive[request] = prompt
        batch.add(request, prompt, output, 8 * adapter, 0)
    step = 1
    while alive:
        for gone, _ in batch.retire(step):
            del alive[gone]
        context = {request: prompt + batch.emitted(request, step) - 1 for request, prompt in alive.items()}
        assert batch.context_tokens(step) == sum(context.values())
        assert batch.count == len(alive)
        for request in alive:
            assert batch.blocks(request, step) == -(-(context[request] + 1 + draft) // block_size)
        growth = sum(batch.blocks(r, step) - batch.blocks(r, step - 1) for r in alive)
        assert batch.growth(step) == growth
        step += 1
    assert (batch.count, batch.lora_count, batch.rank_sum) == (0, 0, 0)
