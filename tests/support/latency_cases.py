"""Engines, plans and latency models for the tests of simlora.latency."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simlora.latency.model import StepLatency
from simlora.latency.step import Prefill, StepPlan
from simlora.latency.store import choose_calibration
from simlora.scenario.gpu_catalog import builtin_gpu
from simlora.scenario.model_catalog import builtin_model

TRUTH = Path(__file__).parents[2].parent / "shared" / "truth" / "vllm-0.20.2-h200"


@dataclass(frozen=True)
class Engine:
    """Resolved engine flags, as the latency model reads them."""

    kind: str = "vllm"
    version: str = "0.20"
    enable_lora: bool = True
    tensor_parallel_size: int = 1
    max_loras: int = 8
    max_lora_rank: int = 16
    max_cpu_loras: int = 8
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    enforce_eager: bool = False
    specialize_active_lora: bool = False
    fully_sharded_loras: bool = False
    endpoint: str = "in-process"


def make_latency(model: str = "llama-3.1-8b", gpu: str = "h200-141gb", **flags: Any) -> StepLatency:
    spec, device = builtin_model(model), builtin_gpu(gpu)
    assert spec is not None and device is not None
    engine = Engine(**flags)
    return StepLatency(spec, device, engine, choose_calibration(device, engine))


def decode(requests: int, adapters: int = 0, context: int = 280, changed: bool = False, repeat: int = 100) -> StepPlan:
    """A step of decodes only, all of them with an adapter if there is one."""
    lora = requests if adapters else 0
    return StepPlan((), requests, requests * context, requests, requests, adapters, lora, 16, changed, (), repeat)


def mixed(decodes: int, prompt: int, adapters: int = 0, start: int = 0, loads: tuple[Any, ...] = ()) -> StepPlan:
    """One chunk of a prompt beside decodes with 280 tokens of context."""
    tokens = decodes + prompt
    lora = tokens if adapters else 0
    chunk = (Prefill(0, start, prompt),)
    return StepPlan(chunk, decodes, decodes * 280, tokens, decodes + 1, adapters, lora, 16, True, loads, 1)
