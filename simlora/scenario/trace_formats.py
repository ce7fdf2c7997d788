"""The formats of traces: the one place where a format is registered.

Each describes itself, as FORMAT in its module: how it is told from others, parsed, and what its clock means. The values
of `workload.trace.format`, the help of the command line and the reader follow from this table.
"""

from __future__ import annotations

TRACE_FORMATS = {
    "azure": "simlora.workload.traces.azure",
    "burstgpt": "simlora.workload.traces.burstgpt",
    "mooncake": "simlora.workload.traces.mooncake",
    "vllm-bench": "simlora.workload.traces.vllm_bench",
    "simlora-run": "simlora.runs.trace",
    "csv": "simlora.workload.traces.simlora_csv",
}
"""Name -> module, in the order in which a file is held against them. Modules are imported when a trace is read."""
