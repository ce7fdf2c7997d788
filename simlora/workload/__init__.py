"""What clients send: adapters with their popularity, and one ordered stream of requests, synthetic or from a trace."""

from __future__ import annotations

from simlora.workload.adapters import AdapterTable, build_adapters
from simlora.workload.describe import TraceSummary, describe_trace
from simlora.workload.export import write_canonical
from simlora.workload.recorded_adapters import adapters_from_trace
from simlora.workload.replay import trace_requests
from simlora.workload.requests import RequestTable, build_requests
from simlora.workload.trace import TraceOptions, TraceTable
from simlora.workload.trace_reader import FORMATS, read_trace

__all__ = [
    "FORMATS",
    "AdapterTable",
    "RequestTable",
    "TraceOptions",
    "TraceSummary",
    "TraceTable",
    "adapters_from_trace",
    "build_adapters",
    "build_requests",
    "describe_trace",
    "read_trace",
    "trace_requests",
    "write_canonical",
]
