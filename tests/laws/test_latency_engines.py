"""What holds for the prices of every kind of engine, whatever the calibration says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import examples
from support.latency_cases import Loading, decodes, equal_mix, make_any, make_latency, mixed, prompts, step_s

from simlora.latency.engine_latency import EngineLatency
from simlora.latency.families.work import LoraWork
from simlora.latency.loads import shard_bytes
from simlora.latency.step import AdapterMix, StepPlan
from simlora.scenario.lora_modules import ALL_LINEAR, adapter_bytes
from simlora.scenario.model import builtin_model, stage_layers

KINDS = ("vllm", "slora", "lorax", "punica", "sglang", "grouped", "sequential", "merged-swap")
FAMILIES = ("padded", "sgmv", "bgmv", "mbgmv", "mbgmm", "csgmv", "simlora", "padded-bmm", "loop", "grouped-gemm")
ENGINES = {kind: make_any(kind, max_loras=64, max_lora_rank=128) for kind in KINDS}
KERNELS = {name: make_any("vllm", max_loras=64, max_lora_rank=128, kernels=name) for name in FAMILIES}
PARALLEL = {(kind, tp): make_any(kind, tensor_parallel_size=tp) for kind in KINDS for tp in (1, 2, 4)}

sizes = st.integers(1, 256)
ranks = st.sampled_from((8, 16, 32, 64, 128))


def lora_s(latency: EngineLatency, tokens: int, adapters: int, rank: int) -> float:
    mix = equal_mix(adapters, tokens, rank)
    assert mix is not None
    family = latency.kernels.family(0, LoraWork(tokens, tokens, adapters, mix, tokens, tokens))  # type: ignore[attr-defined]
    return float(family.step_s(LoraWork(tokens, tokens, adapters, mix, tokens, tokens)))


@pytest.mark.parametrize("name", FAMILIES[1:])
@examples(30)
@given(sizes, sizes, sizes, sizes, ranks, ranks)
def test_more_tokens_adapters_or_rank_never_take_less(
    name: str, a: int, b: int, c: int, d: int, e: int, f: int
) -> None:
    tokens, adapters, rank = sorted((a, b)), sorted((c, d)), sorted((e, f))
    adapters = [min(count, tokens[0], 64) for count in adapters]
    least = lora_s(KERNELS[name], tokens[0], adapters[0], rank[0])
    slack = 1.0 - 1e-9
    assert least > 0.0
    assert lora_s(KERNELS[name], tokens[1], adapters[0], rank[0]) >= least * slack
    assert lora_s(KERNELS[name], tokens[0], adapters[1], rank[0]) >= least * slack
    assert lora_s(KERNELS[name], tokens[0], adapters[0], rank[1]) >= least * slack


@examples(50)
@given(st.integers(2, 64), st.integers(1, 4), ranks)
def test_mixed_ranks_cost_padded_products_most(adapters: int, each: int, rank: int) -> None:
    tokens = adapters * each
    mix = AdapterMix(8 * (adapters - 1) + rank, each * (8 * (adapters - 1) + rank), max(rank, 8), 2)
    plan = decodes(tokens, adapters, mix=mix)
    assert KERNELS["padded-bmm"].price(plan).lora_s >= KERNELS["mbgmv"].price(plan).lora_s


@pytest.mark.parametrize("kind", KINDS[1:])
@examples(20)
@given(sizes, sizes, st.integers(1, 3000))
def test_more_decodes_never_take_less(kind: str, a: int, b: int, context: int) -> None:
    low, high = sorted((a, b))  # vLLM's shrink kernel splits its work otherwise from 128 tokens on: its own laws
    latency = ENGINES[kind]
    small, large = (latency.price(decodes(n, 1, context=context)) for n in (low, high))
    assert small.gpu_s <= large.gpu_s * 1.0001
    assert min(small.host_s, small.load_s, small.sync_s, small.slope_s, small.repeat_host_s) >= 0.0
    assert small.valid_steps >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_cost_by_length_and_adapters_cost(kind: str) -> None:
    latency = ENGINES[kind]
    assert step_s(latency, prompts(2, 400, 2)) > step_s(latency, prompts(2, 200, 2))
    free = kind == "merged-swap"
    assert (latency.price(decodes(8, 8)).lora_s == 0.0) == free
    assert (latency.price(prompts(2, 300, 2)).lora_s == 0.0) == free


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("vllm", "merged-swap")])
def test_a_plan_without_ranks_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=r"StepPlan\.mix"):
        ENGINES[kind].price(decodes(8, 2)._replace(mix=None))


@pytest.mark.parametrize("kind", KINDS)
def test_copies_beside_a_step_slow_it_and_extra_time_adds(kind: str) -> None:
    latency = make_any(kind, adapter_loading=Loading(overlap=True))
    plan = decodes(64, 8)
    alone, beside = latency.price(plan), latency.price(plan._replace(copying=True))
    memory = latency.calibration.terms.host_memory
    assert memory is not None
    assert beside.gpu_s == pytest.approx(alone.gpu_s * memory.parameters.streaming_slowdown)
    assert latency.price(plan._replace(extra_s=0.25)).load_s == pytest.approx(0.25)
    assert latency.scaled(2.0).price(plan).gpu_s == pytest.approx(2 * alone.gpu_s)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("repeat", [2, 5])
def test_repetitions_are_affine(kind: str, repeat: int) -> None:
    """The price of step j of a run is that of the first with j more tokens of context for each request."""
    latency = ENGINES[kind]
    first = latency.price(decodes(32, 4, context=500))
    steps = min(repeat, first.valid_steps - 1)
    later = latency.price(decodes(32, 4, context=500 + steps))
    again = first.repeat_host_s + first.gpu_s + first.slope_s * steps
    assert again == pytest.approx(later.repeat_host_s + later.gpu_s, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_one_gpu_exchanges_nothing(kind: str) -> None:
    one, two, four = (PARALLEL[kind, tp].price(decodes(32, 4)) for tp in (1, 2, 4))
    assert one.collective_s == 0.0 < two.collective_s < four.collective_s
    assert one.base_s > two.base_s > four.base_s


def test_extra_collectives_are_those_of_the_scheme() -> None:
    plan = decodes(32, 4)
    base = make_latency("llama-2-7b", tensor_parallel_size=4, enable_lora=False).price(decodes(32)).collective_s
    extra = {kind: PARALLEL[kind, 4].price(plan).collective_s - base for kind in ("slora", "lorax", "sglang")}
    assert make_any("vllm", tensor_parallel_size=4).price(plan).collective_s == base
    assert PARALLEL["punica", 4].price(plan).collective_s == base
    latency = PARALLEL["sglang", 4]
    assert extra["sglang"] == pytest.approx(32 * 2 * latency.collectives.reduce_s(32 * 16 * 2))
    assert extra["lorax"] == pytest.approx(32 * 7 * latency.collectives.reduce_s(32 * 16 * 2))
    assert extra["slora"] == pytest.approx(32 * latency.collectives.link_s(5 * 3 / 4 * 32 * 16 * 2))
    two_ranks = decodes(32, 4, mix=AdapterMix(96, 32 * 24, 32, 2))
    assert PARALLEL["lorax", 4].price(two_ranks).collective_s - base > 1.9 * extra["lorax"]


@pytest.mark.parametrize("kind", KINDS)
@examples(20)
@given(ranks, ranks)
def test_loads_grow_with_rank_and_distance(kind: str, a: int, b: int) -> None:
    low, high = sorted((a, b))
    latency = ENGINES[kind]
    assert latency.load_s(low, "gpu") == 0.0 < latency.load_s(low, "host") < latency.load_s(low, "disk")
    for tier in ("host", "disk"):
        strided = kind in ("vllm", "sglang") and low < high == 128  # a full slot needs no strided copies
        assert strided or latency.load_s(low, tier) <= latency.load_s(high, tier)
    for tier, legs in (("gpu", 0), ("host", 1), ("disk", 2)):
        stages = latency.transfers.stages(low, tier)
        assert len(stages) == legs and all(link in latency.transfers.links() for link, _, _ in stages)
        alone = sum(delay + size / latency.transfers.links()[link] for link, size, delay in stages)
        assert alone == pytest.approx(latency.transfers.load_s(low, tier), rel=0.3)


def test_engines_load_in_their_own_ways() -> None:
    paper, artifact = make_any("slora"), make_any("slora", artifact=True)
    assert artifact.load_s(16, "host") == pytest.approx(2 * paper.load_s(16, "host"))
    assert artifact.transfers.copy_bytes(16) == 2 * paper.transfers.copy_bytes(16)
    again, kept = make_any("sglang", adapter_loading=Loading(pinned=False)), make_any("sglang")
    assert again.load_s(16, "host") > 2.0 * kept.load_s(16, "host")
    assert make_any("punica").load_s(16, "host") < 0.5 * kept.load_s(16, "host")
    slow = make_any("lorax", disk_bytes_per_s=1e8)
    assert slow.load_s(16, "disk") > make_any("lorax").load_s(16, "disk") + 0.5


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3.1-70b"])
def test_shards_add_up(name: str) -> None:
    model = builtin_model(name)
    assert model is not None
    whole = adapter_bytes(model, 16, ALL_LINEAR)
    for sharded in (False, True):
        assert shard_bytes(model, 16, ALL_LINEAR, 1, sharded) == whole
    assert shard_bytes(model, 16, ALL_LINEAR, 4, True) * 4 == whole
    assert whole / 4 < shard_bytes(model, 16, ALL_LINEAR, 4, False) < whole
    one, four = PARALLEL["lorax", 1].transfers, PARALLEL["lorax", 4].transfers
    assert four.copy_bytes(16) * 4 == one.copy_bytes(16)
    assert four.stages(16, "disk")[0][1] == 4 * one.stages(16, "disk")[0][1]


def test_merging_is_a_matter_of_the_weights() -> None:
    latency = ENGINES["merged-swap"]
    assert latency.merge_s(16, 0) > 0.0 and latency.merge_s(16) == pytest.approx(latency.merge_s(16, 0) * 2)
    assert latency.merge_s(0, 16) == latency.merge_s(16, 0) and latency.merge_s(0) == 0.0
    assert latency.merge_s(16) < latency.merge_s(64) < 1.5 * latency.merge_s(16)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "plan", [decodes(32, 4), prompts(2, 300, 2), mixed(8, 200, 2)._replace(mix=AdapterMix(32, 3328, 16, 1))]
)
def test_stages_add_up(kind: str, plan: StepPlan) -> None:
    whole = make_any(kind)
    one = whole.price_stages(plan)
    assert one.transfer_s == 0.0 and one.stages == (whole.price(plan),)
    for count in (2, 4):
        split = make_any(kind, pipeline_parallel_size=count).price_stages(plan)
        assert len(split.stages) == count and split.transfer_s > 0.0
        for part in ("base_s", "attention_s", "lora_s", "collective_s"):
            total = sum(getattr(stage, part) for stage in split.stages)
            assert total == pytest.approx(getattr(one.stages[0], part))
        assert split.stages[0].gpu_s < one.stages[0].gpu_s and split.stages[-1].base_s > split.stages[0].base_s


def test_layers_are_spread_as_vllm_does() -> None:
    assert stage_layers(32, 4) == (8, 8, 8, 8) and stage_layers(34, 4) == (8, 9, 9, 8)
    assert stage_layers(35, 4) == (9, 9, 9, 8) and stage_layers(5, 3) == (2, 2, 1)


def test_unused_adapters_are_not_free_where_one_graph_serves_all() -> None:
    """SGLang's graphs hold the LoRA kernels, so traffic of the base model pays for them; vLLM has graphs without."""
    plan, off = decodes(64), make_any("sglang", enable_lora=False)
    on = make_any("sglang")
    slower = on.price(plan).gpu_s / off.price(plan).gpu_s - 1.0
    assert 0.03 < slower < 0.6 and on.price(plan).lora_s < on.price(decodes(64, 4)).lora_s
    assert ENGINES["vllm"].price(plan).lora_s == 0.0 == ENGINES["slora"].price(plan).lora_s


def test_a_host_behind_the_gpu_costs_nothing() -> None:
    sglang, slora = (
        ENGINES["sglang"].price(decodes(128, 4, context=2000)),
        ENGINES["slora"].price(decodes(128, 4, context=2000)),
    )
    assert sglang.host_s == 0.0 < slora.host_s


def test_published_slora_takes_one_row_kernels_for_short_prompts() -> None:
    paper, artifact = make_any("slora"), make_any("slora", artifact=True)
    short, long = prompts(2, 150, 2, 64), prompts(2, 250, 2, 64)
    assert artifact.price(short).lora_s > 2.0 * paper.price(short).lora_s
    assert artifact.price(long).lora_s == paper.price(long).lora_s
