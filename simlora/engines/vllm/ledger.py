"""The byte ledger of one GPU of one vLLM replica: where its memory goes, and how many KV blocks remain.

vLLM gives the KV cache what is left of gpu_memory_utilization * total after the weights (LoRA slots are part of
them), the peak of a profiling run, memory outside PyTorch and, in recent versions, the CUDA graphs. All GPUs of a
pipeline stage look alike; the ledger shows the stage with the fewest blocks, since every worker gets that number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from simlora.engines.vllm.cuda_graphs import graph_bytes
from simlora.memory.gpu_memory import CachingAllocator, cuda_total_bytes
from simlora.memory.ledger import AdapterRoom
from simlora.memory.profile_peak import profile_peak_bytes
from simlora.memory.shortage import gb
from simlora.memory.tensors import MemorySettings, Shard, shards, slot_bytes, slot_tensors, weight_tensors
from simlora.scenario.engines.vllm import VllmConfig
from simlora.scenario.engines.vllm_versions import memory_rules
from simlora.scenario.gpu import GpuSpec
from simlora.scenario.lora_modules import ALL_LINEAR, adapter_bytes
from simlora.scenario.model import ModelSpec
from simlora.scenario.root import Scenario


@dataclass(frozen=True)
class VllmLedger:
    """Bytes on one GPU, except host_bytes. A negative available_bytes means that the engine does not start."""

    model: ModelSpec
    gpu: GpuSpec
    settings: MemorySettings
    adapter_modules: tuple[str, ...]
    total_bytes: int
    """What CUDA reports as the GPU's memory."""
    budget_bytes: int
    """gpu_memory_utilization * total."""
    weight_bytes: int
    """The model's tensors."""
    slots_bytes: int
    """All LoRA slots, empty or not."""
    rounding_bytes: int
    """What PyTorch's allocator adds to both."""
    activation_bytes: int
    """Peak of the profiling run."""
    graph_bytes: int
    """All CUDA graphs; paid from the budget only if graphs_in_budget."""
    graphs_in_budget: bool
    non_torch_bytes: int
    """CUDA and NCCL, as far as the budget pays for them."""
    context_bytes: int
    """CUDA and NCCL, as far as it does not."""
    slot_bytes: int
    """One more slot."""
    kv_block_bytes: int
    host_bytes: int
    """Host memory of the replica's full adapter cache: the max_cpu_loras largest adapters, once per worker."""

    @property
    def available_bytes(self) -> int:
        """Left of the budget for the KV cache."""
        graphs = self.graph_bytes if self.graphs_in_budget else 0
        return self.budget_bytes - self.resident_bytes - self.activation_bytes - self.non_torch_bytes - graphs

    @property
    def resident_bytes(self) -> int:
        """Weights and slots as allocated."""
        return self.weight_bytes + self.slots_bytes + self.rounding_bytes

    @property
    def fitting_kv_blocks(self) -> int:
        """Blocks that fit: num_gpu_blocks_override left out."""
        return max(self.available_bytes, 0) // self.kv_block_bytes

    @property
    def kv_blocks(self) -> int:
        """vLLM's num_gpu_blocks, the null block included."""
        override = self.settings.num_gpu_blocks_override
        return self.fitting_kv_blocks if override is None else override

    @property
    def kv_tokens(self) -> int:
        """Capacity of the KV cache as vLLM reports it."""
        return self.kv_blocks * self.settings.block_size

    @property
    def usable_kv_tokens(self) -> int:
        """What requests can hold: one block is the null block."""
        return max(self.kv_blocks - 1, 0) * self.settings.block_size

    @property
    def kv_bytes(self) -> int:
        """GPU memory of the KV cache."""
        return self.kv_blocks * self.kv_block_bytes

    @property
    def kv_units(self) -> int:
        """Blocks that requests can hold: all but the null block."""
        return max(self.kv_blocks - 1, 0)

    @property
    def kv_unit_tokens(self) -> int:
        return self.settings.block_size

    @property
    def kv_unit_bytes(self) -> int:
        return self.kv_block_bytes

    @property
    def adapter_area_bytes(self) -> int:
        return self.slots_bytes

    @property
    def adapter_room(self) -> AdapterRoom:
        """The slots."""
        slots = self.settings.max_loras if self.settings.enable_lora else 0
        return AdapterRoom(slots, 0, False, self.slots_bytes)

    @property
    def headroom_bytes(self) -> int:
        """Free on the GPU once the engine runs, the profiling peak counted as in use. Negative: it would run out."""
        used = self.resident_bytes + self.activation_bytes + self.non_torch_bytes + self.context_bytes
        return self.total_bytes - used - self.graph_bytes - self.kv_bytes

    @property
    def fits(self) -> bool:
        """vLLM's own conditions: the budget is free at start-up, one sequence of max_model_len fits the KV cache, and
        weights, slots, KV cache and graphs together stay within the GPU's memory."""
        free_at_start = self.total_bytes - self.context_bytes
        enough_kv = self.available_bytes > 0 and self.kv_tokens >= self.settings.max_model_len
        return enough_kv and self.budget_bytes <= free_at_start and self.headroom_bytes >= 0

    def entries(self) -> list[tuple[str, int, str]]:
        """See Ledger."""
        settings, rounding = self.settings, "PyTorch blocks larger than the tensors in them"
        slots = f"{settings.max_loras} of rank {settings.max_lora_rank}, {self.slot_bytes / 1e6:.1f} MB each"
        peak = f"peak at {settings.max_num_batched_tokens} tokens and {settings.max_num_seqs} sequences"
        blocks = f"{self.kv_blocks} blocks of {settings.block_size} tokens: {self.kv_tokens} tokens"
        return [
            ("weights", self.weight_bytes, f"{self.model.name}, tensor_parallel_size {settings.tensor_parallel_size}"),
            ("LoRA slots", self.slots_bytes, f"{slots}, empty or not" if settings.enable_lora else "LoRA off"),
            ("allocator rounding", self.rounding_bytes, rounding),
            ("activations", self.activation_bytes, peak),
            ("CUDA graphs", self.graph_bytes, "from the budget" if self.graphs_in_budget else "outside the budget"),
            ("CUDA, NCCL", self.non_torch_bytes + self.context_bytes, f"{gb(self.non_torch_bytes)} from the budget"),
            ("KV cache", self.kv_bytes, blocks),
            ("free", self.headroom_bytes, f"gpu_memory_utilization {settings.gpu_memory_utilization:g}"),
        ]

    def takers(self) -> dict[str, int]:
        """See Ledger."""
        return {
            "weights": self.weight_bytes,
            "LoRA slots": self.slots_bytes,
            "activations": self.activation_bytes,
            "CUDA graphs": self.graph_bytes if self.graphs_in_budget else 0,
        }

    def with_settings(self, **changes: object) -> VllmLedger:
        """The ledger of the same model and GPU under other settings; host_bytes is not recomputed."""
        settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        return compute_ledger(self.model, self.gpu, settings, None, self.adapter_modules)

    def adapter_bytes(self, rank: int) -> int:
        """One adapter of that rank in host memory: own rank, unsharded; every worker holds a copy."""
        return adapter_bytes(self.model, rank, self.adapter_modules)


def compute_ledger(
    model: ModelSpec,
    gpu: GpuSpec,
    settings: MemorySettings,
    rank_counts: dict[int, int] | None = None,
    adapter_modules: tuple[str, ...] = ALL_LINEAR,
    source: str = "<arguments>",
) -> VllmLedger:
    """The ledger for explicit values. rank_counts: adapters per rank, for host_bytes only.

    Raises ConfigError for an engine version without memory rules.
    """
    rules = memory_rules(settings.version, source)
    ledgers = [_stage_ledger(shard, gpu, adapter_modules) for shard in shards(model, rules, settings)]
    ledger = min(ledgers, key=lambda stage: stage.available_bytes // stage.kv_block_bytes)
    return replace(ledger, host_bytes=_host_bytes(ledger, rank_counts or {}))


def _stage_ledger(shard: Shard, gpu: GpuSpec, adapter_modules: tuple[str, ...]) -> VllmLedger:
    settings, rules = shard.settings, shard.rules
    total = cuda_total_bytes(gpu)
    weights, slots = weight_tensors(shard), slot_tensors(shard)
    allocator = CachingAllocator()
    allocator.allocate_all(weights)
    allocator.allocate_all(slots)
    allocated = allocator.reserved_bytes if rules.counts_reserved else allocator.allocated_bytes
    several = shard.tp > 1
    return VllmLedger(
        model=shard.model,
        gpu=gpu,
        settings=settings,
        adapter_modules=adapter_modules,
        total_bytes=total,
        budget_bytes=math.ceil(total * settings.gpu_memory_utilization),
        weight_bytes=sum(weights),
        slots_bytes=sum(slots),
        rounding_bytes=allocated - sum(weights) - sum(slots),
        activation_bytes=math.ceil(profile_peak_bytes(shard, gpu.sm_count)),
        graph_bytes=math.ceil(graph_bytes(shard)),
        graphs_in_budget=rules.counts_graphs,
        non_torch_bytes=math.ceil(rules.non_torch_tp_bytes if several else rules.non_torch_bytes),
        context_bytes=math.ceil(rules.context_tp_bytes if several else rules.context_bytes),
        slot_bytes=slot_bytes(shard),
        kv_block_bytes=shard.kv_block_bytes,
        host_bytes=0,
    )


def _host_bytes(ledger: VllmLedger, rank_counts: dict[int, int]) -> int:
    """Pinned host memory when the cache holds the largest adapters that it can."""
    room, total = ledger.settings.max_cpu_loras, 0
    for rank in sorted(rank_counts, reverse=True):
        cached = min(rank_counts[rank], room)
        total += cached * ledger.adapter_bytes(rank)
        room -= cached
    return total * ledger.settings.workers if ledger.settings.enable_lora else 0


def vllm_ledger(scenario: Scenario) -> VllmLedger:
    """The ledger of a loaded scenario of kind vllm, whether or not it fits."""
    return compute_ledger(
        scenario.model_spec,
        scenario.gpu_spec,
        settings_of(scenario),
        scenario.adapters.rank_counts() if scenario.engine.enable_lora else {},
        scenario.adapter_modules,
        scenario.source,
    )


def settings_of(scenario: Scenario) -> MemorySettings:
    """The settings of a loaded scenario."""
    engine = scenario.engine
    assert isinstance(engine, VllmConfig)
    return MemorySettings(
        version=engine.version,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=engine.max_model_len,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        tensor_parallel_size=engine.tensor_parallel_size,
        pipeline_parallel_size=engine.pipeline_parallel_size,
        enable_lora=engine.enable_lora,
        max_loras=engine.max_loras,
        max_lora_rank=engine.max_lora_rank,
        max_cpu_loras=engine.max_cpu_loras,
        fully_sharded_loras=engine.fully_sharded_loras,
        slot_modules=scenario.slot_modules,
        router_slots=engine.lora_target_modules == "all",
        block_size=engine.block_size,
        num_gpu_blocks_override=engine.num_gpu_blocks_override,
        enforce_eager=engine.enforce_eager,
        specialize_active_lora=engine.specialize_active_lora,
        draft_tokens=engine.speculative.num_speculative_tokens if engine.speculative else 0,
    )
