"""The tensors that one GPU of a replica holds: its share of the model, its LoRA slots, one adapter.

Weights and slots come in the order in which vLLM creates them, which decides how PyTorch's allocator packs them. Slots
are stacked: one tensor per matrix holds all max_loras slots, each padded to max_lora_rank. With tensor parallelism,
layers split by output keep A whole and shard B; layers split by input shard A and keep B whole; fully_sharded_loras
also splits A of the first kind by rank and B of the second kind by output. Embeddings are never sharded.
Source: vLLM lora/layers (create_lora_weights of each class); 0.8.5 adds tables for extra vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from simlora.scenario.engines.vllm_versions import MemoryRules
from simlora.scenario.lora_modules import ALL_LINEAR, EMBEDDINGS, module_shape
from simlora.scenario.model import ModelSpec, stage_layers


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
    draft_tokens: int = 0
    """Tokens proposed to each request in a step (speculative decoding)."""

    @property
    def workers(self) -> int:
        """GPUs of the replica, one worker process each."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


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


def _divide(value: int, parts: int) -> int:
    return -(-value // parts)


def weight_tensors(shard: Shard) -> list[int]:
    """Sizes in bytes. Linear layers are merged as vLLM merges them: q, k and v; gate and up; all experts of a layer.

    A checkpoint stored in another format (quantized_weight_bytes) is scaled to its size as a whole.
    """
    elements = list(_elements(shard))
    sizes = [count * shard.model.dtype_bytes for count in elements]
    quantized = shard.model.quantized_weight_bytes
    if quantized is None:
        return sizes
    scale = quantized / (shard.model.parameters * shard.model.dtype_bytes)
    return [max(round(size * scale), 1) for size in sizes]


def _elements(shard: Shard) -> Iterator[int]:
    model, h = shard.model, shard.model.hidden_size
    extra = shard.rules.extra_vocab_rows if shard.has_embedding_lora else 0
    if shard.first_stage or (shard.last_stage and model.tie_word_embeddings):
        yield shard.vocab_rows(extra * shard.settings.max_loras) * h
    for layer in range(shard.layers):
        yield from _attention_weights(shard)
        if layer == 0:
            yield model.max_position_embeddings * model.head_dim  # the cosine and sine table, shared by all layers
        yield from _experts(shard) if model.is_moe else (2 * shard.ffn * h, h * shard.ffn)
        yield h
        yield h
    if shard.last_stage:
        yield h
        if not model.tie_word_embeddings:
            yield shard.vocab_rows(extra) * h


def _attention_weights(shard: Shard) -> Iterator[int]:
    model, h = shard.model, shard.model.hidden_size
    qkv = shard.q + 2 * shard.kv
    yield qkv * h
    if model.qkv_bias:
        yield qkv
    yield h * shard.q
    if model.moe_bias:
        yield h
        yield -(-model.num_attention_heads // shard.tp)
    if model.qk_norm:
        yield model.head_dim
        yield model.head_dim


def _experts(shard: Shard) -> Iterator[int]:
    model, h, experts = shard.model, shard.model.hidden_size, shard.model.num_experts
    yield experts * h
    yield experts * 2 * shard.ffn * h
    yield experts * h * shard.ffn
    if model.moe_bias:
        yield experts
        yield experts * 2 * shard.ffn
        yield experts * h


_GPT_OSS = "GptOssForCausalLM"
"""Its experts keep gate and up in one tensor (vLLM FusedMoE3DWithLoRA)."""


def slot_tensors(shard: Shard) -> list[int]:
    """Sizes in bytes for all slots; empty without LoRA."""
    if not shard.settings.enable_lora:
        return []
    scale = shard.settings.max_loras * shard.model.dtype_bytes
    return [elements * scale for elements in _slot_elements(shard)]


def slot_bytes(shard: Shard) -> int:
    """Exact bytes that one more slot takes on one GPU, the rows it adds to embed_tokens (0.8.5) included."""
    if not shard.settings.enable_lora:
        return 0
    elements = sum(_slot_elements(shard))
    if shard.has_embedding_lora and shard.first_stage:
        elements += -(-shard.rules.extra_vocab_rows // shard.tp) * shard.model.hidden_size
    return elements * shard.model.dtype_bytes


def _slot_elements(shard: Shard) -> Iterator[int]:
    """Elements per slot of each tensor."""
    embeddings = shard.settings.slot_modules if shard.has_embedding_lora else ()
    if shard.first_stage and "embed_tokens" in embeddings:
        yield from _embed_tokens(shard)
    for _ in range(shard.layers):
        yield from _attention_slots(shard)
        yield from _moe_slots(shard) if shard.model.is_moe else _mlp_slots(shard)
    if shard.last_stage and "lm_head" in embeddings:
        yield from _lm_head(shard)


def _embed_tokens(shard: Shard) -> Iterator[int]:
    h, rank, extra = shard.model.hidden_size, shard.settings.max_lora_rank, shard.rules.extra_vocab_rows
    if extra:
        yield extra * h
    yield (shard.model.vocab_size + extra) * rank
    yield h * rank


def _lm_head(shard: Shard) -> Iterator[int]:
    h, rank, extra = shard.model.hidden_size, shard.settings.max_lora_rank, shard.rules.extra_vocab_rows
    yield rank * h
    if extra:
        yield -(-(shard.model.vocab_size + extra) // extra) * extra * rank  # padded for the kernels
        yield extra * h
    else:
        yield shard.model.vocab_size * rank


def _attention_slots(shard: Shard) -> Iterator[int]:
    modules, rank = shard.settings.slot_modules, shard.settings.max_lora_rank
    if "q_proj" in modules:
        yield from (_rank_a(shard) * shard.model.hidden_size,) * 3
        yield from (shard.q * rank, shard.kv * rank, shard.kv * rank)
    if "o_proj" in modules:
        yield rank * shard.q
        yield _row_output(shard) * rank


def _mlp_slots(shard: Shard) -> Iterator[int]:
    modules, rank = shard.settings.slot_modules, shard.settings.max_lora_rank
    if "gate_proj" in modules:
        yield from (_rank_a(shard) * shard.model.hidden_size,) * 2
        yield from (shard.ffn * rank,) * 2
    if "down_proj" in modules:
        yield rank * shard.ffn
        yield _row_output(shard) * rank


def _moe_slots(shard: Shard) -> Iterator[int]:
    model, rank, experts = shard.model, shard.settings.max_lora_rank, shard.model.num_experts
    modules = shard.settings.slot_modules
    if shard.settings.router_slots:
        yield rank * model.hidden_size
        yield experts * rank
    if not shard.rules.expert_lora or not {"gate_proj", "down_proj"} & set(modules):
        return
    slices = 1 if model.architecture == _GPT_OSS else 2
    yield from (experts * _rank_a(shard) * model.hidden_size,) * slices
    yield experts * rank * shard.ffn
    yield from (experts * (2 // slices) * shard.ffn * rank,) * slices
    yield experts * _row_output(shard) * rank


def _rank_a(shard: Shard) -> int:
    """Rows of A of a layer that is split by output."""
    rank = shard.settings.max_lora_rank
    return -(-rank // shard.tp) if shard.settings.fully_sharded_loras else rank


def _row_output(shard: Shard) -> int:
    """Rows of B of a layer that is split by input."""
    h = shard.model.hidden_size
    return -(-h // shard.tp) if shard.settings.fully_sharded_loras else h


_SPLIT_BY_INPUT = ("o_proj", "down_proj")


class MatrixPair(NamedTuple):
    """Elements of A and B of one copy of a module on one GPU."""

    a: int
    b: int
    copies: int


def module_shard(model: ModelSpec, module: str, rank: int, tp: int, partitioned: bool) -> MatrixPair:
    """The matrices of a module. tp: tensor-parallel degree.

    Layers split by output keep A whole and split B, layers split by input split A and keep B whole (vLLM, SGLang).
    partitioned splits all four, the first A and the last B along rank and output (S-LoRA section 6, LoRAX): no GPU
    holds what another does. Embeddings are never split. Key and value heads are replicated where there are fewer of
    them than GPUs.
    """
    width_in, width_out, copies = module_shape(model, module)
    if module in EMBEDDINGS:
        return MatrixPair(rank * width_in, rank * width_out, copies)
    if module in _SPLIT_BY_INPUT:
        rows = _divide(width_out, tp) if partitioned else width_out
        return MatrixPair(rank * _divide(width_in, tp), rank * rows, copies)
    if module in ("k_proj", "v_proj"):
        out = max(_divide(model.num_key_value_heads, tp), 1) * model.head_dim
    else:
        out = _divide(width_out, tp)
    rank_a = _divide(rank, tp) if partitioned else rank
    return MatrixPair(rank_a * width_in, rank * out, copies)


def adapter_shard_bytes(
    model: ModelSpec, rank: int, modules: tuple[str, ...], tp: int = 1, partitioned: bool = False
) -> int:
    """One adapter of that rank on one GPU, all layers; the whole adapter with tp 1."""
    pairs = [module_shard(model, module, rank, tp, partitioned) for module in modules]
    return sum((pair.a + pair.b) * pair.copies for pair in pairs) * model.dtype_bytes
