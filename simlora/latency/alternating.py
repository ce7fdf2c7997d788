"""Timing of a step where host and GPU alternate: the engine reads a step's tokens back before it plans the next one.

All of the host's work is exposed but launching, which overlaps the kernels that it launches: a step takes
preparation + loads + max(GPU, launching and tail). Where launching takes longer, the GPU's growth with the context does
not show, so that many steps can still be priced at once.
"""

from __future__ import annotations

from simlora.latency.step import StepTiming

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
