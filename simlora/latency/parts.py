"""A step's durations before it is known who waits for whom, and the three ways of putting them together."""

from __future__ import annotations

from typing import NamedTuple

from simlora.latency.alternating import alternating, hidden
from simlora.latency.profiles import Overlap
from simlora.latency.step import StepTiming


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
