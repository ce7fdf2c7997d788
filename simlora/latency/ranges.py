"""Which calibrated terms a simulation uses outside what was measured."""

from __future__ import annotations

from simlora.latency.calibration import OPTIONAL_TERMS, Calibration, Term
from simlora.latency.inputs import EngineSettings
from simlora.scenario.model import ModelSpec


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
    terms = {name: term for name, term in calibration.terms if name not in OPTIONAL_TERMS}
    names = [name for name, term in terms.items() if _outside(term, values)]
    if engine.tensor_parallel_size > 1 and calibration.terms.collectives.basis != "measured":
        names.append("collectives")
    return tuple(dict.fromkeys((*calibration.extrapolated, *names)))


class StepRanges:
    """Which terms a step of some size stretches; the ranges are looked up once."""

    def __init__(self, calibration: Calibration) -> None:
        base = ("tokens", "requests")
        variables = {"operators": base, "host": base, "lora_kernels": (*base, "adapters")}
        self._bounds = [
            (name, {"tokens": 0, "requests": 1, "adapters": 2}[variable], *bounds)
            for name, read in variables.items()
            for variable in read
            if (bounds := getattr(calibration.terms, name).measured.get(variable)) is not None
        ]

    def outside(self, tokens: int, requests: int, adapters: int) -> tuple[str, ...]:
        """Names of the terms."""
        size = (tokens, requests, adapters)
        return tuple(
            name
            for name, position, low, high in self._bounds
            if not low <= size[position] <= high and (adapters or name != "lora_kernels")
        )


def largest(calibration: Calibration, term: str, variable: str) -> float:
    """Upper end of a term's measured range; infinite where the variable is not listed."""
    found: Term = getattr(calibration.terms, term)
    bounds = found.measured.get(variable)
    return float("inf") if bounds is None else bounds[1]


def _outside(term: Term, values: dict[str, float]) -> bool:
    return any(
        not low <= values[variable] <= high for variable, (low, high) in term.measured.items() if variable in values
    )
