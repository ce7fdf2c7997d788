"""Boundary times of identical steps, and how host and GPU overlap between steps.

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


class Epoch:
    """Boundaries of a batch whose composition does not change: B(0) = start_s, B(1) = first_s and
    B(x) = first_s + (x - 1) * gap_s + slope_s * (x - 1) * (x - 2) / 2. The closed form is evaluated from the epoch's
    start, never accumulated, so stepping one by one and jumping give the same floats."""

    __slots__ = ("first_s", "gap_s", "residual_s", "slope_s", "start_s", "steps", "timing")

    def __init__(
        self,
        start_s: float,
        first_s: float,
        gap_s: float,
        slope_s: float,
        steps: int,
        timing: StepTiming,
        residual_s: float,
    ) -> None:
        self.start_s, self.first_s, self.gap_s, self.slope_s = start_s, first_s, gap_s, slope_s
        self.steps = steps
        """The form holds up to boundary B(steps)."""
        self.timing = timing
        self.residual_s = residual_s
        """GPU time left at B(1) of the step planned at B(0); later boundaries add the slope."""

    def boundary(self, index: int) -> float:
        if index == 0:
            return self.start_s
        done = index - 1
        return self.first_s + done * self.gap_s + self.slope_s * (done * (done - 1) / 2)

    def residual(self, index: int) -> float:
        """GPU time left at boundary `index` >= 1 of the step in flight."""
        return self.residual_s + self.timing.slope_s * (index - 1)

    def index_after(self, time_s: float) -> int:
        """The first boundary later than time_s; a boundary at exactly time_s has passed."""
        if time_s < self.first_s:
            return 1 if time_s >= self.start_s else 0
        elapsed, a, b = time_s - self.first_s, self.gap_s - self.slope_s / 2, self.slope_s / 2
        done = elapsed / a if b == 0 else (sqrt(a * a + 4 * b * elapsed) - a) / (2 * b)
        index = max(1, int(done) + 1)
        while self.boundary(index) <= time_s:
            index += 1
        while index > 1 and self.boundary(index - 1) > time_s:
            index -= 1
        return index

    def index_at(self, time_s: float) -> int:
        """The first boundary at time_s or later."""
        index = self.index_after(time_s)
        return index - 1 if index > 0 and self.boundary(index - 1) == time_s else index


def open_async(now_s: float, residual_s: float, timing: StepTiming) -> Epoch:
    """The next step is planned at now_s, while the step in flight has residual_s left on the GPU (0: idle GPU)."""
    gpu, host, sync = timing.gpu_s, timing.host_s + timing.load_s, timing.sync_s
    gap = (residual_s if residual_s > host else host) + sync
    first_s = now_s + gap
    if timing.launch_bound:
        if sync:  # nothing of this step runs before the read-back
            end = max(gap - sync + gpu, gap + timing.tail_s)
        else:
            end = max(max(residual_s, timing.load_s) + gpu, host + timing.tail_s)
        return Epoch(now_s, first_s, 0.0, 0.0, 1, timing, end - gap)
    again = timing.repeat_host_s if timing.repeat_host_s >= 0 else timing.host_s
    if gpu >= again:
        return Epoch(now_s, first_s, gpu, timing.slope_s, timing.valid_steps, timing, gpu)
    steps = FOREVER if timing.slope_s <= 0 else 1 + int((again - gpu) / timing.slope_s)
    return Epoch(now_s, first_s, again, 0.0, min(steps, timing.valid_steps), timing, gpu)


def open_sync(now_s: float, timing: StepTiming) -> Epoch:
    """Host and GPU alternate: nothing is in flight when a step is planned."""
    gpu, host = timing.gpu_s, timing.host_s + timing.load_s + timing.sync_s
    if timing.launch_bound:
        step = max(timing.load_s + gpu, host + timing.tail_s)
        return Epoch(now_s, now_s + step, 0.0, 0.0, 1, timing, 0.0)
    again = timing.repeat_host_s if timing.repeat_host_s >= 0 else timing.host_s
    gap = again + gpu + timing.slope_s
    return Epoch(now_s, now_s + host + gpu, gap, timing.slope_s, timing.valid_steps, timing, 0.0)


def open_drain(now_s: float, residual_s: float) -> Epoch:
    """Nothing to schedule, but a step is in flight: its tokens come out when the GPU is done."""
    return Epoch(now_s, now_s + residual_s, 0.0, 0.0, 1, _NOTHING, 0.0)


_NOTHING = StepTiming(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, False, 0.0, 1)
