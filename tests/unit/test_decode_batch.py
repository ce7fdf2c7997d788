"""DecodeBatch against a batch that counts every token of every request."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import examples

from simlora.engines.decode_batch import DecodeBatch


@dataclass
class Naive:
    """Context before the next step, and tokens still to come."""

    context: int
    left: int

    def needs_block(self, block_size: int) -> bool:
        return self.context % block_size == 0


member = st.tuples(st.integers(1, 70), st.integers(1, 40), st.integers(0, 3))
"""prompt, output, adapter"""
sizes = st.sampled_from((1, 2, 4, 16))


def batch_of(members: list[tuple[int, int, int]], block_size: int, step: int = 0) -> DecodeBatch:
    """Requests 0, 1, ...: all prompts complete in `step`, whose first decode step is step + 1."""
    batch = DecodeBatch(block_size)
    for request, (prompt, output, adapter) in enumerate(members):
        batch.add(request, prompt, output, 8 * adapter, step)
    return batch


@examples(100)
@given(st.lists(member, min_size=1, max_size=8), sizes, st.integers(0, 40), st.integers(1, 50))
def test_blocks_over_many_steps(members: list[tuple[int, int, int]], block_size: int, start: int, steps: int) -> None:
    members = [(prompt, 1000, adapter) for prompt, _, adapter in members]
    batch = batch_of(members, block_size, start)
    naive = [Naive(prompt, 1000) for prompt, _, _ in members]
    needed = []
    for step in range(start + 1, start + 1 + steps):
        assert batch.context_tokens(step) == sum(n.context for n in naive)
        needed.append(sum(n.needs_block(block_size) for n in naive))
        assert batch.growth(step) == needed[-1]
        for n in naive:
            n.context += 1
    for begin in range(0, steps, 7):
        assert batch.new_blocks(start + 1 + begin, steps - begin) == sum(needed[begin:])


@examples(130)
@given(st.lists(member, min_size=1, max_size=8), sizes, st.integers(0, 40), st.integers(0, 120))
def test_steps_within_is_the_most_that_fits(
    members: list[tuple[int, int, int]], block_size: int, start: int, free: int
) -> None:
    batch = batch_of(members, block_size, start)
    steps = batch.steps_within(start + 1, free)
    assert batch.new_blocks(start + 1, steps) <= free < batch.new_blocks(start + 1, steps + 1)


@examples(100)
@given(st.lists(member, min_size=1, max_size=8), sizes, st.data())
def test_members_come_and_go(members: list[tuple[int, int, int]], block_size: int, data: st.DataObject) -> None:
    """Joining at different steps, leaving by completion or by preemption: every aggregate stays right."""
    batch = DecodeBatch(block_size)
    outputs: list[int] = []
    ranks: list[int] = []
    naive: dict[int, Naive] = {}
    step = 0
    while members or naive:
        for request, blocks in batch.retire(step):
            gone = naive.pop(request)
            assert (gone.left, blocks) == (0, -(-gone.context // block_size))
        assert all(n.left > 0 for n in naive.values())
        if naive and data.draw(st.integers(0, 9)) == 0:
            victim = data.draw(st.sampled_from(sorted(naive)))
            assert batch.emitted(victim, step) == outputs[victim] - naive.pop(victim).left
            batch.remove(victim)
        assert batch.count == len(naive)
        assert batch.context_tokens(step) == sum(n.context for n in naive.values())
        assert batch.growth(step) == sum(n.needs_block(block_size) for n in naive.values())
        for request, n in naive.items():
            assert batch.request_growth(request, step) == n.needs_block(block_size)
            assert batch.blocks(request, step) == -(-(n.context + 1) // block_size)
        assert batch.lora_count == sum(ranks[r] > 0 for r in naive)
        assert batch.rank_sum == sum(ranks[r] for r in naive)
        for n in naive.values():
            n.context, n.left = n.context + 1, n.left - 1
        if members:
            prompt, output, adapter = members.pop()
            batch.add(len(outputs), prompt, output, 8 * adapter, step)
            naive[len(outputs)] = Naive(prompt, output - 1)
            outputs.append(output)
            ranks.append(8 * adapter)
        step += 1
    assert (batch.count, batch.base_sum, batch.lora_count, batch.rank_sum) == (0, 0, 0, 0)
    assert not any(batch.bins)


def test_after_a_preemption_the_context_starts_at_prompt_and_emitted_tokens() -> None:
    batch = batch_of([(10, 5, 1)], 4)
    assert batch.emitted(0, 3) == 3
    batch.remove(0)
    batch.add(0, 13, 2, 8, 7)
    assert batch.context_tokens(8) == 13
    assert (batch.first_step(0), batch.last_step(0)) == (7, 8)
    assert batch.retire(8) == []
    assert batch.retire(9) == [(0, 4)]


@pytest.mark.parametrize("output, last", [(1, 4), (2, 5), (9, 12)])
def test_last_token_comes_out_of_the_last_step(output: int, last: int) -> None:
    batch = batch_of([(10, output, 0)], 16, step=4)
    assert batch.last_step(0) == last
    assert batch.retire(last) == []
    assert batch.retire(last + 1) == [(0, -(-(9 + output) // 16))]
