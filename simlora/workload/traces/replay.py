"""A trace as requests: its rate, how much of it, and which adapter each of them uses."""

from __future__ import annotations

import re
import zlib
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simlora.errors import ConfigError
from simlora.scenario.root import Scenario
from simlora.workload.adapter_table import AdapterTable, sample
from simlora.workload.request_table import RequestTable
from simlora.workload.rng import rng
from simlora.workload.traces.reader import rate_rps, read_trace
from simlora.workload.traces.table import Ints, Labels, TraceOptions, TraceTable
from simlora.workload.traces.text_file import resolved


def replayed(scenario: Scenario, adapters: AdapterTable) -> RequestTable:
    """Requests of the scenario's trace, before clipping to the context length."""
    workload = scenario.workload
    config = workload.trace
    assert config is not None, "called for a scenario with a trace"
    options = TraceOptions(
        format=config.format,
        unit=config.unit,
        jitter=config.jitter,
        failures=config.failures,
        adapter_column=config.adapter_column,
        seed=scenario.seed,
    )
    trace = read_trace(resolved(scenario, config.path), options)
    trace = scaled(trace, 1.0 if workload.scale_rate is None else workload.scale_rate)
    trace = first_part(trace, workload.duration_s, workload.limit)
    return trace_requests(trace, adapters, config.adapter_rule, scenario.seed)


def trace_requests(trace: TraceTable, adapters: AdapterTable, rule: str, seed: int) -> RequestTable:
    """The trace's rows as requests; adapters by map_adapters. Notes say what was dropped and assumed."""
    ids, note = map_adapters(trace, adapters, rule, seed)
    notes = [*map(str, trace.dropped), *trace.notes, note]
    if trace.rank is not None:
        other = int(np.count_nonzero(trace.rank != adapters.rank[ids]))
        if other:
            notes.append(f"{other} requests name another rank than their adapter has here, which is used")
    return RequestTable(
        arrival_s=trace.arrival_s,
        adapter=ids,
        prompt_tokens=trace.prompt_tokens,
        output_tokens=trace.output_tokens,
        prefix=trace.prefix,
        prefix_block_tokens=trace.prefix_block_tokens,
        notes=tuple(f"{trace.source}: {text}" for text in notes),
    )


def scaled(trace: TraceTable, scale_rate: float) -> TraceTable:
    """The trace with its request rate multiplied by scale_rate (2 = twice the load in half the time)."""
    if scale_rate == 1.0:
        return trace
    before = rate_rps(trace.arrival_s)
    trace = replace(trace, arrival_s=trace.arrival_s / scale_rate)
    change = "" if before is None else f": {before:.4g} -> {before * scale_rate:.4g} req/s"
    return trace.note(f"scale_rate {scale_rate:g}{change}")


def first_part(trace: TraceTable, duration_s: float | None, limit: int | None) -> TraceTable:
    """Arrivals before duration_s, at most `limit` of them; ConfigError if none is left."""
    keep = len(trace)
    if duration_s is not None:
        keep = int(np.searchsorted(trace.arrival_s, duration_s, side="left"))
    if not keep:
        allowed = f"above {trace.arrival_s[0]:g} s, when the first request arrives"
        raise ConfigError(trace.source, "workload.duration_s", duration_s, allowed)
    keep = min(keep, limit or keep)
    if keep == len(trace):
        return trace
    return trace.take(np.arange(keep)).note(f"the first {keep} of {len(trace)} requests are kept")


BASE_LABELS = ("", "0")
"""Names of the base model in a trace."""

RULES = ("sample", "hash", "round-robin")

# Spreadsheets and data frames write ids as floats where a cell of the column is empty.
_NUMBER = re.compile(r"([0-9]{1,9})(\.0*)?")


def map_adapters(trace: TraceTable, adapters: AdapterTable, rule: str, seed: int) -> tuple[Ints, str]:
    """(adapter ids, note that records where they come from).

    - sample: drawn from the adapters' popularity, request by request.
    - hash: requests of one session or tenant keep one adapter; without sessions, the row number is hashed.
    - round-robin: adapters in turn; the base model's share is drawn.

    A trace that names adapters is taken at its word, whatever the rule. Raises ConfigError for an adapter that the
    table does not have and for an unknown rule.
    """
    if rule not in RULES:
        raise ConfigError(trace.source, "adapter_rule", rule, f"one of {', '.join(RULES)}")
    if trace.adapter is not None and len(trace.adapter.names) > 1:
        return _named(trace, trace.adapter, adapters)
    if rule == "hash":
        return _hashed(trace, adapters, seed)
    if rule == "round-robin":
        return _round_robin(len(trace), adapters, seed)
    ids = sample(rng(seed, "base"), rng(seed, "popularity"), adapters.probability, len(trace))
    return ids, f"adapters: the trace names none; drawn by popularity from {adapters.count}, seed {seed}"


def _hashed(trace: TraceTable, adapters: AdapterTable, seed: int) -> tuple[Ints, str]:
    keys, what = [str(row) for row in trace.row.tolist()], "row numbers"
    if trace.group is not None:
        keys, what = list(trace.group.names), f"{len(np.unique(trace.group.codes))} sessions or tenants"
    uniforms = np.array([zlib.crc32(f"{seed}/{key}".encode()) for key in keys]) / 2.0**32
    bounds = np.cumsum(adapters.probability)
    last = int(np.flatnonzero(adapters.probability)[-1])
    ids = np.minimum(np.searchsorted(bounds, uniforms * bounds[-1], side="right"), last).astype(np.int32)
    note = f"adapters: the trace names none; {what} hashed onto {adapters.count} by popularity, seed {seed}"
    return ids if trace.group is None else ids[trace.group.codes], note


def _round_robin(size: int, adapters: AdapterTable, seed: int) -> tuple[Ints, str]:
    is_base = rng(seed, "base").random(size) < adapters.probability[0]
    turn = np.maximum(np.cumsum(~is_base) - 1, 0)
    ids = np.where(is_base, 0, turn % max(adapters.count, 1) + 1)
    return ids.astype(np.int32), f"adapters: the trace names none; {adapters.count} in turn (round-robin), seed {seed}"


def _named(trace: TraceTable, labels: Labels, adapters: AdapterTable) -> tuple[Ints, str]:
    ids = label_ids(labels, adapters.names)
    unknown = ((ids < 0) | (ids > adapters.count))[labels.codes]
    if unknown.any():
        first = int(np.argmax(unknown))
        value = labels.names[labels.codes[first]]
        allowed = f"one of the {adapters.count} adapters (adapters.count), or empty or 0 for the base model"
        raise ConfigError(trace.where(first), "adapter", value, allowed)
    distinct = int(np.count_nonzero(np.unique(ids[labels.codes])))
    how = "" if adapters.names or are_numbers(labels) else ", numbered by first appearance"
    return ids[labels.codes].astype(np.int32), f"adapters: {distinct} distinct, as the trace names them{how}"


def are_numbers(labels: Labels) -> bool:
    """Whether all labels that are given are adapter ids."""
    return all(_NUMBER.fullmatch(name) for name in labels.names[1:])


def label_ids(labels: Labels, names: tuple[str, ...] | None) -> npt.NDArray[np.int64]:
    """[num_requests], adapter id of each label; "" and "0" are the base model, -1 is a label that `names` lacks.

    Without `names`, labels are ids if all of them are numbers, else they are numbered by first appearance.
    """
    given = labels.names[1:]
    if names is not None:
        known = {"0": 0, **{name: index for index, name in enumerate(names, start=1)}}
        return np.array([0, *(known.get(name, -1) for name in given)], dtype=np.int64)
    if are_numbers(labels):
        return np.array([0, *(int(name.partition(".")[0]) for name in given)], dtype=np.int64)
    codes, first = np.unique(labels.codes, return_index=True)
    named = [code for code in codes[np.argsort(first)].tolist() if labels.names[code] not in BASE_LABELS]
    position = {code: index for index, code in enumerate(named, start=1)}
    return np.array([position.get(code, 0) for code in range(len(labels.names))], dtype=np.int64)


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
