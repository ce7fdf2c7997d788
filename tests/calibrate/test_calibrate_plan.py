"""The plan: what is measured, in which order, and how long it should take."""

from __future__ import annotations

import importlib.util

import pytest
from simlora.calibrate.campaign import MOST_FIT_S, check_parts
from simlora.calibrate.grid import FULL, GRIDS, QUICK, TINY, model_named
from simlora.calibrate.plan import PARTS, build_plan

from simlora.errors import ConfigError, SimloraError

ONE_GPU = 1


def _seconds(name: str) -> float:
    return sum(item.seconds for item in build_plan(GRIDS[name]) if item.gpus <= ONE_GPU)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=list(GRIDS))
def test_ids_are_unique_and_priorities_ascend(grid) -> None:
    plan = build_plan(grid)
    assert len({item.id for item in plan}) == len(plan)
    assert [item.priority for item in plan] == sorted(item.priority for item in plan)
    assert {item.part for item in plan} == set(PARTS)
    assert all(item.seconds > 0 for item in plan)


def test_budgets_hold_on_the_gpu_they_were_made_for() -> None:
    assert _seconds("quick") < 180.0
    assert _seconds("full") < 2 * (540.0 - MOST_FIT_S)


def test_every_term_can_be_fitted_early() -> None:
    early = [item for item in build_plan(FULL) if item.priority <= 1]
    assert sum(item.seconds for item in early if item.gpus <= ONE_GPU) < 540.0 - MOST_FIT_S
    functions = {item.function for item in early}
    wanted = {"dense_steps", "gemms", "elementwise", "decode_attention", "prefill_attention", "lora_steps"}
    assert wanted | {"block_copies", "adapter_loads", "adapter_reads", "collectives"} <= functions


def test_tensor_parallel_shapes_of_both_models_are_in_the_full_grid() -> None:
    for model in ("llama-3.1-8b", "llama-3.1-70b"):
        sizes = {i.arguments["tp"] for i in build_plan(FULL) if i.function == "gemms" and i.arguments["model"] == model}
        assert sizes == {1, 2, 4, 8}


def test_parts_can_be_chosen() -> None:
    assert {item.part for item in build_plan(QUICK, ("copies", "disk"))} == {"copies", "disk"}
    with pytest.raises(ConfigError, match="--only: 'coffee'"):
        check_parts(("copies", "coffee"))


def test_lora_sets_fit_their_slots() -> None:
    for grid in GRIDS.values():
        for chosen in grid.lora_sets:
            assert max(chosen.ranks) <= chosen.slot_rank
            assert any(point["distinct"] <= chosen.slots for point in chosen.points)
            assert all(1 <= point["distinct"] <= point["tokens"] for point in chosen.points)


def test_models_are_known() -> None:
    assert model_named("tiny").num_hidden_layers == 2
    assert model_named("llama-3.1-70b").hidden_size == 8192
    with pytest.raises(SimloraError, match="no-such-model"):
        model_named("no-such-model")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_every_item_names_a_measurement() -> None:
    from simlora.calibrate.measure import FUNCTIONS

    assert {item.function for grid in (FULL, TINY) for item in build_plan(grid)} == set(FUNCTIONS)
