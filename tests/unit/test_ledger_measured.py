"""The byte ledger against measured KV pools: a sample of starts with LoRA slots, and other models and parallel degrees,
in this file; the full tables where ../shared is present."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from simlora.engines.vllm.ledger import VllmLedger, compute_ledger
from simlora.memory.tensors import MemorySettings
from simlora.scenario.gpu import GPUS
from simlora.scenario.model import MODELS, ModelSpec

SHARED = Path(__file__).parents[2].parent / "shared"
TABLE = SHARED / "data" / "agullo_kv_capacity_vs_loras.csv"
TRUTH = SHARED / "truth" / "vllm-0.20.2-h200"
GIB = 2**30

# vLLM 0.8.5 development build, 64 GB H100, 2,048 sequences: (rank, slots) -> KV tokens.
# github.com/FerranAgulloLopez/GPULLMAdapterOptimization (Apache-2.0),
# digital_twin_dynamic/estimators/find_available_gpu_memory_depending_on_loaded_adapters
LLAMA = {(8, 8): 305104, (8, 128): 253568, (8, 384): 154240, (16, 8): 302000, (16, 64): 256640, (16, 128): 212032,
         (16, 224): 138272, (32, 8): 296352, (32, 32): 258176, (32, 96): 168064}  # fmt: skip
QWEN = {(8, 8): 700816, (8, 128): 601664, (8, 384): 430432, (16, 16): 683472, (32, 8): 683472, (8, 32): 683472,
        (16, 64): 601664, (16, 224): 383632, (16, 384): 165664, (32, 64): 526992, (32, 128): 346768, (32, 160): 250432,
        (32, 192): 165664, (32, 224): 67136}  # fmt: skip

# vLLM 0.19.0 start-up logs on H100-80GB, 8,192 tokens, 1,024 sequences, utilization 0.95, base models:
# (model, TP, GiB of weights, of activations, for KV).
# github.com/llm-d-incubation/llm-d-planner, accuracy/results/v0.19.0
PLANNER = [
    ("codellama-7b", 1, 12.56, 0.77, 61.66),
    ("llama-3.1-8b", 1, 14.99, 1.89, 58.11),
    ("llama-3.1-8b", 2, 7.51, 1.89, 63.76),
    ("llama-3.1-8b", 4, 3.77, 1.89, 67.44),
    ("phi-4", 1, 27.39, 1.52, 46.08),
    ("mixtral-8x7b", 2, 43.51, 1.21, 28.44),
    ("qwen2.5-7b", 1, 14.25, 2.21, 58.53),
    ("qwen2.5-7b", 2, 7.12, 2.21, 63.84),
    ("qwen2.5-7b", 4, 3.55, 2.21, 67.34),
    ("qwen2.5-72b", 2, 67.80, 2.29, 3.04),
    ("qwen2.5-72b", 4, 34.01, 2.29, 36.72),
    ("qwen3-30b-a3b", 1, 56.88, 2.68, 15.41),
    ("qwen3-8b", 1, 15.27, 2.21, 57.50),
]
OTHER_MODELS = {
    "codellama-7b": replace(MODELS["llama-2-7b"], name="codellama-7b", vocab_size=32016, max_position_embeddings=16384),
    "phi-4": ModelSpec("phi-4", 5120, 17920, 40, 40, 10, 128, 100352, False, 16384),
}


def mn5_ledger(model: str, rank: int, slots: int, version: str = "0.8.5", lora: bool = True) -> VllmLedger:
    spec, sequences = MODELS[model], 4096 if version == "0.5.0" else 2048
    settings = MemorySettings(
        version=version,
        max_num_seqs=sequences,
        max_num_batched_tokens=sequences,
        max_model_len=spec.max_position_embeddings,
        gpu_memory_utilization=0.9,
        enable_lora=lora,
        max_loras=slots,
        max_lora_rank=rank,
    )
    return compute_ledger(spec, GPUS["h100-64gb"], settings)


def h200_ledger(engine: dict[str, object], limits: dict[str, int]) -> VllmLedger:
    settings = MemorySettings(
        version="0.20",
        max_num_seqs=limits["max_num_seqs"],
        max_num_batched_tokens=limits["max_num_batched_tokens"],
        max_model_len=int(engine.get("max_model_len", 8192)),  # type: ignore[call-overload]
        gpu_memory_utilization=0.92,  # the default of 0.20.2
        enable_lora=bool(engine.get("enable_lora", False)),
        max_loras=int(engine.get("max_loras", 1)),  # type: ignore[call-overload]
        max_lora_rank=int(engine.get("max_lora_rank", 16)),  # type: ignore[call-overload]
        num_gpu_blocks_override=engine.get("num_gpu_blocks_override"),  # type: ignore[arg-type]
    )
    return compute_ledger(MODELS["llama-3.1-8b"], GPUS["h200-141gb"], settings)


@pytest.mark.parametrize(("rank", "slots"), LLAMA)
def test_llama_slots_on_a_64_gb_h100(rank: int, slots: int) -> None:
    assert mn5_ledger("llama-3.1-8b", rank, slots).kv_tokens == pytest.approx(LLAMA[rank, slots], rel=0.005)


@pytest.mark.parametrize(("rank", "slots"), QWEN)
def test_qwen_slots_on_a_64_gb_h100(rank: int, slots: int) -> None:
    assert mn5_ledger("qwen2.5-7b", rank, slots).kv_tokens == pytest.approx(QWEN[rank, slots], rel=0.015)


@pytest.mark.parametrize(("model", "slots"), [("llama-3.1-8b", 224), ("qwen2.5-7b", 256), ("qwen2.5-7b", 320)])
def test_slots_that_did_not_start(model: str, slots: int) -> None:
    assert not mn5_ledger(model, 32, slots).fits


@pytest.mark.parametrize(
    ("engine", "blocks"),
    [
        ({}, 57371),
        ({"enable_lora": True, "max_loras": 8, "max_lora_rank": 16}, 56724),
        ({"enable_lora": True, "max_loras": 32, "max_lora_rank": 64}, 51203),
    ],
)
def test_h200_blocks(engine: dict[str, object], blocks: int) -> None:
    ledger = h200_ledger(engine, {"max_num_seqs": 256, "max_num_batched_tokens": 2048})
    assert ledger.kv_blocks == pytest.approx(blocks, rel=0.005)


@pytest.mark.parametrize(("model", "tp", "weights", "activations", "kv"), PLANNER)
def test_terms_of_other_models_and_tensor_parallel_degrees(
    model: str, tp: int, weights: float, activations: float, kv: float
) -> None:
    settings = MemorySettings(
        version="0.19",
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        max_model_len=8192,
        gpu_memory_utilization=0.95,
        tensor_parallel_size=tp,
        enable_lora=False,
    )
    ledger = compute_ledger(OTHER_MODELS.get(model) or MODELS[model], GPUS["h100-80gb"], settings)
    assert ledger.resident_bytes / GIB == pytest.approx(weights, abs=0.04)
    assert ledger.activation_bytes / GIB == pytest.approx(activations, abs=0.03)
    assert ledger.available_bytes / GIB == pytest.approx(kv, abs=0.12)


def rows() -> Iterator[dict[str, str]]:
    if not TABLE.exists():
        pytest.skip("the full table needs ../shared/data/agullo_kv_capacity_vs_loras.csv")
    with TABLE.open(newline="") as file:
        yield from csv.DictReader(file)


NAMES = {
    "llama-3.1-8b-instruct": "llama-3.1-8b",
    "qwen-2.5-7b-instruct": "qwen2.5-7b",
    "llama-2-7b": "llama-2-7b",
    "llama-2-13b": "llama-2-13b",
}


def row_ledger(row: dict[str, str]) -> VllmLedger:
    version = "0.5.0" if row["vllm"] == "0.5.0" else "0.8.5"
    rank, slots = int(row["max_lora_rank"]), int(row["max_loras"])
    return mn5_ledger(NAMES[row["model"]], rank, slots, version, row["enable_lora"] == "True")


def test_every_start_of_the_full_table() -> None:
    """KV tokens within 3 % for 0.8.5 (within 8 % for 0.5.0, which no scenario can ask for); what failed is refused."""
    errors: dict[str, list[float]] = {}
    for row in rows():
        ledger = row_ledger(row)
        if row["oom"]:
            assert not ledger.fits, row
        elif row["kv_tokens"]:
            assert ledger.fits, row
            errors.setdefault(row["model"], []).append(ledger.kv_tokens / float(row["kv_tokens"]) - 1)
    worst = {model: max(map(abs, values)) for model, values in errors.items()}
    assert len(errors["llama-3.1-8b-instruct"]) == 28 and len(errors["qwen-2.5-7b-instruct"]) == 37
    assert worst["llama-3.1-8b-instruct"] < 0.005
    assert worst["qwen-2.5-7b-instruct"] < 0.03
    assert worst["llama-2-7b"] < 0.08 and worst["llama-2-13b"] < 0.03


def test_blocks_of_the_recorded_runs() -> None:
    runs = sorted(TRUTH.glob("*/run.json"))
    if not runs:
        pytest.skip("recorded runs need ../shared/truth/vllm-0.20.2-h200")
    for path in runs:
        run = json.loads(path.read_text())
        ledger = h200_ledger(run["engine"], run["resolved"])
        assert ledger.kv_blocks == pytest.approx(run["resolved"]["num_gpu_blocks"], rel=0.03), path
        assert ledger.fits, path
