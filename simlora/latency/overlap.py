"""From the parts of a step to its timing: who waits for whom, on one GPU and over the stages of a pipeline.

Where host and GPU alternate, the engine reads a step's tokens back before it plans the next one: all of the host's work
is exposed but launching, which overlaps the kernels that it launches, so a step takes preparation + loads + max(GPU,
launching and tail). Where launching takes longer, the GPU's growth with the context does not show, so that many steps
can still be priced at once.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from simlora.latency.step import StepTiming

Overlap = Literal["pipelined", "alternating", "hidden"]
"""Who waits for whom. pipelined: the host prepares a step ahead, and launches it when the step before has ended.
alternating: the host waits for a step's tokens before it prepares the next. hidden: it prepares one while the GPU runs
another."""

_FOREVER = 1 << 60


def alternating(
    host: tuple[float, float, float],
    load_s: float,
    gpu: tuple[float, float, float, float],
    slope_s: float,
    valid_steps: int,
    extrapolated: tuple[str, ...],
) -> StepTiming:
    """The step's timing.

    Args:
        host: seconds of preparation, the same of a repetition, and from the first launch until the last kernel ends if
            the GPU takes no time.
        gpu: seconds of base operators, attention, LoRA kernels and collectives.
        slope_s: growth of the GPU time per repetition.
        valid_steps: repetitions that the batch allows.
    """
    prepare_s, repeat_s, launching_s = host
    hidden_s = launching_s - sum(gpu)
    if hidden_s > 0.0:
        prepare_s, repeat_s = prepare_s + hidden_s, repeat_s + hidden_s
        if slope_s > 0.0:
            valid_steps = min(valid_steps, 1 + int(hidden_s / slope_s))
        slope_s = 0.0
    return StepTiming(
        prepare_s, load_s, *gpu, slope_s, False, 0.0, min(valid_steps, _FOREVER), extrapolated, 0.0, repeat_s
    )


def hidden(
    host: tuple[float, float],
    load_s: float,
    gpu: tuple[float, float, float, float],
    slope_s: float,
    valid_steps: int,
    extrapolated: tuple[str, ...],
) -> StepTiming:
    """A step whose host work runs while the GPU computes the step before: it takes loads + max(host, GPU).

    host: seconds of a step and of a repetition. The other arguments as in `alternating`.
    """
    total_s = sum(gpu)
    first_s, again_s = (max(seconds - total_s, 0.0) for seconds in host)
    if again_s > 0.0:
        if slope_s > 0.0:
            valid_steps = min(valid_steps, 1 + int(again_s / slope_s))
        slope_s = 0.0
    return StepTiming(
        first_s, load_s, *gpu, slope_s, False, 0.0, min(valid_steps, _FOREVER), extrapolated, 0.0, again_s
    )


class StepParts(NamedTuple):
    """Seconds of one step."""

    before_s: float
    """Host work before the read-back from the GPU, launching included where nothing is read back."""
    after_s: float
    """Host work after it, launching included; 0: nothing is read back."""
    again_s: float
    """Host work of a repetition."""
    launch_s: float
    """Part of the host work in which kernels are launched."""
    graph: bool
    """One launch for all, with nothing on the GPU before it."""
    tail_s: float
    """GPU time after the last of many launches."""
    load_s: float
    gpu: tuple[float, float, float, float]
    """Base operators, attention, LoRA kernels, collectives."""
    slope_s: float
    valid_steps: int
    extrapolated: tuple[str, ...]


def assemble(parts: StepParts, overlap: Overlap) -> StepTiming:
    """The timing of a step whose host works as `overlap` says."""
    p = parts
    rest = (p.load_s, p.gpu, p.slope_s, p.valid_steps, p.extrapolated)
    if overlap == "hidden":
        return hidden((p.before_s + p.after_s, p.again_s), *rest)
    if overlap == "alternating":
        host = (p.before_s + p.after_s - p.launch_s, p.again_s - p.launch_s, p.launch_s + p.tail_s)
        return alternating(host, *rest)
    tail_s = 0.0 if p.graph else max(p.tail_s, sum(p.gpu) - p.launch_s)
    return StepTiming(
        p.before_s,
        p.load_s,
        *p.gpu,
        p.slope_s,
        not p.graph,
        tail_s,
        p.valid_steps,
        p.extrapolated,
        p.after_s,
        p.again_s,
    )


def share_of(parts: StepParts, share: float, head: tuple[float, float], fixed_s: float, first: bool) -> StepParts:
    """The parts of a pipeline stage with `share` of the layers.

    head: base operators outside the layers, of the step and of this stage. fixed_s: launching outside the layers.
    Stages after the first get the batch: of the host's work only the mapping and the launches are theirs.
    """
    p, (head_s, own_head_s) = parts, head
    own_launch_s = fixed_s + max(p.launch_s - fixed_s, 0.0) * share
    change_s = own_launch_s - p.launch_s
    waits = p.after_s > 0.0
    before_s = p.before_s + (0.0 if waits else change_s) if first else (0.0 if waits else own_launch_s)
    base_s, *others = p.gpu
    attention_s, lora_s, collective_s = (seconds * share for seconds in others)
    return p._replace(
        before_s=max(before_s, 0.0),
        after_s=max(p.after_s + change_s, 0.0) if waits else 0.0,
        again_s=max(p.again_s + change_s, 0.0) if first else own_launch_s,
        launch_s=own_launch_s,
        tail_s=p.tail_s if own_head_s else 0.0,
        load_s=p.load_s * share,
        gpu=((base_s - head_s) * share + own_head_s, attention_s, lora_s, collective_s),
        slope_s=p.slope_s * share,
    )


class PipelineTiming(NamedTuple):
    """What each stage does, and the way between two of them."""

    stages: tuple[StepTiming, ...]
    """The first one schedules; each of the others has the host time of launching its own part."""
    transfer_s: float
    """Sending the hidden states and residual of all tokens to the next stage."""
