"""Engines, plans and latency models for the tests of simlora.latency."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simlora.engines.registry import engine_spec
from simlora.latency.calibration import Calibration
from simlora.latency.engine_latency import EngineLatency
from simlora.latency.family_latency import step_latency
from simlora.latency.profile import EngineProfile
from simlora.latency.step import AdapterMix, Prefill, StepPlan
from simlora.latency.step_latency import StepLatency
from simlora.latency.store import choose_calibration
from simlora.scenario.gpu import GpuSpec, builtin_gpu
from simlora.scenario.model import builtin_model

TRUTH = Path(__file__).parents[2].parent / "shared" / "truth" / "vllm-0.20.2-h200"


@dataclass(frozen=True)
class Loading:
    """How adapters reach the GPU, as vLLM does it."""

    overlap: bool = False
    pinned: bool = True
    prefetch: bool = False


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
    kernels: str = "padded"
    pipeline_parallel_size: int = 1
    adapter_loading: Loading = Loading()
    speculative: None = None


def calibrated(device: GpuSpec, engine: Any) -> tuple[Calibration, EngineProfile]:
    """The calibration chosen for an engine, and the engine's profile."""
    profile = engine_spec(engine.kind).profile(engine)
    return choose_calibration(device, engine, None, profile.families, profile.start), profile


def make_latency(model: str = "llama-3.1-8b", gpu: str = "h200-141gb", **flags: Any) -> StepLatency:
    spec, device = builtin_model(model), builtin_gpu(gpu)
    assert spec is not None and device is not None
    engine = Engine(**flags)
    return StepLatency(spec, device, engine, *calibrated(device, engine))


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


KERNELS = {
    "vllm": "padded", "slora": "mbgmv", "lorax": "bgmv", "punica": "sgmv", "sglang": "csgmv", "grouped": "loop",
    "sequential": "loop", "merged-swap": "loop",
}  # fmt: skip
"""Kind -> its own kernels."""


@dataclass(frozen=True)
class AnyEngine(Engine):
    """Resolved flags of any kind, with those that only some have."""

    artifact: bool = False
    cuda_graph_max_bs: int = 256
    max_running_requests: int = 4096

    @property
    def disable_cuda_graph(self) -> bool:
        return self.enforce_eager


def make_any(kind: str, model: str = "llama-2-7b", gpu: str = "h200-141gb", **flags: Any) -> EngineLatency:
    """The latency model of one kind of engine; disk_bytes_per_s and adapter modules besides the engine's flags."""
    spec, device = builtin_model(model), builtin_gpu(gpu)
    assert spec is not None and device is not None
    disk = flags.pop("disk_bytes_per_s", None)
    own = {"version": "0.20" if kind == "vllm" else "published", "kernels": KERNELS[kind]}
    engine = AnyEngine(kind=kind, **{**own, **flags})
    return step_latency(spec, device, engine, *calibrated(device, engine), disk_bytes_per_s=disk)


def equal_mix(adapters: int, tokens: int, rank: int) -> AdapterMix | None:
    """Adapters of one rank."""
    return AdapterMix(adapters * rank, tokens * rank, rank, 1) if adapters else None


def decodes(
    requests: int, adapters: int = 0, rank: int = 16, context: int = 280, mix: AdapterMix | None = None, **more: Any
) -> StepPlan:
    """A step of decodes, all with an adapter if there is one, with their ranks."""
    plan = decode(requests, adapters, context)
    found = equal_mix(adapters, requests, rank) if mix is None else mix
    return plan._replace(mix=found, max_rank=found.max_rank if found else 0, **more)


def prompts(count: int, length: int, adapters: int, rank: int = 16, **more: Any) -> StepPlan:
    """A step of whole prompts."""
    tokens = count * length
    lora, chunks = tokens if adapters else 0, tuple(Prefill(i, 0, length) for i in range(count))
    mix = equal_mix(adapters, tokens, rank)
    plan = StepPlan(chunks, 0, 0, tokens, count, adapters, lora, rank if adapters else 0, True, (), 1, mix=mix)
    return plan._replace(**more)


def step_s(latency: EngineLatency, plan: StepPlan) -> float:
    """Seconds of one step on its own."""
    timing = latency.price(plan)
    return timing.host_s + timing.load_s + timing.sync_s + timing.gpu_s
