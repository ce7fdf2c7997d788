"""Running items within a budget, in calls that continue one another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .fitting.samples import check_row
from .plan import Item
from .samples import CampaignFolder, Done

Measure = Callable[[Item], Iterable[dict[str, Any]]]
Report = Callable[[str], None]

MOST_FAILURES = 2
"""Calls after which an item that fails is given up."""


class SkipItemError(Exception):
    """Raised by a measurement that this machine cannot run; the text says why."""


@dataclass(frozen=True)
class Outcome:
    """What a call has done. pending: ids of items left for a further call."""

    finished: int
    skipped: tuple[tuple[str, str], ...]
    failed: tuple[tuple[str, str], ...]
    pending: tuple[str, ...]
    elapsed_s: float

    @property
    def complete(self) -> bool:
        return not self.pending


class Session:
    """One call. An item is started only where its expected time fits what is left of the budget."""

    def __init__(
        self,
        folder: CampaignFolder,
        budget_s: float,
        clock: Callable[[], float],
        report: Report,
        provenance: str,
        gpus: int = 1,
    ) -> None:
        self.folder, self.budget_s, self.clock = folder, budget_s, clock
        self.report, self.provenance, self.gpus = report, provenance, gpus
        self._begin = clock()
        self._expected = self._actual = 0.0

    def run(self, items: Sequence[Item], measure: Measure, healthy: Callable[[], bool] = lambda: True) -> Outcome:
        """Measure what is left of `items`. The first one is started whatever it takes: a call always gets further."""
        waiting = self._pending(items)
        total, started = len(items), False
        for item in waiting:
            if started and self._elapsed() + self._expect(item) > self.budget_s:
                continue
            started = True
            done = self._one(item, measure)
            self.report(self._line(item, done, total - len(self._pending(items)), total))
            if done.status == "failed" and not healthy():
                self.report("the GPU no longer answers this process: stopping here, a further call continues")
                break
        return self._outcome(items)

    def _pending(self, items: Sequence[Item]) -> list[Item]:
        """Items not finished, nor skipped on this very machine; those that failed before come last."""
        ended = {done.item for done in self.folder.done if self._final(done)}
        failures = [done.item for done in self.folder.done if done.status == "failed"]
        left = [item for item in items if item.id not in ended and failures.count(item.id) < MOST_FAILURES]
        return sorted(left, key=lambda item: item.id in failures)

    def _final(self, done: Done) -> bool:
        return done.status == "done" or (done.status == "skipped" and done.provenance == self.provenance)

    def _one(self, item: Item, measure: Measure) -> Done:
        begin, rows, notes = self.clock(), [], []
        status, reason = "done", ""
        try:
            self._require_gpus(item)
            for row in measure(item):
                if "note" in row:
                    notes.append(str(row["note"]))
                else:
                    rows.append({**row, "item": item.id, "provenance": self.provenance})
                    check_row(rows[-1])
        except SkipItemError as skipped:
            status, reason = "skipped", str(skipped)
        except Exception as failed:  # a driver, a peer's kernel or memory: one item must not end the campaign
            status, reason = "failed", f"{type(failed).__name__}: {str(failed)[:300]}"
        if status == "failed":
            rows = []
        seconds = self.clock() - begin
        if status == "done":
            self._expected, self._actual = self._expected + item.seconds, self._actual + seconds
        done = Done(item.id, status, round(seconds, 3), reason, tuple(notes), len(rows), self.provenance)
        self.folder.append(done, rows)
        return done

    def _require_gpus(self, item: Item) -> None:
        if item.gpus > self.gpus:
            raise SkipItemError(f"needs {item.gpus} GPUs, {self.gpus} found")

    def _expect(self, item: Item) -> float:
        """Expected seconds, corrected by how long the items of this call took, within a factor of 2; 0 for a skip."""
        if item.gpus > self.gpus:
            return 0.0
        factor = self._actual / self._expected if self._expected > 0 else 1.0
        return item.seconds * min(max(factor, 0.5), 2.0)

    def _elapsed(self) -> float:
        return self.clock() - self._begin

    def _line(self, item: Item, done: Done, ended: int, total: int) -> str:
        left = f"{done.rows} samples" if done.status == "done" else f"{done.status}: {done.reason}"
        clock = f"{self._elapsed():.0f} of {self.budget_s:.0f} s"
        return f"[{ended:3}/{total}] {item.id}: {left}, {done.seconds:.1f} s (expected {item.seconds:.0f}); {clock}"

    def _outcome(self, items: Sequence[Item]) -> Outcome:
        ids = {item.id for item in items}
        last = {done.item: done for done in self.folder.done if done.item in ids}
        return Outcome(
            finished=sum(done.status == "done" for done in last.values()),
            skipped=tuple((d.item, d.reason) for d in last.values() if d.status == "skipped"),
            failed=tuple((d.item, d.reason) for d in last.values() if d.status == "failed"),
            pending=tuple(item.id for item in self._pending(items)),
            elapsed_s=self._elapsed(),
        )


def parse_budget(text: str | float) -> float:
    """Seconds of "9m", "90s", "540" or "1h"; ValueError for anything else or nothing positive."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    raw = str(text).strip().lower()
    factor = units.get(raw[-1:], 1.0)
    number = float(raw[:-1] if raw[-1:] in units else raw)
    if not 0.0 < number < float("inf"):
        raise ValueError(f"{text!r} is not a positive time")
    return number * factor
