"""What a simulation leaves behind: one row per run of identical steps, one per request, and counters.

What a row of a run holds is said in engines/run_log.py. Results are derived from the rows, so nothing is recorded per
token. Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

STATUS_COMPLETED, STATUS_REJECTED, STATUS_UNFINISHED = 0, 1, 2

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RequestLog:
    """One entry per offered request, in order of arrival. NaN means: it never happened."""

    arrival_s: Floats
    adapter: Ints
    """0 is the base model."""
    rank: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    status: Ints
    replica: Ints
    """-1 before routing."""
    routed_s: Floats
    """When it reached its replica's scheduler."""
    admitted_s: Floats
    """First admission to the running batch."""
    first_token_s: Floats
    """When the client has the first token, the front end's delay included."""
    last_token_s: Floats
    preemptions: Ints
    recomputed_tokens: Ints
    cached_tokens: Ints
    """Prompt tokens found in the prefix cache at the first admission."""
    load_tier: Ints
    """Where its adapter was at admission: 0 base or already in a slot, 1 host memory, 2 disk, 3 remote."""
    load_s: Floats
    """Load time that its own admission caused."""
    first_run: Ints
    """Index into the replica's runs of the run during which the first token came out; -1 when none did."""
    last_run: Ints
    interrupted_gaps: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """Request index -> token gaps that span a preemption: they are in no run's ITL weight."""


@dataclass(frozen=True)
class PipelineLog:
    """Rows of a replica with pipeline stages: each is one batch, from the return of the batch before to its own."""

    stages: int
    """A row's GPU times are those of all stages together."""
    lane: Ints
    """Lane of each run. A request gets a token at every boundary of its lane, from its first to its last."""
    token_gap_s: Floats
    """Gap before the tokens that come out at B_1, counted in place of first_gap_s: other lanes' boundaries lie between.
    """


@dataclass(frozen=True)
class ReplicaLog:
    """What one replica did."""

    runs: dict[str, Floats]
    """Column name (RUN_COLUMNS) -> one value per run."""
    async_scheduling: bool
    gpus: int
    kv_blocks: int
    block_size: int
    slots: int
    gpu_hits: int
    """Admissions whose adapter was already in a slot (base requests not counted)."""
    host_hits: int
    disk_loads: int
    remote_loads: int
    load_bytes: int
    """Host-to-device bytes of all loads."""
    evictions: int
    """Adapters thrown out of a slot."""
    preemptions: int
    start_s: float = 0.0
    """Engine start-up time before it serves; counted as cost, not as latency."""
    aborted: int = 0
    """Requests that the engine gave up after it had accepted them."""
    paid_s: float | None = None
    """Seconds for which its GPUs are paid, start-ups included; None: start-up and the whole simulation."""
    pipeline: PipelineLog | None = None
    """None with one stage."""
    loads: int | None = None
    """Adapters brought to the GPU, ahead of an admission too; None: one for each admission that found it elsewhere."""


@dataclass(frozen=True)
class SimulationLog:
    """Everything that results are computed from."""

    scenario: Any
    """The Scenario that ran."""
    requests: RequestLog
    replicas: tuple[ReplicaLog, ...]
    end_s: float
    """Simulated time at which the run ended."""
    extrapolated_s: dict[str, float]
    """Latency term -> simulated seconds spent outside its measured range."""
    calibration: dict[str, Any]
    """id, sha256 and provenance of the calibration that priced the steps."""
    notes: tuple[str, ...] = ()
    initial_gpu: tuple[int, ...] = ()
    """Adapters that were in slots when the run began, oldest first, pinned ones last."""
    initial_host: tuple[int, ...] = ()
    """The same for host memory."""
    events: int = 0
    """Simulated events processed, for benchmarks."""
    dedicated: Any = None
    """With one deployment per tenant, the scenario as the user wrote it; `scenario` is then that of a deployment."""
