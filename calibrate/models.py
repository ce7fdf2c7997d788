"""The base models whose shapes are measured."""

from __future__ import annotations

from simlora.errors import SimloraError
from simlora.scenario.model import ModelSpec, builtin_model

TINY = ModelSpec(
    name="tiny",
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=256,
    tie_word_embeddings=False,
    max_position_embeddings=1024,
)


def model_named(name: str) -> ModelSpec:
    """A built-in model, or the tiny one of dry runs."""
    found = TINY if name == TINY.name else builtin_model(name)
    if found is None:
        raise SimloraError(f"calibrate: model {name!r} is not built in")
    return found
