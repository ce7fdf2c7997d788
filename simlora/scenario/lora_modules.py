"""Which layers an adapter or a slot covers, and the bytes of one adapter at its own rank."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from simlora.scenario.base import WrongValueError
from simlora.scenario.model import ModelSpec

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
EMBEDDINGS = ("embed_tokens", "lm_head")
ALL_LINEAR = ATTENTION + MLP


def _choice(*words: str) -> Any:
    """A type: one of the words, or a list of module names (a tuple once loaded)."""

    def check(value: Any) -> Any:
        if isinstance(value, str) and value in words:
            return value
        allowed = f"must be {' or '.join(words)}, or a list of names from: {', '.join(ALL_LINEAR + EMBEDDINGS)}"
        if not isinstance(value, (list, tuple)) or not value:
            raise WrongValueError("", value, allowed)
        for name in value:
            if not isinstance(name, str) or name not in ALL_LINEAR + EMBEDDINGS:
                raise WrongValueError("", name, allowed)
        return tuple(dict.fromkeys(value))

    names = {"type": "array", "minItems": 1, "items": {"enum": [*ALL_LINEAR, *EMBEDDINGS]}}
    schema = {"anyOf": [{"enum": list(words)}, names]}
    return Annotated[str | tuple[str, ...], BeforeValidator(check), WithJsonSchema(schema)]


ModuleChoice = _choice("all", "as-adapters")
AdapterModules = _choice("all-linear", "attention")


def adapter_modules(choice: str | tuple[str, ...]) -> tuple[str, ...]:
    """The modules that the adapters hold, in the order of the forward pass."""
    if choice == "all-linear":
        return ALL_LINEAR
    if choice == "attention":
        return ATTENTION
    return tuple(module for module in ALL_LINEAR + EMBEDDINGS if module in choice)


def supported_modules(model: ModelSpec, expert_lora: bool) -> tuple[str, ...]:
    """The modules that the engine can put LoRA on: experts and embeddings depend on its version and the model class."""
    mlp = MLP if expert_lora or not model.is_moe else ()
    return ATTENTION + mlp + (EMBEDDINGS if model.has_lora_embeddings else ())


def slot_modules(
    choice: str | tuple[str, ...], adapters: tuple[str, ...], supported: tuple[str, ...]
) -> tuple[str, ...]:
    """The modules that every slot of the GPU holds memory for, whatever the adapter in it covers.

    Merged layers are wrapped whole: vLLM has one qkv and one gate_up layer, so one of their parts brings the others.
    Source: vLLM's LoRA model manager wraps every supported layer unless --lora-target-modules narrows them.
    """
    if choice == "all":
        return supported
    wanted = set(adapters if choice == "as-adapters" else choice)
    for merged in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
        if wanted & set(merged):
            wanted |= set(merged)
    return tuple(module for module in supported if module in wanted)


def module_shape(model: ModelSpec, module: str) -> tuple[int, int, int]:
    """(input width, output width, copies in the model) of a module; experts of a mixture count as copies."""
    h, layers = model.hidden_size, model.num_hidden_layers
    if module in EMBEDDINGS:
        return (model.vocab_size, h, 1) if module == "embed_tokens" else (h, model.vocab_size, 1)
    if module in MLP:
        width = model.moe_intermediate_size if model.is_moe else model.intermediate_size
        copies = layers * max(model.num_experts, 1)
        return (width, h, copies) if module == "down_proj" else (h, width, copies)
    if module == "o_proj":
        return model.q_size, h, layers
    return h, model.q_size if module == "q_proj" else model.kv_size, layers


def adapter_bytes(model: ModelSpec, rank: int, modules: tuple[str, ...]) -> int:
    """Bytes of one adapter at its own rank, unsharded: A is rank x input, B output x rank, for every module."""
    elements = 0
    for module in modules:
        width_in, width_out, copies = module_shape(model, module)
        elements += copies * rank * (width_in + width_out)
    return elements * model.dtype_bytes
