"""The adapters that a trace itself describes: by its adapter and rank columns, with the shares it shows."""

from __future__ import annotations

import numpy as np

from simlora.errors import ConfigError
from simlora.workload.adapters import AdapterTable
from simlora.workload.mapping import are_numbers, label_ids
from simlora.workload.trace import Ints, Labels, TraceTable


def adapters_from_trace(trace: TraceTable, default_rank: int | None = None) -> AdapterTable:
    """Adapters 1 .. the largest id in the trace (or one per name), so that map_adapters gives every row its own.

    A trace without ranks gets default_rank. Ids that no row uses get default_rank, too, or the smallest rank there is.
    Raises ConfigError where ranks are missing, or two rows disagree on the rank of an adapter.
    """
    labels = trace.adapter or Labels(np.zeros(len(trace), dtype=np.int32), ("",))
    by_label = label_ids(labels, None)
    ids = by_label[labels.codes]
    count = int(ids.max())
    names = None if are_numbers(labels) else _names(labels, by_label, count)
    shares = np.bincount(ids, minlength=count + 1) / len(ids)
    return AdapterTable(count, _ranks(trace, ids, count, default_rank), shares, names)


def _names(labels: Labels, by_label: np.ndarray[tuple[int], np.dtype[np.int64]], count: int) -> tuple[str, ...]:
    names = [""] * (count + 1)
    for name, adapter in zip(labels.names, by_label.tolist(), strict=True):
        names[adapter] = name
    return tuple(names[1:])


def _ranks(
    trace: TraceTable, ids: np.ndarray[tuple[int], np.dtype[np.int64]], count: int, default_rank: int | None
) -> Ints:
    ranks = np.zeros(count + 1, dtype=np.int32)
    if trace.rank is not None:
        # Written backwards, so that the first row of an adapter decides and a later one that differs is the error.
        ranks[ids[::-1]] = trace.rank[::-1]
        ranks[0] = 0
        differs = (trace.rank != ranks[ids]) & (ids > 0)
        if differs.any():
            first = int(np.argmax(differs))
            allowed = f"{ranks[ids[first]]}, the rank of adapter {ids[first]} in an earlier row"
            raise ConfigError(trace.where(first), "rank", int(trace.rank[first]), allowed)
    used = ranks[ranks > 0]
    fallback = default_rank if default_rank is not None else (int(used.min()) if len(used) else None)
    if fallback is None and count:
        raise ConfigError(trace.source, "rank", None, "missing: the trace names adapters, but no ranks")
    ranks[1:][ranks[1:] == 0] = fallback or 0
    return ranks
