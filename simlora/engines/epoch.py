"""Boundary times of identical steps, and how host and GPU overlap between steps.

An epoch is a batch whose composition does not change. Its boundaries are B(0) = start, B(1) = first and
B(x) = first + (x - 1) * gap + slope * (x - 1) * (x - 2) / 2. The closed form is evaluated from the epoch's start, never
accumulated, so stepping one by one and jumping give the same floats. Times are seconds.

c_i is when the CPU begins iteration i, E_i when the GPU finishes step i, H_i the host time of step i. With asynchronous
scheduling the CPU plans and launches step i + 1 while the GPU runs step i, so c_(i+1) = max(E_i, c_i + H_(i+1)), and
the tokens of step i come out at c_(i+1). A step that replays a CUDA graph starts on the GPU at c_(i+1). A step whose
kernels are launched one by one overlaps its own launching: E_(i+1) = max(max(E_i, c_i + load) + gpu, c_i + H + tail).
Where the host reads something back from the GPU (StepTiming.sync_s), the rest of its work starts when step i has ended.
Without asynchronous scheduling host and GPU alternate.
"""

from __future__ import annotations

from math import sqrt

from simlora.latency.step import StepTiming

FOREVER = 1 << 60

Ahead = tuple[float, float, float, int, float]
"""first - start, gap, slope, number of boundaries after B(0) up to which the form holds, and the GPU time left at B(1)
of the step planned at B(0): later boundaries add the step's growth to it."""


def boundary(start_s: float, first_s: float, gap_s: float, slope_s: float, index: int) -> float:
    """B(index)."""
    if index == 0:
        return start_s
    done = index - 1
    return first_s + done * gap_s + slope_s * (done * (done - 1) / 2)


def index_after(start_s: float, first_s: float, gap_s: float, slope_s: float, time_s: float) -> int:
    """The first boundary later than time_s; a boundary at exactly time_s has passed."""
    if time_s < first_s:
        return 1 if time_s >= start_s else 0
    elapsed, a, b = time_s - first_s, gap_s - slope_s / 2, slope_s / 2
    done = int(elapsed / a if b == 0 else (sqrt(a * a + 4 * b * elapsed) - a) / (2 * b))
    if done < 0:
        done = 0
    while first_s + done * gap_s + slope_s * (done * (done - 1) / 2) <= time_s:  # boundary(done + 1)
        done += 1
    while done > 0 and first_s + (done - 1) * gap_s + slope_s * ((done - 1) * (done - 2) / 2) > time_s:
        done -= 1
    return done + 1


def index_at(start_s: float, first_s: float, gap_s: float, slope_s: float, time_s: float) -> int:
    """The first boundary at time_s or later."""
    index = index_after(start_s, first_s, gap_s, slope_s, time_s)
    reached = index > 0 and boundary(start_s, first_s, gap_s, slope_s, index - 1) == time_s
    return index - 1 if reached else index


def plan_ahead(
    residual_s: float,
    host_s: float,
    load_s: float,
    gpu_s: float,
    slope_s: float,
    launch_bound: bool,
    tail_s: float,
    valid_steps: int,
    sync_s: float,
    again_s: float,
) -> Ahead:
    """Asynchronous scheduling. residual_s: GPU time left of the step in flight when the next one is planned (0: the GPU
    is idle). The others are StepTiming's; again_s is its repeat_host_s."""
    host_load_s = host_s + load_s
    gap_s = (residual_s if residual_s > host_load_s else host_load_s) + sync_s
    if launch_bound:
        if sync_s:  # nothing of this step runs before the read-back
            end_s, launched_s = gap_s - sync_s + gpu_s, gap_s + tail_s
        else:
            end_s, launched_s = (residual_s if residual_s > load_s else load_s) + gpu_s, host_load_s + tail_s
        return gap_s, 0.0, 0.0, 1, (end_s if end_s > launched_s else launched_s) - gap_s
    if again_s < 0:
        again_s = host_s
    if gpu_s >= again_s:
        return gap_s, gpu_s, slope_s, valid_steps, gpu_s
    steps = FOREVER if slope_s <= 0 else 1 + int((again_s - gpu_s) / slope_s)
    return gap_s, again_s, 0.0, (steps if steps < valid_steps else valid_steps), gpu_s


def alternate(
    host_s: float,
    load_s: float,
    gpu_s: float,
    slope_s: float,
    launch_bound: bool,
    tail_s: float,
    valid_steps: int,
    sync_s: float,
    again_s: float,
) -> Ahead:
    """Host and GPU alternate: nothing is in flight when a step is planned. Arguments as in plan_ahead."""
    host_all_s = host_s + load_s + sync_s
    if launch_bound:
        return max(load_s + gpu_s, host_all_s + tail_s), 0.0, 0.0, 1, 0.0
    if again_s < 0:
        again_s = host_s
    return host_all_s + gpu_s, again_s + gpu_s + slope_s, slope_s, valid_steps, 0.0


class Epoch:
    """The boundaries of one epoch, as an object: for engines that keep no state of their own between steps."""

    __slots__ = ("first_s", "gap_s", "slope_s", "start_s", "steps", "timing")

    def __init__(
        self, start_s: float, first_s: float, gap_s: float, slope_s: float, steps: int, timing: StepTiming
    ) -> None:
        self.start_s, self.first_s, self.gap_s, self.slope_s = start_s, first_s, gap_s, slope_s
        self.steps = steps
        """The form holds up to boundary B(steps)."""
        self.timing = timing

    def boundary(self, index: int) -> float:
        return boundary(self.start_s, self.first_s, self.gap_s, self.slope_s, index)

    def index_after(self, time_s: float) -> int:
        return index_after(self.start_s, self.first_s, self.gap_s, self.slope_s, time_s)

    def index_at(self, time_s: float) -> int:
        return index_at(self.start_s, self.first_s, self.gap_s, self.slope_s, time_s)


def open_alternating(now_s: float, timing: StepTiming) -> Epoch:
    """Host and GPU alternate."""
    t = timing
    first_gap_s, gap_s, slope_s, steps, _ = alternate(
        t.host_s, t.load_s, t.gpu_s, t.slope_s, t.launch_bound, t.tail_s, t.valid_steps, t.sync_s, t.repeat_host_s
    )
    return Epoch(now_s, now_s + first_gap_s, gap_s, slope_s, steps, timing)


def open_empty(now_s: float, until_s: float) -> Epoch:
    """Nothing is computed until until_s."""
    return Epoch(now_s, until_s, 0.0, 0.0, 1, _NOTHING)


_NOTHING = StepTiming(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, False, 0.0, 1)
