"""The sleeping loop of S-LoRA: while nobody runs, it looks at its queue, sleeps, and looks again."""

from __future__ import annotations

import math

from simlora.engines.base import NEVER_S


class Polls:
    """Looks idle_s apart, counted from the moment at which the last request left; at the start the first is at 0."""

    __slots__ = ("_done", "_idle_s", "_since_s", "due_s")

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._since_s = 0.0
        self._done = -1
        """Number of the last look that is accounted for; look n is at since + n * idle_s."""
        self.due_s = NEVER_S
        """The look that was asked for."""

    def restart(self, now_s: float) -> None:
        """Nobody runs from now on; the loop sleeps first."""
        self._since_s, self._done, self.due_s = now_s, 0, NEVER_S

    def pass_to(self, now_s: float) -> int:
        """Account for the looks up to now_s. Returns how many there were besides the one that was asked for and is due
        now; nobody was waiting at those."""
        self._done += now_s >= self.due_s
        number = max(math.floor((now_s - self._since_s) / self._idle_s), 0)
        while self._since_s + number * self._idle_s <= now_s:
            number += 1
        missed, self._done, self.due_s = number - 1 - self._done, number - 1, NEVER_S
        return missed

    def ask(self) -> float:
        """Ask for the next look; its time."""
        self.due_s = self._since_s + (self._done + 1) * self._idle_s
        return self.due_s
