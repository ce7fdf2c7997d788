"""The engine settings that decide how GPU memory is divided, detached from the scenario that they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simlora.scenario.lora_modules import ALL_LINEAR, EMBEDDINGS

if TYPE_CHECKING:
    from simlora.scenario.root import Scenario


@dataclass(frozen=True)
class MemorySettings:
    """One replica's flags, by vLLM's names. Ranks and slots are ignored when enable_lora is false."""

    version: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    gpu_memory_utilization: float
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    enable_lora: bool = True
    max_loras: int = 1
    max_lora_rank: int = 16
    max_cpu_loras: int = 1
    fully_sharded_loras: bool = False
    slot_modules: tuple[str, ...] = ALL_LINEAR + EMBEDDINGS
    """Modules that slots hold memory for; embed_tokens and lm_head count only where the model class lists them."""
    router_slots: bool = True
    """The router of a mixture has slot memory too (no --lora-target-modules given)."""
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    enforce_eager: bool = False
    specialize_active_lora: bool = False

    @property
    def workers(self) -> int:
        """GPUs of the replica, one worker process each."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


def settings_of(scenario: Scenario) -> MemorySettings:
    """The settings of a loaded scenario."""
    engine = scenario.engine
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
    )
