"""The rows that a replica leaves behind: one for each run of identical steps.

A *run* is k planned steps whose composition does not change. Its boundaries are B_0 = start_s (the plan is formed),
B_1 = start_s + first_gap_s and B_m = B_1 + (m - 1) * gap_s + slope_s * (m - 1) * (m - 2) / 2 for m = 1 .. k; the next
run starts at B_k. Under asynchronous scheduling the tokens of the step planned before the run come out at B_1, and
those of the run's step m at B_(m+1); without it, those of step m come out at B_m. Results are derived from these rows,
so nothing is recorded per token. Times are seconds.
"""

from __future__ import annotations

from array import array
from struct import Struct

RUN_COLUMNS = (
    "start_s",  # B_0
    "first_gap_s",  # B_1 - B_0
    "first_weight",  # tokens that come out at B_1 and are not a request's first: the weight of the first gap in ITL
    "gap_s",  # gap between later boundaries
    "slope_s",  # its growth per boundary
    "steps",  # k
    "decode_count",  # weight of each later gap in ITL
    "prefill_count",
    "prefill_tokens",
    "context_tokens",  # of the decoding requests, when the plan was formed
    "running",  # requests in the engine that do not wait, averaged over the run
    "waiting_slots",  # waiting because every slot holds another adapter of the step
    "waiting_kv",
    "waiting_seqs",
    "waiting_tokens",
    "num_adapters",  # distinct, in the step
    "kv_used_blocks",
    "host_s",  # parts of ONE step of the run (StepTiming)
    "load_s",
    "base_s",
    "attention_s",
    "lora_s",
    "collective_s",
    "waste_rank_fraction",  # share of LoRA compute spent on rank padding in the step
    "preemptions",  # when the run was planned
)
"""Names of the values of a row, in order."""
ROW = len(RUN_COLUMNS)
pack_row = Struct(f"{ROW}d").pack
"""The bytes of a row, to append to RunLog.values: that takes a quarter of the time of appending its values."""


def with_late(
    by_reason: tuple[float, ...], late: list[tuple[int, float]], start_s: float, end_s: float
) -> tuple[float, ...]:
    """Waiting requests by reason, averaged over a run, those that came meanwhile, (reason, time) each, included."""
    averages, duration_s = [float(number) for number in by_reason], end_s - start_s
    if duration_s > 0.0:
        for reason, time_s in late:
            averages[reason] += (end_s - time_s) / duration_s
    return tuple(averages)


class RunLog:
    """Rows one after the other, each written when its run is over."""

    def __init__(self, stages: int = 0) -> None:
        """stages: of a pipeline, where each row is one batch; 0: none."""
        self.stages = stages
        self.lane, self.token_gap_s = array("q"), array("d")
        """With stages: of each row, its lane, and the gap before the tokens that come out at its end."""
        self.values = array("d")
        self.outside_s: dict[tuple[str, ...], float] = {}
        """Latency terms priced outside their measured range -> seconds of runs with exactly these."""

    @property
    def count(self) -> int:
        """Rows written."""
        return len(self.values) // ROW

    def extrapolated_s(self) -> dict[str, float]:
        """Latency term -> simulated seconds priced outside its measured range."""
        totals: dict[str, float] = {}
        for terms, seconds in self.outside_s.items():
            for term in terms:
                totals[term] = totals.get(term, 0.0) + seconds
        return totals
