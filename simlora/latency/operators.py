"""GPU time of the base model: GEMMs by roofline, element-wise kernels by bytes, attention by context; and of
merging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simlora.latency.calibration import AttentionParameters, OperatorParameters
from simlora.latency.lora_kernels import active_experts
from simlora.latency.shapes import (
    Linear,
    activation_bytes_per_token,
    attention_linears,
    kv_bytes_per_token,
    logit_bytes_per_row,
    lora_linears,
    mlp_linears,
    penalty_bytes_per_row,
)
from simlora.scenario.model import ModelSpec


@dataclass(frozen=True)
class Operators:
    """Base operators of one model on one rank of `tp`. All results are seconds for a whole step."""

    parameters: OperatorParameters
    model: ModelSpec
    tp: int
    penalties: bool = False
    """The sampler applies the model's default penalties."""

    def dense_s(self, tokens: int, sampled_rows: int) -> float:
        """Everything but attention over the context: `tokens` padded tokens, logits for `sampled_rows` of them."""
        return float(self.layers_s(tokens)) + self.head_s(sampled_rows)

    def layers_s(self, tokens: Any) -> Any:
        """The layers without attention over the context, for one number of padded tokens or for an array of them."""
        p, model = self.parameters, self.model
        per_layer = sum(self._gemm_s(linear, tokens) for linear in attention_linears(model, self.tp))
        per_layer += self._mlp_s(tokens)
        moved = tokens * activation_bytes_per_token(model, self.tp)
        return model.num_hidden_layers * (per_layer + p.layer_s) + moved / p.activation_bytes_per_s

    def head_s(self, sampled_rows: int) -> float:
        """lm_head and the sampler."""
        head = Linear("lm_head", self.model.hidden_size, (self.model.vocab_size // self.tp,))
        moved = sampled_rows * logit_bytes_per_row(self.model, self.tp)
        if self.penalties:
            moved += sampled_rows * penalty_bytes_per_row(self.model, self.tp)
        return float(self._gemm_s(head, sampled_rows)) + moved / self.parameters.activation_bytes_per_s

    def _mlp_s(self, tokens: Any) -> Any:
        """A dense MLP, or the experts that the step's tokens reach and their work."""
        model = self.model
        linears = mlp_linears(model, self.tp)
        if not model.num_experts:
            return sum(self._gemm_s(linear, tokens) for linear in linears)
        experts = active_experts(model.num_experts, model.num_experts_per_tok, tokens)
        rows = tokens * model.num_experts_per_tok
        byte_ratio = expert_bytes_per_element(model) / model.dtype_bytes
        return sum(self._limit_s(linear.elements * experts * byte_ratio, linear.elements * rows) for linear in linears)

    def _gemm_s(self, linear: Linear, rows: Any) -> Any:
        return self._limit_s(linear.elements, linear.elements * rows)

    def _limit_s(self, weight_elements: Any, multiplications: Any) -> Any:
        p = self.parameters
        memory_s = weight_elements * self.model.dtype_bytes / p.weight_bytes_per_s
        compute_s = 2.0 * multiplications / p.gemm_flops
        return (memory_s**p.blend + compute_s**p.blend) ** (1.0 / p.blend)


def expert_bytes_per_element(model: ModelSpec) -> float:
    """Stored bytes per expert weight: below dtype_bytes where the checkpoint is quantised."""
    if model.quantized_weight_bytes is None:
        return float(model.dtype_bytes)
    other = (model.parameters - model.expert_parameters) * model.dtype_bytes
    return max(model.quantized_weight_bytes - other, 0) / model.expert_parameters


@dataclass(frozen=True)
class Attention:
    """Attention over the KV cache, linear in context for a decode and in query x context for a prompt chunk."""

    decode_token_s: float
    """Seconds per context token of a decoding request."""
    request_s: float
    """Seconds per decoding request, whatever its context."""
    prefill_pair_s: float
    """Seconds per (new token, token before it) pair of a prompt chunk."""

    @classmethod
    def of(cls, parameters: AttentionParameters, model: ModelSpec, tp: int) -> Attention:
        qkv, _ = attention_linears(model, tp)
        token_s = kv_bytes_per_token(model, tp) / parameters.kv_bytes_per_s
        return cls(
            decode_token_s=token_s,
            request_s=parameters.request_tokens * token_s,
            prefill_pair_s=4.0 * qkv.outputs[0] * model.num_hidden_layers / parameters.prefill_flops,
        )

    def chunk_s(self, start_tokens: int, new_tokens: int) -> float:
        """One chunk: every new token attends to the tokens before it and to itself."""
        return self.prefill_pair_s * new_tokens * (start_tokens + 0.5 * (new_tokens + 1))


def merge_s(model: ModelSpec, tp: int, modules: tuple[str, ...], rank: int, operators: OperatorParameters) -> float:
    """Seconds of one merge or unmerge on one GPU: the product B A, and the adapted weights read and written.

    Every expert of a mixture is adapted. Bounded by the memory for any usual rank. 0 for rank 0.
    """
    if rank <= 0:
        return 0.0
    elements = 0
    for linear in lora_linears(model, tp, modules):
        experts = model.num_experts if linear.name in ("gate_up", "down") else 0
        elements += linear.elements * max(experts, 1)
    elements *= model.num_hidden_layers
    moved_s = 2.0 * elements * model.dtype_bytes / operators.weight_bytes_per_s
    return moved_s + 2.0 * elements * rank / operators.gemm_flops
