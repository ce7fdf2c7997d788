"""Which calibrated terms a simulation uses outside what was measured."""

from __future__ import annotations

from simlora.latency.calibration import Calibration, Term
from simlora.latency.inputs import EngineSettings
from simlora.scenario.model_spec import ModelSpec


def static_extrapolations(calibration: Calibration, model: ModelSpec, engine: EngineSettings) -> tuple[str, ...]:
    """Terms that this model or engine configuration stretches, whatever the step."""
    values = {
        "hidden_size": float(model.hidden_size),
        "num_hidden_layers": float(model.num_hidden_layers),
        "num_experts": float(model.num_experts),
        "tensor_parallel_size": float(engine.tensor_parallel_size),
    }
    if engine.enable_lora:
        values |= {"max_loras": float(engine.max_loras), "max_lora_rank": float(engine.max_lora_rank)}
    terms = dict(calibration.terms)
    names = [name for name, term in terms.items() if _outside(term, values)]
    if engine.tensor_parallel_size > 1 and calibration.terms.collectives.basis != "measured":
        names.append("collectives")
    return tuple(dict.fromkeys((*calibration.extrapolated, *names)))


def step_extrapolations(calibration: Calibration, tokens: int, requests: int, adapters: int) -> tuple[str, ...]:
    """Terms that a step of this size stretches."""
    base = {"tokens": float(tokens), "requests": float(requests)}
    lora = base | {"adapters": float(adapters)}
    terms = calibration.terms
    names = [name for name in ("operators", "host") if _outside(getattr(terms, name), base)]
    if adapters and _outside(terms.lora_kernels, lora):
        names.append("lora_kernels")
    return tuple(names)


def largest(calibration: Calibration, term: str, variable: str) -> float:
    """Upper end of a term's measured range; infinite where the variable is not listed."""
    found: Term = getattr(calibration.terms, term)
    bounds = found.measured.get(variable)
    return float("inf") if bounds is None else bounds[1]


def _outside(term: Term, values: dict[str, float]) -> bool:
    return any(
        not low <= values[variable] <= high for variable, (low, high) in term.measured.items() if variable in values
    )
