"""Matrix shapes of a model as the kernels see them, on one rank of a tensor-parallel group."""

from __future__ import annotations

from typing import NamedTuple

from simlora.scenario.model import ModelSpec


class Linear(NamedTuple):
    """One fused linear: `inputs` columns in, the widths of its slices out (q, k and v are slices of one launch)."""

    name: str
    inputs: int
    outputs: tuple[int, ...]

    @property
    def elements(self) -> int:
        return self.inputs * sum(self.outputs)


def attention_linears(model: ModelSpec, tp: int) -> tuple[Linear, Linear]:
    """qkv (split by output) and o (split by input); key-value heads are replicated when there are fewer than ranks."""
    q = model.q_size // tp
    kv = max(model.num_key_value_heads // tp, 1) * model.head_dim
    return Linear("qkv", model.hidden_size, (q, kv, kv)), Linear("o", q, (model.hidden_size,))


def mlp_linears(model: ModelSpec, tp: int) -> tuple[Linear, Linear]:
    """gate_up (split by output) and down (split by input) of a dense layer, or of one expert."""
    width = (model.moe_intermediate_size if model.num_experts else model.intermediate_size) // tp
    return Linear("gate_up", model.hidden_size, (width, width)), Linear("down", width, (model.hidden_size,))


def lora_linears(model: ModelSpec, tp: int, modules: tuple[str, ...]) -> tuple[Linear, ...]:
    """The LoRA-wrapped linears of one layer, in launch order; a fused linear is wrapped whole."""
    wanted = set(modules)
    parts = ({"q_proj", "k_proj", "v_proj"}, {"o_proj"}, {"gate_proj", "up_proj"}, {"down_proj"})
    linears = attention_linears(model, tp) + mlp_linears(model, tp)
    return tuple(linear for linear, names in zip(linears, parts, strict=True) if wanted & names)


def kv_bytes_per_token(model: ModelSpec, tp: int) -> int:
    """Key and value bytes of one token in all layers on one rank."""
    heads = max(model.num_key_value_heads // tp, 1)
    return 2 * model.num_hidden_layers * heads * model.head_dim * model.dtype_bytes


def activation_bytes_per_token(model: ModelSpec, tp: int) -> int:
    """Bytes that the element-wise kernels move per token in all layers.

    Per layer: two fused residual norms (8 h), rotary embedding and KV write (2 q + 4 kv), gated activation (3 f).
    """
    qkv, _ = attention_linears(model, tp)
    gate_up, _ = mlp_linears(model, tp)
    experts = model.num_experts_per_tok if model.num_experts else 1
    per_layer = 8 * model.hidden_size + 2 * qkv.outputs[0] + 4 * qkv.outputs[1] + 3 * experts * gate_up.outputs[0]
    return model.num_hidden_layers * per_layer * model.dtype_bytes


def logit_bytes_per_row(model: ModelSpec, tp: int) -> int:
    """Bytes the sampler moves per sampled row: 16-bit logits out and in, a 32-bit copy out and in again."""
    return model.vocab_size // tp * 12


PENALTY_BYTES_PER_LOGIT = 110
"""What penalties move per logit: two tables of 8-byte counts written, compared and masked, and seven element-wise
passes over 32-bit logits (v1/sample/ops/penalties.py of vLLM 0.8.5)."""


def default_penalties(model: ModelSpec) -> bool:
    """Whether vLLM applies a repetition penalty unless a request says otherwise: it takes the defaults from the model's
    generation_config.json, and those of Qwen2 and Qwen2.5 name one (1.05)."""
    return model.name.lower().rsplit("/", 1)[-1].startswith("qwen2")


def penalty_bytes_per_row(model: ModelSpec, tp: int) -> int:
    """Bytes that default penalties move per sampled row."""
    return model.vocab_size // tp * PENALTY_BYTES_PER_LOGIT if default_penalties(model) else 0
