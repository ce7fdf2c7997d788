"""The memory ledger as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simlora.memory.rows import LedgerRow


def memory_table(rows: Sequence[LedgerRow], binding: str, notes: Sequence[str]) -> RenderableType:
    """One line per entry of one GPU, then what binds, then advice."""
    table = Table(title="memory of one GPU", title_justify="left", box=None, header_style="bold", pad_edge=False)
    table.add_column("")
    table.add_column("GB", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    for row in rows:
        style = "red" if row.bytes < 0 else ""
        table.add_row(row.label, f"{row.bytes / 1e9:.2f}", f"{row.share:.1%}", row.note, style=style)
    lines = [Text(f"binds: {binding}", style="bold"), *(Text(f"advice: {note}") for note in notes)]
    return Group(table, *lines)
