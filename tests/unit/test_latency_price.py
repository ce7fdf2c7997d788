"""StepLatency.price: regimes, padding, parts, speed."""

from __future__ import annotations

import time

import pytest
from support.counting import calls
from support.latency_cases import decode, make_latency, mixed

from simlora.engines.vllm.cuda_graphs import capture_sizes, lora_graph_cases
from simlora.latency.cuda_graphs import active_adapter_grid, padded_tokens
from simlora.latency.lora_kernels import row_tiles
from simlora.scenario.engines.vllm_versions import V0_8_5, V0_20


def test_capture_sizes_follow_vllm() -> None:
    sizes = capture_sizes(V0_20.graphs, 256, 2048)
    assert sizes[:5] == (1, 2, 4, 8, 16) and sizes[-1] == 512
    assert 248 in sizes and 256 in sizes and 264 not in sizes and 272 in sizes
    assert capture_sizes(V0_20.graphs, 8, 2048) == (1, 2, 4, 8, 16)
    assert capture_sizes(V0_20.graphs, 1024, 100)[-2:] == (96, 100)  # a small token budget is captured itself
    assert capture_sizes(V0_8_5.graphs, 1024, 100)[-1] == 96
    assert capture_sizes(V0_20.graphs, 8, 2048, draft=3)[-1] == 64


def test_graphs_are_captured_for_these_counts_of_adapters() -> None:
    assert lora_graph_cases(8, False) == (9,)
    assert lora_graph_cases(8, True) == (1, 2, 4, 8, 9) and lora_graph_cases(7, True) == (1, 2, 4, 8)


def test_padding_takes_the_next_captured_size() -> None:
    table = padded_tokens(capture_sizes(V0_20.graphs, 256, 2048))
    assert len(table) == 513
    assert [table[n] for n in (1, 3, 5, 9, 250, 257, 512)] == [1, 4, 8, 16, 256, 272, 512]
    assert padded_tokens(()) == [0]


def test_specialised_grid_rounds_up_to_captured_counts() -> None:
    assert active_adapter_grid(3, 8, False) == 9
    assert [active_adapter_grid(n, 8, True) for n in (1, 2, 3, 5, 8)] == [1, 2, 4, 8, 8]
    assert active_adapter_grid(6, 6, True) == 7


def test_regimes() -> None:
    latency = make_latency()
    assert latency.regime(512, True) == "graph"
    assert latency.regime(512, False) == "piecewise"
    assert latency.regime(513, False) == "eager"
    assert latency.regime(513, True) == "eager"
    assert make_latency(enforce_eager=True).regime(1, True) == "eager"
    small = make_latency(max_num_seqs=8)
    assert small.regime(17, False) == "eager"


def test_padded_batches_cost_the_same_gemms() -> None:
    latency = make_latency(enable_lora=False)
    assert latency.price(decode(17)).base_s == latency.price(decode(24)).base_s
    assert latency.price(decode(24)).base_s < latency.price(decode(25)).base_s


def test_base_only_steps_have_no_lora_time() -> None:
    latency = make_latency()
    for plan in (decode(32), mixed(8, 200), mixed(8, 1000)):
        assert latency.price(plan).lora_s == 0.0
    assert latency.price(decode(32, 1)).lora_s > 0.0


def test_enabled_but_unused_lora_costs_more_than_lora_off_only_in_eager_launching_and_metadata() -> None:
    off, unused = make_latency(enable_lora=False), make_latency()
    steady_off, steady_unused = off.price(decode(32)), unused.price(decode(32))
    assert steady_off[:-1] == steady_unused[:-1]
    launch_off, launch_unused = off.price(mixed(0, 1024)), unused.price(mixed(0, 1024))
    assert launch_unused.host_s + launch_unused.sync_s > 1.3 * (launch_off.host_s + launch_off.sync_s)
    used = unused.price(mixed(0, 1024, 1))
    assert used.host_s + used.sync_s > 1.5 * (launch_unused.host_s + launch_unused.sync_s)


def test_a_changed_batch_waits_for_the_gpu_only_with_lora() -> None:
    assert make_latency(enable_lora=False).price(decode(8, changed=True)).sync_s == 0.0
    lora = make_latency().price(decode(8, 4, changed=True))
    assert lora.sync_s > 0.0
    assert make_latency().price(decode(8, 4)).sync_s == 0.0
    assert lora.repeat_host_s == make_latency().price(decode(8, 4)).host_s


def test_launch_bound_steps_end_after_their_last_launch() -> None:
    latency = make_latency(enable_lora=False)
    short, long = latency.price(mixed(0, 32)), latency.price(mixed(0, 2048))
    assert short.launch_bound and long.launch_bound
    assert not latency.price(decode(32)).launch_bound
    assert short.tail_s < 0.002
    assert long.host_s + long.tail_s > long.gpu_s


def test_loads_block_and_remote_tiers_are_slower() -> None:
    latency = make_latency(max_lora_rank=64)
    assert latency.load_s(16, "gpu") == 0.0
    assert 0.0 < latency.load_s(16, "host") < latency.load_s(16, "disk")
    plan = mixed(0, 100, 2, loads=((1, 16, "host"), (2, 16, "disk")))
    assert latency.price(plan).load_s == pytest.approx(latency.load_s(16, "host") + latency.load_s(16, "disk"))


def test_a_rank_below_the_slots_costs_a_surcharge() -> None:
    assert make_latency(max_lora_rank=64).load_s(16, "host") > make_latency(max_lora_rank=16).load_s(16, "host")


def test_attention_only_adapters_and_slots_cost_less() -> None:
    full = make_latency()
    attention = ("q_proj", "k_proj", "v_proj", "o_proj")
    narrow = type(full)(
        full.model,
        full.gpu,
        full.engine,
        full.calibration,
        full.profile,
        slot_modules=attention,
        adapter_modules=attention,
    )
    assert narrow.price(decode(8, 4)).lora_s < 0.6 * full.price(decode(8, 4)).lora_s
    assert narrow.load_s(16, "host") < 0.6 * full.load_s(16, "host")


def test_scaled_multiplies_steps_and_loads_but_not_the_front_end() -> None:
    latency = make_latency()
    longer = latency.scaled(1.05)
    for plan in (decode(32, 8, changed=True), mixed(8, 300, 2), mixed(8, 1500)):
        old, new = latency.price(plan), longer.price(plan)
        for name in ("host_s", "sync_s", "base_s", "attention_s", "lora_s", "tail_s", "slope_s", "repeat_host_s"):
            assert getattr(new, name) == pytest.approx(1.05 * getattr(old, name))
    assert longer.load_s(16, "host") == pytest.approx(1.05 * latency.load_s(16, "host"))
    assert longer.frontend_in_s == latency.frontend_in_s
    assert longer.frontend_out_s(10) == latency.frontend_out_s(10)


def test_http_adds_to_the_way_in_and_out() -> None:
    near, far = make_latency(), make_latency(endpoint="http")
    assert far.frontend_in_s > near.frontend_in_s
    assert far.frontend_out_s(1) > near.frontend_out_s(1)
    assert near.frontend_out_s(100) > near.frontend_out_s(1)


def test_row_tiles() -> None:
    assert row_tiles(64, 1, 64) == 1.0 and row_tiles(65, 1, 64) == 2.0
    assert row_tiles(8, 8, 64) == 8.0
    assert row_tiles(2048, 8, 64) == 35.5


def test_unusual_sizes_are_marked() -> None:
    assert make_latency().price(decode(32, 8)).extrapolated == ()
    assert "host" in make_latency(max_num_seqs=512).price(decode(300)).extrapolated
    assert "operators" in make_latency(max_num_batched_tokens=8192).price(mixed(0, 4096)).extrapolated
    assert "attention" in make_latency().price(decode(250, context=2000)).extrapolated
    assert "lora_kernels" in make_latency(max_lora_rank=128).price(decode(8, 1)).extrapolated
    assert "operators" in make_latency(model="llama-3.2-3b").price(decode(8)).extrapolated


def test_a_price_takes_few_calls() -> None:
    latency, plan = make_latency(), decode(32, 8)
    latency.price(plan)
    assert calls(lambda: latency.price(plan)) < 20


@pytest.mark.benchmark
def test_price_is_fast() -> None:
    latency = make_latency()
    plan = decode(32, 8)
    latency.price(plan)
    begin = time.perf_counter()
    for _ in range(20_000):
        latency.price(plan)
    assert (time.perf_counter() - begin) / 20_000 < 10e-6
