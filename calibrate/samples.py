"""The files of a campaign folder: samples, progress and provenance, as JSON lines that survive a kill."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .device import Facts

SAMPLES, PROGRESS, PROVENANCE = "samples.jsonl", "progress.jsonl", "provenance.json"


@dataclass(frozen=True)
class Done:
    """How one item ended. status: done, skipped (this machine cannot), failed."""

    item: str
    status: str
    seconds: float
    reason: str
    notes: tuple[str, ...]
    rows: int
    provenance: str


class CampaignFolder:
    """Append-only state. An item counts once its progress line is written; rows of others are dropped on opening."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.done = [Done(**{**line, "notes": tuple(line["notes"])}) for line in _lines(path / PROGRESS)]
        self._drop_unfinished()

    def append(self, done: Done, rows: list[dict[str, Any]]) -> None:
        """Write an item's rows, then its end."""
        _append(self.path / SAMPLES, rows)
        _append(self.path / PROGRESS, [{**done.__dict__, "notes": list(done.notes)}])
        self.done.append(done)

    def add_provenance(self, facts: Facts) -> None:
        """Remember a machine, once."""
        path = self.path / PROVENANCE
        known = json.loads(path.read_text()) if path.is_file() else []
        if all(entry["id"] != facts.id for entry in known):
            path.write_text(json.dumps([*known, facts.as_row()], indent=1) + "\n")

    def provenance(self) -> list[dict[str, Any]]:
        """All machines that samples were taken on, in order of first use."""
        path = self.path / PROVENANCE
        return list(json.loads(path.read_text())) if path.is_file() else []

    def rows(self) -> list[dict[str, Any]]:
        """All samples."""
        return _lines(self.path / SAMPLES)

    def _drop_unfinished(self) -> None:
        path = self.path / SAMPLES
        rows = _lines(path)
        finished = {done.item for done in self.done}
        kept = [row for row in rows if row.get("item") in finished]
        if len(kept) != len(rows) or (path.is_file() and not path.read_text().endswith("\n")):
            path.write_text("".join(json.dumps(row) + "\n" for row in kept))


def _lines(path: Path) -> list[dict[str, Any]]:
    """JSON lines of a file; a last line cut short by a kill is ignored."""
    if not path.is_file():
        return []
    found = []
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            if number != len(lines):
                raise
    return found


def _append(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
