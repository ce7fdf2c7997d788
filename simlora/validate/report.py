"""What a validation found: all rows, and what has to be said beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simlora.results.atomic_write import write_whole
from simlora.validate.rows import Row


@dataclass(frozen=True)
class ValidationReport:
    """The outcome of `validate`."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    """Assumptions and approximations, each once, with the run's name where it concerns one."""

    def of_requests(self) -> list[Row]:
        """Rows of whole runs."""
        return [row for row in self.rows if not row.is_measurement]

    def of_measurements(self) -> list[Row]:
        """Rows of single measurements (decode, prefill, loads)."""
        return [row for row in self.rows if row.is_measurement]


def write_json(rows: Sequence[Row], path: str | Path) -> Path:
    """Write the rows as a JSON list; the file is there whole, or not at all.

    Raises:
        ConfigError: it cannot be written.
    """
    text = json.dumps([row.to_dict() for row in rows], indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    return write_whole(path, text, "--json")
