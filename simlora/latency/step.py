"""What one engine step contains (StepPlan) and how long it takes (StepTiming).

These two records are the seam between the engines, which decide, and the latency model, which measures.
Times are seconds, lengths tokens.
"""

from __future__ import annotations

from typing import NamedTuple

GPU, HOST, DISK, REMOTE = "gpu", "host", "disk", "remote"
"""Tiers an adapter can be loaded from, fastest first."""


class Prefill(NamedTuple):
    """A chunk of one prompt: tokens start_tokens .. start_tokens + new_tokens - 1 are computed in this step."""

    request: int
    start_tokens: int
    new_tokens: int


class AdapterMix(NamedTuple):
    """Own ranks of the adapters in a step, for kernels that do not pad them. The base model is not an adapter."""

    rank_sum: int
    """Over the distinct adapters."""
    rank_tokens: int
    """Over the LoRA tokens, of their adapter's rank."""
    max_rank: int
    distinct_ranks: int


class StepPlan(NamedTuple):
    """One step as the scheduler formed it; identical for max_repeat steps in a row except that every context grows."""

    prefills: tuple[Prefill, ...]
    decode_count: int
    """Requests that decode, one token each unless emitted_per_step is larger."""
    decode_context_tokens: int
    """Sum over the decoding requests of the tokens already in their KV cache."""
    num_tokens: int
    """All tokens computed in the step: decodes and prefill chunks, before padding."""
    num_requests: int
    """Requests in the step: decodes and prefill chunks."""
    num_adapters: int
    """Distinct adapters in the step, the base model not counted."""
    lora_tokens: int
    """Tokens that belong to requests with an adapter."""
    max_rank: int
    """Rank that kernels over padded slots compute with; 0 when the step has no adapter."""
    batch_changed: bool
    """True when the token-to-adapter mapping differs from the previous step's, so metadata is rebuilt."""
    loads: tuple[tuple[int, int, str], ...]
    """(adapter, rank, tier) of every adapter that must be brought into a slot before the step."""
    max_repeat: int
    """The scheduler's horizon: the same plan stays valid for this many steps if nothing outside changes it."""
    emitted_per_step: float = 1.0
    skipped: int = 0
    """Waiting requests that the scheduler passes over because their adapters find no slot."""
    mix: AdapterMix | None = None
    """None where the engine's kernels pad every rank, and no one asks."""
    copying: bool = False
    """Adapters are copied on a side stream meanwhile, which slows the step down."""
    extra_s: float = 0.0
    """Time before the step that the scheduler knows of, as the latency model told it: weights merged, a device held."""


NOTHING_PLANNED = StepPlan((), 0, 0, 0, 0, 0, 0, 0, False, (), 1)
"""An empty step."""


class StepTiming(NamedTuple):
    """Durations of one step. gpu_s grows by slope_s with every repetition of the plan."""

    host_s: float
    """Scheduler, input preparation and launching on the CPU, loads not included."""
    load_s: float
    """Adapter loads that block the step (disk read, packing, copies issued by the host)."""
    base_s: float
    """Base-model operators without attention over the context."""
    attention_s: float
    lora_s: float
    collective_s: float
    slope_s: float
    """Growth of the GPU time per repetition (attention over a context that grows)."""
    launch_bound: bool
    """True when kernels are launched one by one (eager, piecewise), so GPU work overlaps its own launching."""
    tail_s: float
    """With launch_bound: GPU time left after the last launch."""
    valid_steps: int
    """The affine form holds for this many repetitions."""
    extrapolated: tuple[str, ...] = ()
    """Terms used outside their measured range."""
    sync_s: float = 0.0
    """Host work after a read-back from the GPU; 0: nothing is read back. It starts when the step before has ended on
    the GPU, which idles meanwhile. With c the start of the host's iteration and E the GPU's finish of the step before:
    ready = max(E, c + host_s + load_s); the host ends at ready + sync_s (when the tokens of the step before come
    out); the step ends at ready + sync_s + gpu_s, or, launch-bound, at max(ready + gpu_s, ready + sync_s + tail_s)."""
    repeat_host_s: float = -1.0
    """Host time of a repetition (same batch: no metadata rebuild, no load); below zero means the same as host_s."""

    @property
    def gpu_s(self) -> float:
        return self.base_s + self.attention_s + self.lora_s + self.collective_s
