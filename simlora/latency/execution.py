"""How the supported vLLM versions execute a step: what is captured in CUDA graphs, and what runs when.

| | 0.8.5 | 0.20 | source |
|---|---|---|---|
| decode steps | piecewise graphs, attention launched between them | one graph | v1/worker/gpu_model_runner.py |
| captured sizes above 256 | every 8 | every 16, up to 2 max_num_seqs | config.py; start-up logs |
| LoRA kernels without any adapter in the step | run in the graphs over an empty grid | skipped | pull request 25914 |
| penalties of the model's generation_config.json | priced | not measured, left out | v1/sample/ops/penalties.py |
| column tile of expand, several slices | 128 | 64 | lora/ops/triton_ops |
| host and GPU | alternate: results are read back before the next step is planned | overlap | v1/engine/core.py |
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExecutionRules:
    """One version's way of executing a step."""

    full_decode_graphs: bool
    capture_step_above_256: int
    captures_by_seqs: bool
    """No size above 2 * max_num_seqs is captured."""
    unused_lora_runs: bool
    """Graphs of an engine with LoRA hold its kernels, so that a step without adapters launches them, too."""
    expand_columns_sliced: int
    default_penalties: bool
    """Penalties that the model's generation_config.json names are priced."""
    alternates: bool
    """Nothing is in flight while a step is prepared: no time of the host is hidden but launching."""


V0_20 = ExecutionRules(
    full_decode_graphs=True,
    capture_step_above_256=16,
    captures_by_seqs=True,
    unused_lora_runs=False,
    expand_columns_sliced=64,
    default_penalties=False,
    alternates=False,
)
V0_8 = ExecutionRules(
    full_decode_graphs=False,
    capture_step_above_256=8,
    captures_by_seqs=False,
    unused_lora_runs=True,
    expand_columns_sliced=128,
    default_penalties=True,
    alternates=True,
)


def execution_rules(version: str) -> ExecutionRules:
    """The rules of a vLLM version; any but 0.8 is taken for the latest."""
    return V0_8 if version.split(".")[:2] == ["0", "8"] else V0_20
