"""Recorded runs as traces: a folder with run.json and requests.csv, or its requests.csv alone.

Its requests stand in the order in which they were offered, not in that of their arrival stamps, and keep their clock.
"""

from __future__ import annotations

from pathlib import Path

from simlora.errors import ConfigError
from simlora.runs import REQUESTS, RUN, RUN_FORMAT
from simlora.workload.traces.json_values import loads
from simlora.workload.traces.simlora_csv import parse_layout
from simlora.workload.traces.table import TraceFormat, TraceOptions, TraceTable
from simlora.workload.traces.text_file import read_text

MEASURED = ("ttft_s", "e2e_s", "itl_max_s", "itl_p50_s")
"""Columns of what happened to a request, which a replay leaves aside."""


def parse(text: str, source: str, options: TraceOptions) -> TraceTable:
    """Trace from the text of a requests.csv; measured times in it are ignored."""
    return parse_layout(text, source, options, "simlora-run", MEASURED)


def read_run(folder: Path, options: TraceOptions) -> TraceTable:
    """Trace from a recorded run's folder, whose run.json must say that it is one."""
    if not (folder / RUN).exists():
        raise ConfigError(str(folder), RUN, None, "missing: a trace is a file, or the folder of a recorded run")
    source = f"{folder.name}/{RUN}"
    run = loads(read_text(str(folder / RUN)), source)
    if not isinstance(run, dict) or run.get("format") != RUN_FORMAT:
        value = run.get("format") if isinstance(run, dict) else type(run).__name__
        raise ConfigError(source, "format", value, RUN_FORMAT)
    requests = folder / REQUESTS
    if not requests.exists():
        raise ConfigError(folder.name, REQUESTS, None, "missing: the run holds no requests to replay")
    return parse(read_text(str(requests)), f"{folder.name}/{REQUESTS}", options)


FORMAT = TraceFormat(
    "simlora-run",
    parse,
    detect=lambda head: {"arrivals", "ttfts", "e2es"} <= head.columns,
    keeps_clock=True,
    any_order=True,
    read_folder=read_run,
)
