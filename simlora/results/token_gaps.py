"""Largest and median gap between the tokens of each request, from the runs it took part in.

The boundaries of a replica's runs form one sequence of gaps, and a request that decodes without interruption gets a
token at consecutive boundaries: its first at B_1 of its first run, the others at the following ones. Its gaps are thus
a range of that sequence, and both numbers are order statistics of a range. A wavelet matrix finds them for all requests
at once, with no work per request and token.

A gap that spans a preemption is added to the range's; the gaps of others while the request was away stay in the range,
so its median is approximate, and its largest gap exact, since they are all part of the one it waited through.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simlora.results.measured import Measured
from simlora.results.quantiles import interpolate
from simlora.results.timeline import Timeline
from simlora.sim.log import PipelineLog

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def token_gaps(measured: Measured) -> tuple[Floats, Floats]:
    """(largest, median) gap between tokens, [num_requests] each, in seconds; NaN unless completed with two tokens or
    more."""
    requests = measured.log.requests
    largest, median = np.full(len(requests.status), np.nan), np.full(len(requests.status), np.nan)
    counted = measured.completed & (requests.output_tokens > 1) & (requests.first_run >= 0) & (requests.last_run >= 0)
    for index, timeline in enumerate(measured.timelines):
        own = np.flatnonzero(counted & (requests.replica == index))
        if not len(own):
            continue
        pipeline = timeline.replica.pipeline
        if pipeline is None:
            gaps, offsets = boundary_gaps(timeline)
            begin, end = _ranges(measured, own, offsets, timeline.replica.async_scheduling)
        else:
            gaps, begin, end = _lane_ranges(measured, own, pipeline)
        has_gaps = end > begin
        own, begin, end = own[has_gaps], begin[has_gaps], end[has_gaps]
        largest[own], median[own] = _range_statistics(gaps, begin, end)
    for index, interrupted in requests.interrupted_gaps.items():
        if interrupted and counted[index]:
            largest[index] = np.fmax(largest[index], max(interrupted))
            if np.isnan(median[index]):
                median[index] = float(np.median(interrupted))
    return largest, median


def boundary_gaps(timeline: Timeline) -> tuple[Floats, Ints]:
    """(gaps, offsets): the gap before every boundary of all runs, and the index of each run's first boundary.

    offsets has one more entry, the number of gaps.
    """
    runs = timeline.replica.runs
    steps = runs["steps"].astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(steps)))
    later = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], steps) - 1
    gaps = np.repeat(runs["gap_s"], steps) + np.repeat(runs["slope_s"], steps) * later
    some = steps > 0
    gaps[offsets[:-1][some]] = runs["first_gap_s"][some]
    return gaps, offsets


def _ranges(measured: Measured, own: Ints, offsets: Ints, asynchronous: bool) -> tuple[Ints, Ints]:
    """Half-open ranges of boundary indices at which each request gets a token after its first."""
    requests = measured.log.requests
    begin = offsets[requests.first_run[own]] + 1
    end_of_last_run = offsets[requests.last_run[own] + 1]
    last_token = np.minimum(begin + requests.output_tokens[own] - 1, end_of_last_run)
    # A preempted request skips boundaries, so its tokens do not tell where its range ends.
    preempted = requests.preemptions[own] > 0
    last_boundary = offsets[requests.last_run[own]] + 1 if asynchronous else end_of_last_run
    return begin, np.where(preempted, last_boundary, last_token)


def _lane_ranges(measured: Measured, own: Ints, pipeline: PipelineLog) -> tuple[Floats, Ints, Ints]:
    """Gaps lane by lane, and the half-open range of each request's among them.

    Empty for a request that a preemption took to another lane: only the gaps that span a preemption are known of it.
    """
    order = np.argsort(pipeline.lane, kind="stable")
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    first, last = measured.log.requests.first_run[own], measured.log.requests.last_run[own]
    begin = position[first] + 1
    end = np.where(pipeline.lane[first] == pipeline.lane[last], position[last] + 1, begin)
    return pipeline.token_gap_s[order], begin, end


def _range_statistics(gaps: Floats, begin: Ints, end: Ints) -> tuple[Floats, Floats]:
    """(largest, median) of gaps[begin:end] for each range; no range is empty."""
    low, high = int(begin.min(initial=0)), int(end.max(initial=0))
    values, ranks = np.unique(gaps[low:high], return_inverse=True)
    count = end - begin
    halves = (count - 1) // 2, count // 2
    found = _order_statistics(ranks, len(values), begin - low, end - low, (*halves, count - 1))
    below, above, largest = (values[index] for index in found)
    return largest, interpolate(below, above, np.where(count % 2, 0.0, 0.5))


def _order_statistics(ranks: Ints, size: int, begin: Ints, end: Ints, wanted: tuple[Ints, ...]) -> list[Ints]:
    """For each array of `wanted` (0-based), the wanted-th smallest of ranks[begin:end]; ranks are below `size`.

    Level by level from the highest bit, the sequence is split stably into its zeros and ones, and each query follows
    the side that its answer is on.
    """
    queries = len(wanted)
    short = np.int32 if len(ranks) < 2**31 else np.int64  # half the memory traffic
    ranks = ranks.astype(short)
    left, right = np.tile(begin, queries).astype(short), np.tile(end, queries).astype(short)
    order, answer = np.concatenate(wanted).astype(short), np.zeros(len(begin) * queries, dtype=np.int64)
    zeros_before = np.zeros(len(ranks) + 1, dtype=short)
    for bit in range(max(size - 1, 1).bit_length() - 1, -1, -1):
        ones = (ranks & short(1 << bit)).astype(bool)
        zeros = ~ones
        np.cumsum(zeros, out=zeros_before[1:])
        zeros_left, zeros_right = zeros_before[left], zeros_before[right]
        in_zeros = zeros_right - zeros_left
        goes_one = order >= in_zeros
        total = zeros_before[-1]
        left = np.where(goes_one, total + left - zeros_left, zeros_left)
        right = np.where(goes_one, total + right - zeros_right, zeros_right)
        order = np.where(goes_one, order - in_zeros, order)
        answer |= goes_one.astype(np.int64) << bit
        if bit:
            ranks = np.concatenate((ranks[zeros], ranks[ones]))
    return np.split(answer, queries)
