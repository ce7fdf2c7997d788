"""The files of a run that readers look at: report.html and, on request, trace.json.gz."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simlora.report.facts import Summary
from simlora.report.html import render_html
from simlora.report.perfetto import write_trace
from simlora.results.files import REPORT, TRACE, Writer, text_writer
from simlora.sim.log import SimulationLog

if TYPE_CHECKING:
    from simlora.plan.decision import Decision


def report_writers(
    log: SimulationLog, summary: Summary, decision: Decision | None = None, perfetto: bool = False
) -> dict[str, Writer]:
    """Writers for results.files.write_folder, beside those of results.files.run_writers."""
    writers: dict[str, Writer] = {REPORT: text_writer(lambda: render_html(summary, log, decision))}
    if perfetto:
        writers[TRACE] = trace_writer(log)
    return writers


def trace_writer(log: SimulationLog) -> Writer:
    """Writes trace.json.gz."""

    def write(path: Path) -> None:
        write_trace(log, path)

    return write
