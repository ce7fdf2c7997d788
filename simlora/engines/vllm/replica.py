"""One vLLM replica in simulated time.

It goes from run to run by itself, without looking at a clock, up to the moment that somebody asks about: an arrival, a
view, the end (loop.py).
"""

from __future__ import annotations

from simlora.engines.epoch import boundary, index_after
from simlora.engines.view import View
from simlora.engines.vllm.loop import play
from simlora.engines.vllm.run_state import RunState


class VllmReplica(RunState):
    """Drives one scheduler. Its state is that of `now_s`; `advance` brings it to another time."""

    # --- arrivals, and the end ------------------------------------------------------------------------------------

    def enqueue(self, request: int, now_s: float) -> None:
        """A request reaches the scheduler now; it is rejected if it could not even run alone."""
        self.expect(request, now_s)
        self.advance(now_s)

    def expect(self, request: int, at_s: float) -> None:
        """A request will reach the scheduler at at_s, not before those that are expected already."""
        self.inbox.append(request)
        self.inbox_s.append(at_s)

    def advance(self, until_s: float) -> None:
        """Play everything up to until_s: runs that end by then, and requests that come. Whoever wants to see every
        plan has the changes made one by one."""
        if self.on_boundary is None:
            self.play(until_s)
            return
        while (now_s := self.next_change_s()) <= until_s:
            if self.play(now_s, single=True):
                self.on_boundary(self, now_s)

    def next_change_s(self) -> float:
        return min(self.inbox_s[self.taken], self.next_s) if self.taken < len(self.inbox) else self.next_s

    def cut(self, now_s: float) -> None:
        """The simulation ends at now_s, where `advance` has brought it: of the run in progress, the steps that ended by
        then have been."""
        if not self.busy:
            return
        index = index_after(*self.epoch, now_s) - 1
        if not self.start < index < self.end:
            return
        end, boundary_s = self.end, boundary(*self.epoch, index)
        self.late = [(reason, time_s) for reason, time_s in self.late if time_s < boundary_s]
        self.end = index
        self.next_s = boundary_s
        self.play(boundary_s, last=True)
        self.engine.repeat()
        self.start, self.end, self.run_start_s, self.next_s = index, end, boundary_s, boundary(*self.epoch, end)
        self.running = self.engine.num_running()

    def view_at(self, time_s: float) -> View:
        """State at time_s, which lies within the run in progress (or in the idle time until now)."""
        passed = 0
        if self.busy and self.end - self.start > 1:
            passed = max(index_after(*self.epoch, time_s) - 1 - self.start, 0)
        state, capacity = self.engine.state(passed), self.engine.capacity
        usage = 1.0 - state.free_blocks / capacity.kv_blocks
        outstanding = self.outstanding - state.finishing
        idle_s = time_s - self.now_s if not self.busy and outstanding == 0 else 0.0
        return View(state.running, state.waiting, usage, state.adapters, capacity.slots, outstanding, idle_s)

    def play(self, until_s: float, single: bool = False, last: bool = False) -> bool:
        """See loop.play."""
        return play(self, until_s, single, last)
