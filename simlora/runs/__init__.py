"""Recorded runs in the format simlora-run/1: read and written here alone."""

from __future__ import annotations

RUN_FORMAT = "simlora-run/1"
RUN, REQUESTS, STEPS = "run.json", "requests.csv", "steps.csv"
DECODE, PREFILL, LOAD = "decode.csv", "prefill.csv", "load.csv"
REJECTED = "rejected"
"""Status of a request that the server refused."""
SERVER = "simlora"
"""What a run of the simulator itself has as its server."""
