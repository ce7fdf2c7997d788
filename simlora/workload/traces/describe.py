"""What a trace holds, as numbers. Times are seconds, lengths tokens; None where a trace does not say."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simlora.workload.traces.reader import rate_rps, tick_s
from simlora.workload.traces.replay import BASE_LABELS
from simlora.workload.traces.table import HashIds, Ints, Labels, TraceTable


@dataclass(frozen=True)
class LengthSummary:
    """Quantiles of one column of lengths."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int


@dataclass(frozen=True)
class TraceSummary:
    """A trace in numbers. A value is None where it is not defined or the trace does not say."""

    source: str
    format: str
    rows: int
    """Usable requests."""
    dropped: dict[str, int]
    """Reason -> rows left out."""
    span_s: float
    """First to last arrival."""
    request_rate_rps: float | None
    interarrival_cv: float | None
    """Standard deviation of the gaps over their mean; 1 for Poisson."""
    distinct_stamps: int
    """Far fewer than rows: the clock was coarse, and jitter is advisable."""
    tick_s: float
    """Smallest gap between two distinct stamps."""
    prompt_tokens: LengthSummary
    output_tokens: LengthSummary
    max_model_len: int | None
    over_model_len_fraction: float | None
    """Share of requests with prompt + output > max_model_len."""
    adapters: int | None
    """Distinct adapters, base model not counted."""
    base_fraction: float | None
    top1_fraction: float | None
    """Share of the adapter requests that go to the most popular adapter, or the ten most popular ones."""
    top10_fraction: float | None
    batch_size: int
    distinct_adapters_per_batch: float | None
    """Expected distinct adapters among batch_size requests drawn independently: sum of 1 - (1 - p)^batch_size."""
    groups: int | None
    """Distinct sessions or tenants."""
    prefix_reuse_fraction: float | None
    """Share of prompt tokens in leading blocks that came before with the same adapter, if the cache forgets nothing."""
    notes: tuple[str, ...]


def describe_trace(trace: TraceTable, *, max_model_len: int | None = None, batch_size: int = 32) -> TraceSummary:
    """Numbers of a trace, as read_trace returns it. batch_size >= 1."""
    span_s = float(trace.arrival_s[-1] - trace.arrival_s[0])
    labels = trace.adapter if trace.adapter is not None and len(trace.adapter.names) > 1 else None
    counts = None if labels is None else adapter_counts(labels)
    return TraceSummary(
        source=trace.source,
        format=trace.format,
        rows=len(trace),
        dropped={item.reason: item.count for item in trace.dropped},
        span_s=span_s,
        request_rate_rps=rate_rps(trace.arrival_s),
        interarrival_cv=interarrival_cv(trace.arrival_s),
        distinct_stamps=len(np.unique(trace.arrival_s)),
        tick_s=tick_s(trace.arrival_s),
        prompt_tokens=_lengths(trace.prompt_tokens),
        output_tokens=_lengths(trace.output_tokens),
        max_model_len=max_model_len,
        over_model_len_fraction=None if max_model_len is None else _over(trace, max_model_len),
        adapters=None if counts is None else int(np.count_nonzero(counts)),
        base_fraction=None if counts is None else (len(trace) - int(counts.sum())) / len(trace),
        top1_fraction=None if counts is None else top_fraction(counts, 1),
        top10_fraction=None if counts is None else top_fraction(counts, 10),
        batch_size=batch_size,
        distinct_adapters_per_batch=None if counts is None else distinct_per_batch(counts / len(trace), batch_size),
        groups=None if trace.group is None else len(np.unique(trace.group.codes[trace.group.codes > 0])),
        prefix_reuse_fraction=_reuse(trace),
        notes=(*map(str, trace.dropped), *trace.notes),
    )


def interarrival_cv(arrival_s: npt.NDArray[np.float64]) -> float | None:
    """Coefficient of variation of the gaps; None for fewer than two gaps or if all are 0."""
    gaps_s = np.diff(arrival_s)
    mean_s = float(gaps_s.mean()) if len(gaps_s) > 1 else 0.0
    return float(gaps_s.std()) / mean_s if mean_s > 0.0 else None


def adapter_counts(labels: Labels) -> npt.NDArray[np.int64]:
    """[num_adapters seen], in order of label id: requests of each adapter, base model left out."""
    counts: npt.NDArray[np.int64] = np.bincount(labels.codes, minlength=len(labels.names))
    is_adapter = [name not in BASE_LABELS for name in labels.names]
    return np.compress(is_adapter, counts)


def top_fraction(counts: npt.NDArray[np.int64], top: int) -> float | None:
    """Share of the `top` largest counts; None if there are no requests."""
    total = int(counts.sum())
    return float(np.sort(counts)[::-1][:top].sum()) / total if total else None


def distinct_per_batch(probability: npt.NDArray[np.float64], batch_size: int) -> float:
    """Expected distinct adapters in a batch of independent requests; probability: [num_adapters], the base model left
    out."""
    return float(np.sum(1.0 - (1.0 - probability) ** batch_size))


def prefix_reuse_fraction(
    prefix: HashIds, prompt_tokens: Ints, block_tokens: int, adapter: Ints | None = None
) -> float:
    """Share (0 to 1) of prompt tokens in leading blocks that an earlier request had, too: of the same adapter, if
    given. Arrays are [num_requests]."""
    caches: dict[int, set[int]] = defaultdict(set)
    keys = [0] * len(prefix) if adapter is None else adapter.tolist()
    reused = 0
    for ids, prompt, key in zip(prefix, prompt_tokens.tolist(), keys, strict=True):
        seen = caches[key]
        hits = next((index for index, block in enumerate(ids) if block not in seen), len(ids))
        reused += min(hits * block_tokens, prompt)
        seen.update(ids)
    return reused / int(prompt_tokens.sum(dtype=np.int64))


def _reuse(trace: TraceTable) -> float | None:
    if trace.prefix is None:
        return None
    adapter = None if trace.adapter is None else trace.adapter.codes
    return prefix_reuse_fraction(trace.prefix, trace.prompt_tokens, trace.prefix_block_tokens, adapter)


def _over(trace: TraceTable, max_model_len: int) -> float:
    total = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
    return float(np.mean(total > max_model_len))


def _lengths(tokens: Ints) -> LengthSummary:
    p50, p90, p99 = (float(value) for value in np.percentile(tokens, [50, 90, 99]))
    return LengthSummary(float(tokens.mean()), p50, p90, p99, int(tokens.max()))
