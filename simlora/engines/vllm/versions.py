"""How the supported vLLM versions schedule, where they differ. Defaults and limits: scenario/versions.py.

| | 0.8.5 (V1) | 0.20 | source |
|---|---|---|---|
| scheduling and execution | alternate | one step ahead (async_scheduling) | v1/engine/core.py; default since 0.14 |
| full prompt must fit to be admitted | no | yes (scheduler_reserve_full_isl) | v1 scheduler.py, 2026-03-24 |
| skipped requests | put back into the one queue | a queue of their own, first | v1 scheduler.py, 2026-03-10 |
| decode steps | piecewise graphs, attention eager | full CUDA graph | v1/cudagraph_dispatcher.py |
| LoRA kernels in an all-base step | run | skipped (cudagraph_specialize_lora) | pull request 25914 |
| LoRA vocabulary padding | 256 extra rows | none | lora/layers |
| default max_num_seqs, max_num_batched_tokens | by GPU memory | by GPU memory | scenario/versions.py |
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SchedulingRules:
    """The scheduler's differences; async_scheduling is a flag of the scenario with a default by version."""

    reserve_full_prompt: bool
    skipped_first: bool


RULES = {
    "0.20": SchedulingRules(reserve_full_prompt=True, skipped_first=True),
    "0.8.5": SchedulingRules(reserve_full_prompt=False, skipped_first=False),
}
