"""Laws of pools, resident sets, tiers, copies and the byte ledger, on random histories."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simlora.engines.vllm.ledger import compute_ledger
from simlora.memory.copies import CopyEngine, Stage
from simlora.memory.ledger import ledger_rows
from simlora.memory.pools import Pool
from simlora.memory.residents import AdapterTiers, ResidentSet, make_policy
from simlora.memory.tensors import MemorySettings
from simlora.scenario.gpu import GPUS
from simlora.scenario.model import MODELS

adapters = st.integers(1, 12)
policies = st.sampled_from(["lru", "weighted-lru"])


@given(st.integers(0, 200), st.lists(st.tuples(st.sampled_from(["kv", "adapter"]), st.integers(0, 60), st.booleans())))
def test_a_pool_neither_loses_nor_invents_units(total: int, calls: list[tuple[str, int, bool]]) -> None:
    pool = Pool(total)
    held = {"kv": 0, "adapter": 0}
    for kind, units, give_back in calls:
        if give_back:
            units = min(units, held[kind])
            pool.free(units, kind)
            held[kind] -= units
        else:
            fits = units <= total - sum(held.values())
            assert pool.allocate(units, kind) == fits
            held[kind] += units if fits else 0
        assert {kind: pool.used(kind) for kind in held} == held
        pool.check()


@given(policies, st.integers(1, 6), st.lists(st.tuples(adapters, st.sampled_from(["use", "release", "touch"]))))
def test_a_resident_set_evicts_only_the_idle(policy: str, capacity: int, calls: list[tuple[int, str]]) -> None:
    residents = ResidentSet(capacity, make_policy(policy), pinned=(1,))
    held: dict[int, int] = {}
    for now, (adapter, call) in enumerate(calls):
        if call == "release":
            if held.get(adapter):
                held[adapter] -= 1
                residents.release(adapter, float(now))
        elif adapter in residents:
            if call == "use":
                residents.use(adapter)
                held[adapter] = held.get(adapter, 0) + 1
            else:
                residents.touch(adapter, float(now))
        elif residents.can_add():
            expected = residents.victim()
            victim = residents.add(adapter, float(now))
            assert victim == expected
            assert victim != 1 and not held.get(victim or 0)
        else:
            assert all(held.get(resident) or resident == 1 for resident in residents)
        residents.check()


@given(st.integers(1, 6), st.lists(adapters, max_size=60))
def test_lru_keeps_the_last_distinct_adapters(capacity: int, calls: list[int]) -> None:
    residents = ResidentSet(capacity)
    for now, adapter in enumerate(calls):
        if adapter in residents:
            residents.touch(adapter, float(now))
        else:
            residents.add(adapter, float(now))
    recent = list(dict.fromkeys(reversed(calls)))[:capacity]
    assert set(residents) == set(recent)


@given(policies, st.integers(1, 4), st.integers(0, 4), st.booleans(), st.lists(st.tuples(adapters, st.booleans())))
def test_tiers_stay_consistent_and_say_who_left(
    policy: str, slots: int, more: int, remote: bool, calls: list[tuple[int, bool]]
) -> None:
    tiers = AdapterTiers(
        ResidentSet(slots, make_policy(policy)), ResidentSet(slots + more, make_policy(policy)), remote
    )
    held: list[int] = []
    for now, (adapter, keep) in enumerate(calls):
        if len(held) > 2:
            tiers.release(held.pop(0), float(now))
        before = set(tiers.slots), set(tiers.host)
        if not tiers.can_activate(adapter):
            assert len(set(held)) == slots and adapter not in held
            continue
        found = tiers.tier(adapter)
        step = tiers.activate(adapter, float(now))
        assert step.tier == found
        assert before[0] - set(tiers.slots) == {step.slot_victim} - {None}
        assert before[1] - set(tiers.host) == {step.host_victim} - {None}
        assert not {step.slot_victim, step.host_victim} & set(held)
        assert tiers.tier(adapter) == "gpu"
        if keep:
            tiers.use(adapter)
            held.append(adapter)
        tiers.check()


jobs = st.lists(
    st.tuples(st.floats(0, 5), st.lists(st.tuples(st.sampled_from("ab"), st.floats(1, 1e3)), min_size=1, max_size=3)),
    min_size=1,
    max_size=8,
)
BANDWIDTH = {"a": 100.0, "b": 7.0}


def play(calls: list[tuple[float, list[tuple[str, float]]]]) -> tuple[CopyEngine, dict[int, float]]:
    """Start all copies at their times, in time order, and run to the end."""
    engine = CopyEngine(BANDWIDTH)
    ends: dict[int, float] = {}
    for number, (start, stages) in sorted(enumerate(calls), key=lambda call: call[1][0]):
        engine.start(number, [Stage(link, size) for link, size in stages], start)
    while (event := engine.next_event_s()) is not None:
        ends.update({done.adapter: done.end_s for done in engine.advance_to(event)})
    return engine, ends


@given(jobs)
def test_no_copy_beats_its_links_and_all_arrive(calls: Any) -> None:
    engine, ends = play(calls)
    assert sorted(ends) == list(range(len(calls)))
    for number, (start, stages) in enumerate(calls):
        alone = sum(size / BANDWIDTH[link] for link, size in stages)
        assert ends[number] >= (start + alone) * (1 - 1e-9)
    assert len(engine) == 0


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(1, 1e3)), min_size=1, max_size=8))
def test_links_serve_exactly_what_was_asked_at_full_speed(asked: Any) -> None:
    """Work conservation: a link that copies wait for is busy for its bytes over its bandwidth, however they overlap."""
    _, ends = play([(0.0, [job]) for job in asked])
    for name, bandwidth in BANDWIDTH.items():
        own = [number for number, (link, _) in enumerate(asked) if link == name]
        size = sum(asked[number][1] for number in own)
        assert max((ends[number] for number in own), default=0.0) == pytest.approx(size / bandwidth, rel=1e-6)


@given(st.integers(1, 40), st.floats(1, 1e9))
def test_n_equal_copies_take_n_times_as_long_and_end_together(count: int, size: float) -> None:
    _, ends = play([(0.0, [("a", size)])] * count)
    (end,) = set(ends.values())
    assert end == pytest.approx(count * size / BANDWIDTH["a"], rel=1e-9)


@given(st.lists(st.floats(1, 1e3), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_simultaneous_starts_does_not_matter(sizes: list[float], random: Any) -> None:
    """With copies side by side, the end of a copy depends on sizes and times only."""
    shuffled = list(enumerate(sizes))
    random.shuffle(shuffled)
    _, ends = play([(0.0, [("a", size), ("b", size)]) for size in sizes])
    _, again = play([(0.0, [("a", size), ("b", size)]) for _, size in shuffled])
    assert [again[place] for place, _ in enumerate(shuffled)] == [pytest.approx(ends[index]) for index, _ in shuffled]


@given(jobs, st.lists(st.floats(0, 400), max_size=20))
def test_looking_at_other_times_changes_nothing(calls: Any, looks: list[float]) -> None:
    _, ends = play(calls)
    engine = CopyEngine(BANDWIDTH)
    seen: dict[int, float] = {}
    todo = sorted([(start, number) for number, (start, _) in enumerate(calls)] + [(look, -1) for look in looks])
    for now, number in todo:
        if number < 0:
            seen.update({done.adapter: done.end_s for done in engine.advance_to(now)})
        else:
            engine.start(number, [Stage(link, size) for link, size in calls[number][1]], now)
    seen.update({done.adapter: done.end_s for done in engine.advance_to(1e6)})
    assert seen == {number: pytest.approx(end) for number, end in ends.items()}


@given(jobs, st.floats(0, 50))
def test_a_copy_arrives_or_is_given_up(calls: Any, end_s: float) -> None:
    engine = CopyEngine(BANDWIDTH)
    arrived: set[int] = set()
    for number, (start, stages) in sorted(enumerate(calls), key=lambda call: call[1][0]):
        arrived.update(done.adapter for done in engine.advance_to(start))
        engine.start(number, [Stage(link, size) for link, size in stages], start)
    end_s = max(end_s, max(start for start, _ in calls))
    lost = {number for number in range(len(calls)) if engine.cancel(number, end_s)}
    arrived.update(done.adapter for done in engine.advance_to(end_s))
    assert arrived | lost == set(range(len(calls))) and not arrived & lost and len(engine) == 0


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(MODELS)),
    st.sampled_from(sorted(GPUS)),
    st.sampled_from(["0.8.5", "0.20"]),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 64),
    st.sampled_from([8, 16, 64]),
    st.booleans(),
)
def test_ledger_rows_add_up_and_sharding_never_costs_slots(
    model: str, gpu: str, version: str, tp: int, slots: int, rank: int, sharded: bool
) -> None:
    def ledger(**changes: Any) -> Any:
        given = {
            "version": version,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 2048,
            "max_model_len": 4096,
            "gpu_memory_utilization": 0.9,
            "tensor_parallel_size": tp,
            "max_loras": slots,
            "max_lora_rank": rank,
            "fully_sharded_loras": sharded,
        }
        return compute_ledger(MODELS[model], GPUS[gpu], MemorySettings(**{**given, **changes}))

    whole = ledger()
    assert sum(row.bytes for row in ledger_rows(whole)) == whole.total_bytes
    assert whole.rounding_bytes >= 0 and whole.kv_blocks >= 0
    assert ledger(tensor_parallel_size=2 * tp).slots_bytes <= whole.slots_bytes
    assert ledger(fully_sharded_loras=True).slots_bytes <= whole.slots_bytes
    # more tensors can fill the allocator's blocks better, but not by more than was lost to rounding
    assert ledger(max_loras=2 * slots).kv_blocks <= whole.kv_blocks + whole.rounding_bytes // whole.kv_block_bytes + 1
    assert ledger(max_lora_rank=2 * rank).kv_blocks <= whole.kv_blocks
    assert ledger(enable_lora=False).kv_blocks >= whole.kv_blocks
    assert ledger(gpu_memory_utilization=0.95).kv_blocks >= whole.kv_blocks
    assert ledger(max_num_batched_tokens=8192).kv_blocks <= whole.kv_blocks
    assert ledger(max_num_seqs=1024).kv_blocks <= whole.kv_blocks
