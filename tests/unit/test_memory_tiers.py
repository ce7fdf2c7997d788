"""Slots, host cache, disk and remote storage with vLLM's rules."""

from __future__ import annotations

import pytest

from simlora.memory.residents import Activation, AdapterTiers, ResidentSet


def tiers(slots: int, host: int, pinned: tuple[int, ...] = (), remote: bool = False) -> AdapterTiers:
    return AdapterTiers(ResidentSet(slots, pinned=pinned), ResidentSet(host, pinned=pinned), remote)


def test_an_adapter_moves_up_from_disk_and_stays() -> None:
    state = tiers(2, 4)
    assert state.activate(1, 0.0) == Activation("disk", None, None)
    assert state.activate(1, 1.0) == Activation("gpu", None, None)
    state.check()


def test_a_slot_is_taken_from_the_least_recently_used_and_host_keeps_it() -> None:
    state = tiers(2, 4)
    for now, adapter in enumerate((1, 2, 3)):
        last = state.activate(adapter, float(now))
    assert last == Activation("disk", 1, None)
    assert state.tier(1) == "host"
    assert state.activate(1, 3.0) == Activation("host", 2, None)


def test_with_the_default_host_cache_every_return_is_a_disk_load() -> None:
    """max_cpu_loras = max_loras: whoever leaves its slot leaves host memory too."""
    state = tiers(2, 2)
    found = [state.activate(adapter, float(now)).tier for now, adapter in enumerate((1, 2, 3, 1, 2, 3))]
    assert found == ["disk"] * 6
    assert state.activate(1, 6.0) == Activation("disk", 2, 2)
    assert list(state.slots) == list(state.host)


def test_an_adapter_that_leaves_host_memory_empties_its_slot() -> None:
    state = tiers(2, 3)
    state.preload(host=[1, 2, 3], gpu=[1, 2])  # order of age in host memory: 3, 1, 2
    assert state.activate(3, 0.0) == Activation("host", 1, None)
    assert state.activate(4, 1.0) == Activation("disk", 2, 1)  # 1 is only in host memory; 2 leaves its slot
    assert state.activate(5, 2.0) == Activation("disk", 3, 2)
    state.check()


def test_preload_sets_the_order_of_age() -> None:
    state = tiers(2, 4)
    state.preload(host=[7, 8], gpu=[5, 6])
    assert list(state.host) == [7, 8, 5, 6] and list(state.slots) == [5, 6]
    assert state.activate(9, 0.0) == Activation("disk", 5, 7)
    state.check()


def test_held_adapters_keep_both_places() -> None:
    state = tiers(2, 2)
    state.activate(1, 0.0)
    state.use(1)
    state.activate(2, 1.0)
    state.use(2)
    assert not state.can_activate(3) and state.can_activate(1)
    with pytest.raises(RuntimeError, match="no slot for adapter 3"):
        state.activate(3, 2.0)
    state.release(1, 3.0)
    assert state.activate(3, 4.0) == Activation("disk", 1, 1)
    assert state.slots.uses(2) == state.host.uses(2) == 1


def test_pinned_adapters_keep_both_places() -> None:
    state = tiers(2, 2, pinned=(1,))
    state.activate(1, 0.0)
    for now, adapter in enumerate((2, 3, 4), start=1):
        state.activate(adapter, float(now))
    assert state.tier(1) == "gpu"


def test_remote_adapters_reach_the_disk_at_first_use() -> None:
    state = tiers(1, 1, remote=True)
    state.preload(host=[], gpu=[5])
    assert [state.activate(adapter, 0.0).tier for adapter in (1, 2, 1, 5)] == ["remote", "remote", "disk", "disk"]


def test_slots_that_are_full_of_held_adapters_refuse_even_with_host_room() -> None:
    state = tiers(1, 3)
    state.activate(1, 0.0)
    state.use(1)
    assert not state.can_activate(2)


def test_the_host_cache_cannot_be_smaller_than_the_slots() -> None:
    with pytest.raises(ValueError, match="host cache of 2 below 3 slots"):
        tiers(3, 2)
