"""What the ledgers of all engines start from: settings, weights, activations, CUDA's own memory, host memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from simlora.memory.gpu_memory import CachingAllocator, cuda_total_bytes
from simlora.memory.ledger import ACTIVATIONS, CONTEXT, GRAPHS, WEIGHTS, Part
from simlora.memory.profile_peak import profile_peak_bytes
from simlora.memory.tensors import MemorySettings, Shard, shards, weight_tensors
from simlora.scenario.engines.vllm_versions import V0_8_5
from simlora.scenario.gpu import GpuSpec
from simlora.scenario.lora_modules import ALL_LINEAR, EMBEDDINGS, adapter_bytes
from simlora.scenario.model import ModelSpec
from simlora.scenario.root import Scenario

BASE_GRAPH_BYTES_PER_LAYER = 237e3
"""One CUDA graph without LoRA kernels, per layer: vLLM 0.19 estimates 102 graphs of models of 28 to 80 layers at 0.0225
GiB per layer (0.019 to 0.026). [planner], see scenario/engines/vllm_versions.py"""
LORA_GRAPH_BYTES_PER_LAYER = 314e3
"""One CUDA graph with LoRA kernels, per layer: 86 of them cost 0.62 GB (8 slots of rank 16) and 1.11 GB (32 of rank 64)
on Llama-3.1-8B. vLLM multiplies one sample of 2 MiB granularity, so the mean of the two is used. [h200]"""

PLAIN_RULES = replace(V0_8_5.memory, version="plain", extra_vocab_rows=0, expert_lora=True)
"""A PyTorch process with NCCL and no vLLM: its memory outside PyTorch is taken to be what vLLM 0.8.5 had."""
TYPICAL_SEQUENCES = 256
"""Sequences whose logits the peak counts at most: these engines keep no memory back for a full house of them."""


@dataclass(frozen=True)
class MemoryInputs:
    """What a ledger takes from a scenario."""

    model: ModelSpec
    gpu: GpuSpec
    engine: Any
    """Settings of any kind of engine, resolved."""
    rank_counts: dict[int, int]
    """Adapters per rank."""
    modules: tuple[str, ...]
    """Modules that the adapters hold."""

    @classmethod
    def of(cls, scenario: Scenario) -> MemoryInputs:
        counts = scenario.adapters.rank_counts() if scenario.engine.enable_lora else {}
        counts = {rank: count for rank, count in counts.items() if count > 0}
        return cls(scenario.model_spec, scenario.gpu_spec, scenario.engine, counts, scenario.adapter_modules)

    @property
    def tp(self) -> int:
        return int(self.engine.tensor_parallel_size)

    @property
    def largest_rank(self) -> int:
        """0 without adapters."""
        return max(self.rank_counts, default=0)

    @property
    def total_bytes(self) -> int:
        return cuda_total_bytes(self.gpu)

    def shards(self, block_tokens: int, rank: int, slots: int = 1) -> tuple[Shard, ...]:
        """The model's parts, one per pipeline stage. rank: what LoRA kernels compute with; 0: no LoRA."""
        engine = self.engine
        settings = MemorySettings(
            version=PLAIN_RULES.version,
            max_num_seqs=min(engine.max_num_seqs, TYPICAL_SEQUENCES),
            max_num_batched_tokens=engine.max_num_batched_tokens,
            max_model_len=engine.max_model_len,
            gpu_memory_utilization=engine.gpu_memory_utilization,
            tensor_parallel_size=engine.tensor_parallel_size,
            pipeline_parallel_size=engine.pipeline_parallel_size,
            enable_lora=rank > 0,
            max_loras=slots,
            max_lora_rank=rank,
            slot_modules=served(self.modules),
            router_slots=False,
            block_size=block_tokens,
        )
        return shards(self.model, PLAIN_RULES, settings)

    def host_bytes(self, modules: tuple[str, ...], copies: int, most: int | None = None) -> int:
        """Host memory of the `most` largest adapters (None: all) at their own ranks, `copies` times."""
        left, total = math.inf if most is None else most, 0
        for rank, count in sorted(self.rank_counts.items(), reverse=True):
            taken = int(min(count, left))
            total += taken * adapter_bytes(self.model, rank, modules)
            left -= taken
        return total * copies


def served(modules: tuple[str, ...]) -> tuple[str, ...]:
    """The modules that stacked slots hold for adapters with these: q, k and v are one layer, gate and up another."""
    wanted = set(modules)
    for merged in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
        if wanted & set(merged):
            wanted |= set(merged)
    return tuple(module for module in ALL_LINEAR + EMBEDDINGS if module in wanted)


def weight_part(shard: Shard) -> Part:
    """Weights as PyTorch's allocator holds them."""
    allocator = CachingAllocator()
    allocator.allocate_all(weight_tensors(shard))
    note = f"{shard.model.name}, tensor_parallel_size {shard.tp}"
    return Part("weights", WEIGHTS, allocator.reserved_bytes, note)


def activation_part(shard: Shard, gpu: GpuSpec, in_budget: bool = True) -> Part:
    """Peak of the largest step: vLLM's formula for the forward pass and the logits, at this engine's limits."""
    size = math.ceil(profile_peak_bytes(shard, gpu.sm_count))
    note = f"peak at {shard.settings.max_num_batched_tokens} tokens and {shard.settings.max_num_seqs} sequences"
    return Part("activations", ACTIVATIONS, size, note, in_budget)


def context_part(shard: Shard, in_budget: bool = True) -> Part:
    """CUDA context, and NCCL with several GPUs."""
    size = shard.rules.non_torch_tp_bytes if shard.tp > 1 else shard.rules.non_torch_bytes
    return Part("CUDA, NCCL", CONTEXT, math.ceil(size), "" if in_budget else "outside the budget", in_budget)


def graph_part(shard: Shard, base: int, lora: int, in_budget: bool = True) -> Part:
    """Memory of `base` CUDA graphs without and `lora` with LoRA kernels, each as large as one of vLLM's."""
    size = shard.layers * (base * BASE_GRAPH_BYTES_PER_LAYER + lora * LORA_GRAPH_BYTES_PER_LAYER)
    place = "from the budget" if in_budget else "outside the budget"
    note = f"{base + lora}, {place}" if base + lora else "none"
    return Part("CUDA graphs", GRAPHS, math.ceil(size), note, in_budget)
