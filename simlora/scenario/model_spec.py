"""Dimensions of a decoder-only transformer and the sizes that follow from them. Knows nothing of GPUs or engines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelSpec:
    """Published dimensions of one model, as in its Hugging Face config.json. Sizes are in elements, counts or bytes."""

    name: str
    hidden_size: int
    intermediate_size: int
    """Width of the dense MLP; unused by mixture-of-experts layers."""
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool
    max_position_embeddings: int
    dtype_bytes: int = 2
    num_experts: int = 0
    """0: a dense MLP. Otherwise every layer is a mixture of experts."""
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    qkv_bias: bool = False
    has_lora_embeddings: bool = False
    """The vLLM class lists embed_tokens and lm_head as LoRA modules, so every slot holds them too."""
    quantized_weight_bytes: int | None = None
    """Bytes of the whole checkpoint where it is not stored in dtype_bytes (gpt-oss: MXFP4 experts)."""
    qk_norm: bool = False
    """One RMS norm of head_dim for queries and one for keys in each layer (Qwen3)."""
    moe_bias: bool = False
    """Biases on router, experts and output projection, and one attention sink per head (gpt-oss)."""
    architecture: str = "LlamaForCausalLM"
    hugging_face_id: str = ""

    @property
    def q_size(self) -> int:
        """Output width of the query projection."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Output width of the key projection, and of the value projection."""
        return self.num_key_value_heads * self.head_dim

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    @property
    def parameters(self) -> int:
        """All parameters; a tied lm_head counts once."""
        return self._outside_layers + self.num_hidden_layers * (
            self._attention + self._mlp(self.num_experts) + self._norms
        )

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: all of a dense model; for a mixture, its chosen experts only."""
        used = self.num_experts_per_tok
        return self._outside_layers + self.num_hidden_layers * (self._attention + self._mlp(used) + self._norms)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, unsharded."""
        return (
            self.quantized_weight_bytes
            if self.quantized_weight_bytes is not None
            else self.parameters * self.dtype_bytes
        )

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers, unsharded. Sliding windows are counted as full attention."""
        return 2 * self.num_hidden_layers * self.kv_size * self.dtype_bytes

    @property
    def expert_parameters(self) -> int:
        """Matrix elements of all experts of all layers (no biases): what MXFP4 stores in 4.25 bits each."""
        return self.num_hidden_layers * self.num_experts * 3 * self.hidden_size * self.moe_intermediate_size

    @property
    def _outside_layers(self) -> int:
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return embeddings + self.hidden_size

    @property
    def _attention(self) -> int:
        qkv_out = self.q_size + 2 * self.kv_size
        weights = self.hidden_size * qkv_out + self.q_size * self.hidden_size
        bias = qkv_out if self.qkv_bias else 0
        if self.moe_bias:
            bias += self.hidden_size + self.num_attention_heads
        return weights + bias

    @property
    def _norms(self) -> int:
        return 2 * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)

    def _mlp(self, experts: int) -> int:
        if not self.is_moe:
            return 3 * self.hidden_size * self.intermediate_size
        expert = 3 * self.hidden_size * self.moe_intermediate_size
        router = self.hidden_size * self.num_experts
        if self.moe_bias:
            expert += 2 * self.moe_intermediate_size + self.hidden_size
            router += self.num_experts
        return experts * expert + router
