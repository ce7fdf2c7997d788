"""A model as dimensions, and the catalogue of built-in ones.

Built-in models have the dimensions of the config.json that each publisher has on Hugging Face (the id stands beside).
Where base and instruct variants differ, the instruct model's max_position_embeddings is used (Qwen2.5).
Tests compare the parameter counts with the totals of the published checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


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
        """Whether tokens are routed to experts."""
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


Shape = tuple[int, int, int, int, int, int]
"""hidden, intermediate, layers, heads, kv heads, head_dim."""

_QWEN2: dict[str, Any] = {"qkv_bias": True, "architecture": "Qwen2ForCausalLM"}
_QWEN3: dict[str, Any] = {"qk_norm": True, "has_lora_embeddings": True, "architecture": "Qwen3ForCausalLM"}
_TIED: dict[str, Any] = {"tie_word_embeddings": True}


def _model(name: str, hugging_face_id: str, shape: Shape, vocab_size: int, context: int, **more: Any) -> ModelSpec:
    hidden, intermediate, layers, heads, kv_heads, head_dim = shape
    return ModelSpec(
        name=name,
        hugging_face_id=hugging_face_id,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_position_embeddings=context,
        **{"tie_word_embeddings": False, "has_lora_embeddings": False, **more},
    )


def _llama(name: str, hugging_face_id: str, shape: Shape, vocab_size: int, context: int, **more: Any) -> ModelSpec:
    return _model(name, hugging_face_id, shape, vocab_size, context, **{"has_lora_embeddings": True, **more})


_LLAMA_8B: Shape = (4096, 14336, 32, 32, 8, 128)
_LLAMA_70B: Shape = (8192, 28672, 80, 64, 8, 128)

_ALL = (
    _llama("llama-3.2-1b", "meta-llama/Llama-3.2-1B", (2048, 8192, 16, 32, 8, 64), 128256, 131072, **_TIED),
    _llama("llama-3.2-3b", "meta-llama/Llama-3.2-3B", (3072, 8192, 28, 24, 8, 128), 128256, 131072, **_TIED),
    _llama("llama-3-8b", "meta-llama/Meta-Llama-3-8B", _LLAMA_8B, 128256, 8192),
    _llama("llama-3.1-8b", "meta-llama/Llama-3.1-8B", _LLAMA_8B, 128256, 131072),
    _llama("llama-3-70b", "meta-llama/Meta-Llama-3-70B", _LLAMA_70B, 128256, 8192),
    _llama("llama-3.1-70b", "meta-llama/Llama-3.1-70B", _LLAMA_70B, 128256, 131072),
    _llama("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct", _LLAMA_70B, 128256, 131072),
    _llama("llama-2-7b", "meta-llama/Llama-2-7b-hf", (4096, 11008, 32, 32, 32, 128), 32000, 4096),
    _llama("llama-2-13b", "meta-llama/Llama-2-13b-hf", (5120, 13824, 40, 40, 40, 128), 32000, 4096),
    _model("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct", (3584, 18944, 28, 28, 4, 128), 152064, 32768, **_QWEN2),
    _model("qwen2.5-14b", "Qwen/Qwen2.5-14B-Instruct", (5120, 13824, 48, 40, 8, 128), 152064, 32768, **_QWEN2),
    _model("qwen2.5-32b", "Qwen/Qwen2.5-32B-Instruct", (5120, 27648, 64, 40, 8, 128), 152064, 32768, **_QWEN2),
    _model("qwen2.5-72b", "Qwen/Qwen2.5-72B-Instruct", (8192, 29568, 80, 64, 8, 128), 152064, 32768, **_QWEN2),
    _model("qwen3-4b", "Qwen/Qwen3-4B", (2560, 9728, 36, 32, 8, 128), 151936, 40960, **_QWEN3, **_TIED),
    _model("qwen3-8b", "Qwen/Qwen3-8B", (4096, 12288, 36, 32, 8, 128), 151936, 40960, **_QWEN3),
    _model("qwen3-32b", "Qwen/Qwen3-32B", (5120, 25600, 64, 64, 8, 128), 151936, 40960, **_QWEN3),
    _model(
        "qwen3-30b-a3b",
        "Qwen/Qwen3-30B-A3B",
        (2048, 6144, 48, 32, 4, 128),
        151936,
        40960,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        **{**_QWEN3, "architecture": "Qwen3MoeForCausalLM"},
    ),
    _llama(
        "mistral-7b",
        "mistralai/Mistral-7B-v0.3",
        _LLAMA_8B,
        32768,
        32768,
        architecture="MistralForCausalLM",
    ),
    _llama(
        "mixtral-8x7b",
        "mistralai/Mixtral-8x7B-v0.1",
        _LLAMA_8B,
        32000,
        32768,
        architecture="MixtralForCausalLM",
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=14336,
    ),
    _model(
        "gpt-oss-20b",
        "openai/gpt-oss-20b",
        (2880, 2880, 24, 64, 8, 64),
        201088,
        131072,
        architecture="GptOssForCausalLM",
        qkv_bias=True,
        num_experts=32,
        num_experts_per_tok=4,
        moe_intermediate_size=2880,
        moe_bias=True,
        quantized_weight_bytes=13_761_264_768,  # total_size in the checkpoint's model.safetensors.index.json
    ),
)

MODELS = MappingProxyType({spec.name: spec for spec in _ALL})
"""Built-in name -> dimensions."""

ALIASES = MappingProxyType(
    {
        "llama-3.1-8b-instruct": "llama-3.1-8b",
        "meta-llama-3.1-8b": "llama-3.1-8b",
        "meta-llama-3.1-70b": "llama-3.1-70b",
        "meta-llama-3-8b": "llama-3-8b",
        "meta-llama-3-70b": "llama-3-70b",
        "mistral-7b-v0.3": "mistral-7b",
        "mixtral-8x7b-v0.1": "mixtral-8x7b",
    }
)
"""Other spellings, lower case, without organisation and without the suffixes that do not change dimensions."""

_SUFFIXES = (
    "-instruct-v0.3",
    "-instruct-v0.1",
    "-instruct",
    "-chat-hf",
    "-hf",
    "-chat",
    "-base",
    "-it",
    "-instruct-2507",
)


def builtin_model(name: str) -> ModelSpec | None:
    """The built-in model of that name, alias or Hugging Face id (variants of one size share dimensions), or None."""
    key = name.lower().rsplit("/", 1)[-1]
    for candidate in (key, *(key.removesuffix(suffix) for suffix in _SUFFIXES)):
        candidate = ALIASES.get(candidate, candidate)
        if candidate in MODELS:
            return MODELS[candidate]
    return None


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each pipeline stage: the remainder goes to the stages before the last, from the back.

    Source: vLLM `distributed.utils.get_pp_indices`.
    """
    counts = [layers // stages] * stages
    for index in range(2, layers % stages + 2):
        counts[-index] += 1
    return tuple(counts)
