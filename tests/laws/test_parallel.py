"""Tensor and pipeline parallelism: what is split adds up, what is copied is counted, and what is exchanged is paid."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from support.latency_cases import decodes, make_any, mixed, prompts, step_s

from simlora.engines.vllm.ledger import compute_ledger
from simlora.latency.step import DISK, HOST, StepPlan
from simlora.memory.tensors import (
    MemorySettings,
    Shard,
    adapter_shard_bytes,
    module_shard,
    shards,
    slot_bytes,
    weight_tensors,
)
from simlora.results.summary import summarize
from simlora.scenario.engines.vllm_versions import memory_rules
from simlora.scenario.gpu import GPUS
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.lora_modules import ALL_LINEAR, EMBEDDINGS, adapter_bytes, module_shape
from simlora.scenario.model import MODELS
from simlora.scenario.root import Scenario
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate

TP, PP = (1, 2, 4, 8), (1, 2, 4)
BOTH = [(tp, pp) for tp in TP for pp in PP]
NAMES = ("llama-3.1-8b", "llama-3.1-70b")
COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
ROWS = ("o_proj", "down_proj")
SETTINGS = {"version": "0.20", "max_num_seqs": 256, "max_num_batched_tokens": 2048, "max_model_len": 4096}


def stages(model: str, tp: int, pp: int, **changes: Any) -> tuple[Shard, ...]:
    sizes = {"gpu_memory_utilization": 0.9, "tensor_parallel_size": tp, "pipeline_parallel_size": pp}
    settings = MemorySettings(**{**SETTINGS, **sizes, **changes})
    return shards(MODELS[model], memory_rules("0.20", "tests"), settings)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("tp", "pp"), BOTH)
def test_weights_add_up(name: str, tp: int, pp: int) -> None:
    """Over all GPUs: the model once, its norms again on every further tensor-parallel GPU, and a table of rotary
    positions on each."""
    model = MODELS[name]
    positions = model.max_position_embeddings * model.head_dim * model.dtype_bytes
    norms = (2 * model.num_hidden_layers + 1) * model.hidden_size * model.dtype_bytes
    total = tp * sum(sum(weight_tensors(stage)) for stage in stages(name, tp, pp))
    assert total == model.weight_bytes + (tp - 1) * norms + tp * pp * positions


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("tp", "pp"), BOTH)
def test_kv_adds_up(name: str, tp: int, pp: int) -> None:
    """A block of 16 tokens over all GPUs; there are never fewer KV heads than GPUs here."""
    assert tp * sum(stage.kv_block_bytes for stage in stages(name, tp, pp)) == 16 * MODELS[name].kv_bytes_per_token


@pytest.mark.parametrize("name", NAMES)
def test_kv_heads_are_copied_beyond_their_number(name: str) -> None:
    (sixteen,) = stages(name, 16, 1)
    assert 16 * sixteen.kv_block_bytes == 2 * 16 * MODELS[name].kv_bytes_per_token


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tp", TP)
def test_adapters_add_up(name: str, tp: int) -> None:
    """Default: A of layers split by output and B of those split by input are on every GPU. Fully split: nothing is."""
    model, rank = MODELS[name], 16
    whole, copied = adapter_bytes(model, rank, ALL_LINEAR), 0
    for module in ALL_LINEAR:
        width_in, width_out, copies = module_shape(model, module)
        copied += rank * (width_in if module in COLUMNS else width_out) * copies * model.dtype_bytes
    assert tp * adapter_shard_bytes(model, rank, ALL_LINEAR, tp) == whole + (tp - 1) * copied
    assert tp * adapter_shard_bytes(model, rank, ALL_LINEAR, tp, partitioned=True) == whole
    for module in COLUMNS:
        assert module_shard(model, module, rank, tp, False).a == module_shard(model, module, rank, 1, False).a
    for module in ROWS:
        assert module_shard(model, module, rank, tp, False).b == module_shard(model, module, rank, 1, False).b
    for module in EMBEDDINGS:
        assert module_shard(model, module, rank, tp, True) == module_shard(model, module, rank, 1, True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("tp", "pp"), BOTH)
@pytest.mark.parametrize("fully", [False, True])
def test_slots_add_up(name: str, tp: int, pp: int, fully: bool) -> None:
    """The stages' parts of a slot are the slot of one stage; the GPUs' parts hold every linear layer once, what is
    copied again, and both embeddings on every GPU of their stage."""
    model, rank = MODELS[name], 16
    parts = [slot_bytes(stage) for stage in stages(name, tp, pp, max_lora_rank=rank, fully_sharded_loras=fully)]
    (one,) = stages(name, tp, 1, max_lora_rank=rank, fully_sharded_loras=fully)
    assert sum(parts) == slot_bytes(one)
    embeddings = 2 * rank * (model.vocab_size + model.hidden_size) * model.dtype_bytes
    linear = tp * adapter_shard_bytes(model, rank, ALL_LINEAR, tp, partitioned=fully)
    assert tp * sum(parts) == linear + tp * embeddings
    if pp > 1:
        assert parts[0] > parts[1] - embeddings and len(parts) == pp


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("tp", "pp"), [(tp, pp) for tp, pp in BOTH if tp * pp >= 2])
def test_the_tightest_stage_has_the_last_word_on_kv_blocks(name: str, tp: int, pp: int) -> None:
    settings = MemorySettings(
        **SETTINGS, gpu_memory_utilization=0.9, tensor_parallel_size=tp, pipeline_parallel_size=pp, max_loras=8
    )
    ledger = compute_ledger(MODELS[name], GPUS["h200-141gb"], settings)
    each = []
    for stage in stages(name, tp, pp, max_loras=8):
        left = ledger.available_bytes + ledger.resident_bytes - sum(weight_tensors(stage)) - 8 * slot_bytes(stage)
        each.append(left / stage.kv_block_bytes)
    assert ledger.kv_blocks <= min(each) * 1.02


@pytest.mark.parametrize("tp", TP)
@pytest.mark.parametrize("plan", [decodes(32, 4), prompts(2, 512, 2), mixed(16, 400, 3)])
def test_vllm_exchanges_nothing_for_lora(tp: int, plan: StepPlan) -> None:
    """Partial LoRA results ride in the base model's two all-reduces a layer; fully sharded, there are four more."""
    flags = {"tensor_parallel_size": tp, "max_num_batched_tokens": 2048}
    default, base = make_any("vllm", **flags), make_any("vllm", **flags, enable_lora=False)
    bare = plan._replace(num_adapters=0, lora_tokens=0, max_rank=0, mix=None)
    plain_s = base.price(bare).collective_s
    assert default.price(plan).collective_s == plain_s
    sharded = make_any("vllm", **flags, fully_sharded_loras=True)
    small_s = 32 * 4 * sharded.collectives.reduce_s(plan.num_tokens * 16 * 4) if tp > 1 else 0.0
    assert sharded.price(plan).collective_s == pytest.approx(plain_s + small_s)
    assert (plain_s > 0.0) == (tp > 1)


@pytest.mark.parametrize("pp", PP)
@pytest.mark.parametrize("tp", TP)
@pytest.mark.parametrize("plan", [decodes(32, 4), prompts(2, 512, 2)])
def test_stages_split_a_step_and_its_loads(tp: int, pp: int, plan: StepPlan) -> None:
    plan = plan._replace(loads=((1, 16, HOST),))
    latency = make_any("vllm", tensor_parallel_size=tp, pipeline_parallel_size=pp)
    whole, timing = latency.price(plan), latency.price_stages(plan)
    assert len(timing.stages) == pp and (timing.transfer_s > 0.0) == (pp > 1)
    assert sum(stage.gpu_s for stage in timing.stages) == pytest.approx(whole.gpu_s)
    assert sum(stage.load_s for stage in timing.stages) == pytest.approx(whole.load_s)
    if pp == 1:
        assert timing.stages == (whole,)


def test_steps_get_shorter_over_nvlink() -> None:
    for plan in (decodes(32, 4), prompts(4, 512, 4)):
        times = [step_s(make_any("vllm", "llama-3.1-70b", tensor_parallel_size=tp), plan) for tp in TP]
        assert times == sorted(times, reverse=True) and times[0] > 1.8 * times[3]


def test_steps_may_get_longer_over_pcie() -> None:
    """Activations of long prompts cross host memory; on cards with NVLink the same step gets shorter."""
    plan = prompts(4, 512, 0)
    pcie, nvlink = (
        [step_s(make_any("vllm", gpu=gpu, tensor_parallel_size=tp, enable_lora=False), plan) for tp in (1, 2, 4)]
        for gpu in ("rtx-pro-6000", "h100-80gb")
    )
    assert pcie == sorted(pcie) and nvlink == sorted(nvlink, reverse=True)


@pytest.mark.parametrize("tp", TP)
def test_every_worker_reads_the_adapter_file(tp: int) -> None:
    """t workers read the whole file each, from one disk; over PCIe goes only what each of them holds."""
    one, many = (make_any("vllm", tensor_parallel_size=t, disk_bytes_per_s=5e8) for t in (1, tp))
    file_bytes = one.transfers.stages(16, DISK)[0][1]
    assert many.transfers.stages(16, DISK)[0][1] == tp * file_bytes
    extra_s = (tp - 1) * file_bytes / 5e8
    reading = many.load_s(16, DISK) - many.load_s(16, HOST), one.load_s(16, DISK) - one.load_s(16, HOST)
    assert reading[0] - reading[1] == pytest.approx(extra_s, rel=0.05, abs=1e-3)
    assert many.load_s(16, HOST) <= one.load_s(16, HOST)
    assert many.transfers.copy_bytes(16) == adapter_shard_bytes(MODELS["llama-2-7b"], 16, ALL_LINEAR, tp)


def served(tp: int, pp: int, **engine: Any) -> Scenario:
    return scenario_from_dict(
        {
            "model": "llama-3.1-8b",
            "gpu": "h200-141gb",
            "engine": {
                "tensor_parallel_size": tp, "pipeline_parallel_size": pp, "max_loras": 8, "max_cpu_loras": 8,
                "max_model_len": 4096, **engine,
            },
            "adapters": {"count": 8, "ranks": 16},
            "workload": {"arrivals": {"kind": "poisson", "rate_rps": 20}, "duration_s": 8},
        }
    )  # fmt: skip


@pytest.mark.parametrize(("tp", "pp"), [(1, 2), (1, 4), (2, 2), (4, 1), (2, 4)])
def test_scenarios_run_and_add_up(tp: int, pp: int) -> None:
    """Invariants at every plan; everything completes; shares sum to one, and no GPU is busier than always."""
    item = served(tp, pp)
    assert item.engine.async_scheduling == (pp == 1)
    log = simulate(build_inputs(item), check=True)
    summary = summarize(log)
    assert summary["requests"]["completed"] == summary["requests"]["offered"] == len(log.requests.status)
    assert summary["cost"]["gpus"] == tp * pp
    assert sum(summary["bottleneck"]["shares"].values()) == pytest.approx(1.0)
    assert 0.0 < summary["gpu"]["busy_fraction"] < 1.0 and summary["gpu"]["flops_fraction"] < 1.0
    tokens = log.requests.output_tokens
    later = (tokens - 1) * summary["tpot_s"]["mean"]
    assert summary["itl_s"]["mean"] == pytest.approx(summary["tpot_s"]["mean"], rel=0.25) and later.min() >= 0
    transfers = summary["transfers"]
    assert transfers["h2d_bytes"] % adapter_bytes(item.model_spec, 16, item.adapter_modules) == 0


def test_one_of_each_is_the_plain_engine() -> None:
    """Bit for bit; the pipeline of one stage is held to the same in test_pipeline.py."""
    plain = served(1, 1).model_dump(mode="json")
    del plain["engine"]["tensor_parallel_size"], plain["engine"]["pipeline_parallel_size"]
    one, other = (summarize(simulate(build_inputs(item))) for item in (scenario_from_dict(plain), served(1, 1)))
    assert one == other


def test_lanes_with_different_adapters_fight_for_slots() -> None:
    """Each batch in flight may hold max_loras adapters of its own; slots for all of them load each adapter once."""
    few, enough = (
        simulate(build_inputs(served(1, 2, max_loras=slots, max_cpu_loras=8))).replicas[0] for slots in (2, 8)
    )
    assert enough.loads == 8 and few.loads is not None and few.loads > 10 * enough.loads
