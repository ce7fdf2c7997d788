"""What no calibration may break: more work never takes less time, and parts are never negative."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from support.cases import examples
from support.latency_cases import decode, make_latency, mixed

from simlora.latency.lora_kernels import SPLIT_TOKENS, row_tiles
from simlora.latency.step import StepTiming

BASE = make_latency(enable_lora=False)
LORA = make_latency(max_loras=32, max_lora_rank=64)
MORE_SLOTS = make_latency(max_loras=64, max_lora_rank=64)

requests = st.integers(1, 256)
contexts = st.integers(1, 4000)
prompts = st.integers(1, 2048)


def total_s(timing: StepTiming) -> float:
    return timing.host_s + timing.sync_s + timing.load_s + timing.gpu_s


@examples(100)
@given(requests, requests, contexts)
def test_more_decodes_take_longer(a: int, b: int, context: int) -> None:
    low, high = sorted((a, b))
    assert total_s(BASE.price(decode(low, context=context))) <= total_s(BASE.price(decode(high, context=context)))


@examples(100)
@given(requests, contexts, contexts)
def test_more_context_takes_longer(batch: int, a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert BASE.price(decode(batch, context=low)).gpu_s <= BASE.price(decode(batch, context=high)).gpu_s


@examples(100)
@given(requests, st.integers(0, 32), st.integers(0, 32))
def test_more_adapters_take_longer(batch: int, a: int, b: int) -> None:
    low, high = sorted((min(a, batch), min(b, batch)))
    assert LORA.price(decode(batch, low)).lora_s <= LORA.price(decode(batch, high)).lora_s


@examples(100)
@given(requests, st.integers(1, 32))
def test_more_slots_take_longer(batch: int, adapters: int) -> None:
    adapters = min(adapters, batch)
    assert LORA.price(decode(batch, adapters)).lora_s <= MORE_SLOTS.price(decode(batch, adapters)).lora_s


@examples(100)
@given(prompts, prompts, st.integers(0, 32), st.integers(0, 64))
def test_longer_prompts_take_longer(a: int, b: int, adapters: int, decodes: int) -> None:
    """Apart from the LoRA kernels' change of split at 128 tokens, measured to be faster above."""
    low, high = sorted((a, b))
    if adapters and low + decodes < SPLIT_TOKENS <= high + decodes + 8:
        return
    adapters = min(adapters, low + decodes)
    first, second = LORA.price(mixed(decodes, low, adapters)), LORA.price(mixed(decodes, high, adapters))
    assert total_s(first) <= total_s(second) * (1 + 1e-12)


@examples(60)
@given(requests, st.integers(0, 32), st.booleans(), contexts)
def test_parts_are_finite_and_not_negative(batch: int, adapters: int, changed: bool, context: int) -> None:
    timing = LORA.price(decode(batch, min(adapters, batch), context, changed))
    for value in (*timing[:7], timing.tail_s, timing.sync_s, timing.repeat_host_s):
        assert math.isfinite(value) and value >= 0.0
    assert timing.gpu_s > 0.0


@examples(60)
@given(requests, contexts, st.integers(1, 50))
def test_the_slope_is_the_growth_of_the_context(batch: int, context: int, steps: int) -> None:
    now = LORA.price(decode(batch, 1, context))
    later = LORA.price(decode(batch, 1, context + steps))
    assert math.isclose(later.gpu_s, now.gpu_s + steps * now.slope_s, rel_tol=1e-9)


@examples(60)
@given(requests, st.integers(0, 32), prompts)
def test_prices_do_not_depend_on_what_was_priced_before(batch: int, adapters: int, prompt: int) -> None:
    adapters = min(adapters, batch)
    plan = mixed(batch, prompt, adapters)
    assert LORA.price(plan) == make_latency(max_loras=32, max_lora_rank=64).price(plan)


@examples(100)
@given(st.integers(1, 4096), st.integers(1, 64), st.sampled_from([32, 64]))
def test_row_tiles_hold_every_token_and_adapter(tokens: int, adapters: int, rows: int) -> None:
    adapters = min(adapters, tokens)
    tiles = row_tiles(tokens, adapters, rows)
    assert adapters <= tiles <= tokens / rows + adapters
    assert tiles * rows >= tokens


@examples(60)
@given(st.sampled_from([8, 16, 32, 64]), st.sampled_from([8, 16, 32, 64]), st.sampled_from(["host", "disk"]))
def test_larger_adapters_load_longer_from_disk(a: int, b: int, tier: str) -> None:
    low, high = sorted((a, b))
    slack = 0.003 if tier == "host" else 0.0  # a rank below the slot's pays a surcharge for staged copies
    assert LORA.load_s(low, tier) <= LORA.load_s(high, tier) + slack
    assert LORA.load_s(low, "host") <= LORA.load_s(low, "disk")
