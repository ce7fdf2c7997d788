"""The numbers of `describe_trace` against values worked out by hand, and the cases they answer."""

from __future__ import annotations

import numpy as np
import pytest

from simlora.workload.adapter_table import uniform, zipf
from simlora.workload.rng import rng
from simlora.workload.traces.describe import (
    describe_trace,
    distinct_per_batch,
    interarrival_cv,
    prefix_reuse_fraction,
    top_fraction,
)
from simlora.workload.traces.reader import parse_trace
from simlora.workload.traces.table import TraceOptions

TEXT = (
    "arrival_s,adapter,prompt_tokens,output_tokens,tenant,hash_ids,hash_block_tokens\n"
    "1,a,100,10,x,1 2,64\n"
    "2,a,200,20,y,1 3,64\n"
    "2,b,300,30,x,1 3,64\n"
    "5,,400,40,,1 3,64\n"
)


def test_all_numbers_of_a_small_trace() -> None:
    summary = describe_trace(parse_trace(TEXT, "t.csv", TraceOptions()), max_model_len=330, batch_size=2)
    assert (summary.source, summary.format, summary.rows, summary.dropped) == ("t.csv", "csv", 4, {})
    assert (summary.span_s, summary.request_rate_rps) == (4.0, 0.75)
    assert summary.interarrival_cv == pytest.approx(np.std([1, 0, 3]) / (4 / 3))
    assert (summary.distinct_stamps, summary.tick_s) == (3, 1.0)
    prompt = summary.prompt_tokens
    assert (prompt.mean, prompt.p50, prompt.max) == (250.0, 250.0, 400)
    assert (prompt.p90, prompt.p99) == (pytest.approx(370.0), pytest.approx(397.0))
    assert summary.over_model_len_fraction == 0.25
    assert (summary.adapters, summary.base_fraction, summary.groups) == (2, 0.25, 2)
    assert (summary.top1_fraction, summary.top10_fraction) == (pytest.approx(2 / 3), 1.0)
    assert summary.distinct_adapters_per_batch == pytest.approx((1 - 0.5**2) + (1 - 0.75**2))
    # Only the second request finds a block (id 1, 64 tokens) that its own adapter has seen.
    assert summary.prefix_reuse_fraction == pytest.approx(64 / 1000)


def test_what_a_trace_does_not_say_is_none() -> None:
    summary = describe_trace(parse_trace("arrival_s,prompt_tokens,output_tokens\n3,1,1\n", "t", TraceOptions()))
    assert (summary.request_rate_rps, summary.interarrival_cv, summary.over_model_len_fraction) == (None, None, None)
    assert (summary.adapters, summary.base_fraction, summary.top1_fraction, summary.top10_fraction) == (None,) * 4
    assert (summary.groups, summary.prefix_reuse_fraction, summary.distinct_adapters_per_batch) == (None, None, None)


def test_dropped_rows_are_counted_by_reason() -> None:
    text = "Timestamp,Model,Request tokens,Response tokens\n1,GPT-4,5,0\n2,GPT-4,5,1\n"
    summary = describe_trace(parse_trace(text, "t", TraceOptions()))
    assert summary.dropped == {"failed requests (no output tokens)": 1}
    assert summary.notes == ("1 rows dropped: failed requests (no output tokens) (line 2)",)


def test_small_functions() -> None:
    assert interarrival_cv(np.array([0.0, 0.0, 0.0])) is None
    assert interarrival_cv(np.array([0.0, 1.0, 2.0])) == 0.0
    assert top_fraction(np.array([1, 5, 4]), 2) == 0.9
    assert top_fraction(np.array([], dtype=np.int64), 1) is None


def test_distinct_adapters_match_drawn_batches() -> None:
    probability = zipf(100, 1.0)
    batches = rng(1, "b").choice(100, size=(4000, 32), p=probability)
    distinct = np.array([len(np.unique(batch)) for batch in batches])
    error = 4.0 * distinct.std() / np.sqrt(len(distinct))
    assert abs(distinct.mean() - distinct_per_batch(probability, 32)) < error
    assert distinct_per_batch(np.array([1.0]), 32) == 1.0


def test_forty_tenants_rarely_share_a_batch_of_eight_with_eight_others() -> None:
    """40 tenants of at most 5 requests a minute: a batch of 8 holds 7.3 distinct adapters on average, so 8 slots
    are nearly all in use whenever the batch is full."""
    assert distinct_per_batch(uniform(40), 8) == pytest.approx(40 * (1 - (39 / 40) ** 8))
    assert 7.0 < distinct_per_batch(uniform(40), 8) < 8.0


@pytest.mark.parametrize("adapters", [2, 4, 8])
def test_prefix_reuse_falls_with_the_chance_that_the_next_sharer_has_another_adapter(adapters: int) -> None:
    """Pairs of requests share one block; the second finds it if it fell on the same adapter: 1 in `adapters`."""
    pairs = 20_000
    prefix = tuple((index // 2,) for index in range(2 * pairs))
    prompt = np.full(2 * pairs, 512, dtype=np.int32)
    ids = rng(1, "a").integers(1, adapters, 2 * pairs, dtype=np.int32, endpoint=True)
    shared = prefix_reuse_fraction(prefix, prompt, 512)
    apart = prefix_reuse_fraction(prefix, prompt, 512, ids)
    assert shared == 0.5
    chance = 1 / adapters
    assert abs(apart / shared - chance) < 4.0 * np.sqrt(chance * (1 - chance) / pairs)
