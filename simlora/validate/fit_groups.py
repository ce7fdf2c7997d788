"""What fitting to recorded runs may change: groups of parameters that move together, each by one factor.

Engine terms always may. Kernel terms stay as measured; where a calibration only assumes them (roofline, scaled from
another GPU), their efficiencies may move, too. Single measurements (steady decode, lone prefills, loads) tell more
apart than whole runs do: with them, parameters of a group also have factors of their own, and each measured parameter
of a kernel may move within the error that its term was measured with. Every group has a prior: its factor is 1 within
`width` (standard deviation of the logarithm), so that few runs change only what they show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simlora.latency.calibration import Calibration, Term
from simlora.runs.recorded import RecordedRun

Parameter = tuple[str, str, int]
"""Term, parameter, and the power of the group's factor that it gets: 1 for a time, -1 for a rate."""

KERNEL_TERMS = ("operators", "attention", "lora_kernels", "collectives")
ASSUMED_BASES = ("assumed", "scaled", "roofline")
RATES, TIMES = ("_bytes_per_s", "_flops"), ("_s", "_tokens")
"""How the names of rates and of times end; a request's overhead in attention is counted in tokens."""


@dataclass(frozen=True)
class Group:
    """Parameters that share one factor."""

    name: str
    width: float
    parameters: tuple[Parameter, ...]

    @property
    def terms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(term for term, _, _ in self.parameters))


def _times(term: str, *names: str) -> tuple[Parameter, ...]:
    return tuple((term, name, 1) for name in names)


PREPARE = Group("host: preparing a step", 0.3, _times("host", "prepare_s", "prepare_request_s", "change_s"))
GRAPH = Group("host: launching a CUDA graph", 0.5, _times("host", "launch_s"))
PIECEWISE = Group("host: launching graph pieces", 0.5, _times("host", "piecewise_layer_s"))
EAGER = Group(
    "host: launching kernels one by one",
    0.5,
    _times("host", "eager_layer_s", "eager_lora_unused_layer_s", "eager_lora_layer_s"),
)
METADATA = Group(
    "host: LoRA metadata of a changed batch",
    0.5,
    _times("host", "metadata_s", "metadata_token_s", "metadata_slot_s", "registered_s"),
)
LOAD = Group("loads: host memory to slot", 0.5, _times("copies", "module_s", "mismatch_module_s"))
DISK = Group(
    "loads: disk to host memory", 0.7, (*_times("copies", "disk_module_s"), ("copies", "disk_bytes_per_s", -1))
)
FRONT = Group("front end: delay", 0.5, _times("front_end", "in_s", "out_s", "http_s"))
GROWTH = Group("front end: growth with the requests running", 0.7, _times("front_end", "out_request_s"))
ENGINE_GROUPS = (PREPARE, GRAPH, PIECEWISE, EAGER, FRONT, GROWTH)
LORA_GROUPS = (METADATA, LOAD, DISK)

SINGLE_GROUPS = (
    Group("host: preparing each request", 0.3, _times("host", "prepare_request_s")),
    Group("host: preparing a changed batch", 0.3, _times("host", "change_s")),
    Group("host: end of a step", 0.3, _times("host", "tail_s")),
)
SINGLE_LORA_GROUPS = (
    Group("host: launching one by one, LoRA unused", 0.3, _times("host", "eager_lora_unused_layer_s")),
    Group("host: launching one by one, LoRA in use", 0.3, _times("host", "eager_lora_layer_s")),
)
SINGLE_LOAD_GROUPS = (
    Group("loads: into slots of a higher rank", 0.3, _times("copies", "mismatch_module_s")),
    Group("loads: rate of the disk", 0.5, (("copies", "disk_bytes_per_s", -1),)),
)
"""What single measurements tell apart beyond the groups above."""

TYPICAL = {
    "host": {
        "prepare_s": 1.5e-3, "prepare_request_s": 40e-6, "change_s": 0.8e-3, "metadata_s": 3e-3, "launch_s": 1.5e-3,
        "piecewise_layer_s": 2.5e-4, "eager_layer_s": 7.5e-4, "eager_lora_unused_layer_s": 4e-4,
        "eager_lora_layer_s": 1.6e-3, "tail_s": 1e-3,
    },
    "copies": {
        "module_s": 70e-6, "mismatch_module_s": 10e-6, "disk_module_s": 200e-6, "disk_bytes_per_s": 1e9,
    },
    "front_end": {"in_s": 1.3e-3, "out_s": 0.7e-3, "out_request_s": 60e-6, "http_s": 2e-3},
}  # fmt: skip
"""Round values of vLLM's engine terms on a server CPU: what a fit begins at that must owe nothing to an earlier one."""

MEMORY = Group(
    "kernels: memory rate",
    0.1,
    (
        ("operators", "weight_bytes_per_s", -1),
        ("operators", "activation_bytes_per_s", -1),
        ("attention", "kv_bytes_per_s", -1),
    ),
)
LORA_KERNELS = Group(
    "kernels: LoRA",
    0.3,
    (
        *_times("lora_kernels", "launch_s", "zero_s", "dead_shrink_s", "dead_expand_s"),
        *_times("lora_kernels", "shrink_s", "shrink_wide_s", "expand_s", "expand_wide_s"),
        ("lora_kernels", "row_bytes_per_s", -1),
    ),
)
COMPUTE = Group("kernels: compute rate", 0.1, (("operators", "gemm_flops", -1), ("attention", "prefill_flops", -1)))
KERNEL_WIDTH = 0.05
"""Of a rate, which the hardware bounds, and of a measured kernel term that states no error of its own."""
COLLECTIVES = Group("collectives", 0.5, (("collectives", "latency_s", 1), ("collectives", "link_fraction", -1)))


def groups_of(base: Calibration, runs: Sequence[RecordedRun]) -> tuple[Group, ...]:
    """The groups that these runs can tell anything about."""
    groups = list(ENGINE_GROUPS)
    lora = any(run.run.engine.get("enable_lora") for run in runs)
    if lora:
        groups += LORA_GROUPS
        if base.terms.lora_kernels.basis in ASSUMED_BASES:
            groups.append(LORA_KERNELS)
    terms = base.terms
    if terms.operators.basis in ASSUMED_BASES and terms.attention.basis in ASSUMED_BASES:
        groups += (MEMORY, COMPUTE)
    if terms.collectives.basis in ASSUMED_BASES and any(_tp(run) > 1 for run in runs):
        groups.append(COLLECTIVES)
    if any(run.decodes or run.prefills for run in runs):
        groups += SINGLE_GROUPS
        groups += SINGLE_LORA_GROUPS if lora else ()
        groups += _measured_kernels(base, ("operators", "attention", *(("lora_kernels",) if lora else ())))
    if any(run.loads for run in runs):
        groups += SINGLE_LOAD_GROUPS
    return tuple(groups)


def _measured_kernels(base: Calibration, terms: Sequence[str]) -> list[Group]:
    """A group for each measured time and rate; times as wide as the error of their term on held-out samples."""
    groups = []
    for name in terms:
        term: Term = getattr(base.terms, name)
        if term.basis in ASSUMED_BASES:
            continue
        error = term.held_out_error or term.fit_error or KERNEL_WIDTH
        for parameter, value in getattr(base.terms, name).parameters:
            label = f"kernels: {name}, {parameter}"
            if value and parameter.endswith(RATES):
                groups.append(Group(label, KERNEL_WIDTH, ((name, parameter, -1),)))
            elif value and parameter.endswith(TIMES):
                groups.append(Group(label, error, ((name, parameter, 1),)))
    return groups


def _tp(run: RecordedRun) -> int:
    return int(run.run.engine.get("tensor_parallel_size") or 1)


def apply(base: Calibration, groups: Sequence[Group], logs: Sequence[float]) -> Calibration:
    """The calibration with every group multiplied by the exponential of its entry in `logs`."""
    totals: dict[tuple[str, str], float] = {}
    for group, log in zip(groups, logs, strict=True):
        for term, name, power in group.parameters:
            totals[term, name] = totals.get((term, name), 0.0) + power * log
    changes: dict[str, dict[str, float]] = {}
    for (term, name), log in totals.items():
        old = getattr(getattr(base.terms, term).parameters, name)
        if old is not None:  # a rate that the calibration does not have
            new = float(f"{old * math.exp(log):.6g}")
            changes.setdefault(term, {})[name] = min(new, 1.0) if name == "link_fraction" else new
    return with_parameters(base, changes)


def with_parameters(base: Calibration, changes: Mapping[str, Mapping[str, float]]) -> Calibration:
    """The calibration with some parameters replaced: term -> parameter -> value."""
    return with_terms(base, {name: {"parameters": values} for name, values in changes.items()})


def with_terms(base: Calibration, changes: Mapping[str, Mapping[str, Any]]) -> Calibration:
    """The calibration with fields of some terms replaced; of `parameters`, those named."""
    terms: dict[str, Term] = {}
    for name, fields in changes.items():
        term: Any = getattr(base.terms, name)
        update = dict(fields)
        if "parameters" in update:
            update["parameters"] = term.parameters.model_copy(update=dict(update["parameters"]))
        terms[name] = term.model_copy(update=update)
    return base.model_copy(update={"terms": base.terms.model_copy(update=terms)})
