"""The part of a model that one GPU holds: sizes after tensor parallelism, layers after pipeline parallelism."""

from __future__ import annotations

from dataclasses import dataclass

from simlora.memory.settings import MemorySettings
from simlora.memory.vllm_rules import MemoryRules
from simlora.scenario.model import ModelSpec

_VOCAB_PADDING = 64
"""vLLM pads the vocabulary to a multiple of this before it divides it over the GPUs."""


@dataclass(frozen=True)
class Shard:
    """One GPU's share. Sizes are in elements; a size that tensor parallelism does not divide is rounded up."""

    model: ModelSpec
    rules: MemoryRules
    settings: MemorySettings
    layers: int
    first_stage: bool
    last_stage: bool

    @property
    def tp(self) -> int:
        return self.settings.tensor_parallel_size

    @property
    def q(self) -> int:
        """Output of the query projection."""
        return _divide(self.model.q_size, self.tp)

    @property
    def kv(self) -> int:
        """Output of the key projection; heads are replicated where there are fewer than GPUs."""
        heads = max(_divide(self.model.num_key_value_heads, self.tp), 1)
        return heads * self.model.head_dim

    @property
    def ffn(self) -> int:
        """Width of the MLP, or of one expert."""
        width = self.model.moe_intermediate_size if self.model.is_moe else self.model.intermediate_size
        return _divide(width, self.tp)

    @property
    def has_embedding_lora(self) -> bool:
        """The engine runs with LoRA and the model class lists its embeddings as LoRA modules."""
        return self.settings.enable_lora and self.model.has_lora_embeddings

    def vocab_rows(self, extra: int) -> int:
        """Rows of embed_tokens or lm_head with extra rows for added tokens."""
        padded = -(-(self.model.vocab_size + extra) // _VOCAB_PADDING) * _VOCAB_PADDING
        return _divide(padded, self.tp)

    @property
    def kv_block_bytes(self) -> int:
        """One KV block in all layers of the stage: keys and values of block_size tokens."""
        return 2 * self.settings.block_size * self.kv * self.model.dtype_bytes * self.layers


def shards(model: ModelSpec, rules: MemoryRules, settings: MemorySettings) -> tuple[Shard, ...]:
    """One shard per pipeline stage; the GPUs of a stage hold equal shares."""
    counts = stage_layers(model.num_hidden_layers, settings.pipeline_parallel_size)
    last = len(counts) - 1
    return tuple(
        Shard(model, rules, settings, layers, index == 0, index == last) for index, layers in enumerate(counts)
    )


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each pipeline stage: the remainder goes to the stages before the last, from the back.

    Source: vLLM `distributed.utils.get_pp_indices`.
    """
    counts = [layers // stages] * stages
    for index in range(2, layers % stages + 2):
        counts[-index] += 1
    return tuple(counts)


def _divide(value: int, parts: int) -> int:
    return -(-value // parts)
