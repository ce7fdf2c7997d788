"""Which adapter each request of a trace uses: the one it names, or one chosen by a seeded, recorded rule."""

from __future__ import annotations

import re
import zlib

import numpy as np
import numpy.typing as npt

from simlora.errors import ConfigError
from simlora.workload import popularity
from simlora.workload.adapters import AdapterTable
from simlora.workload.rng import rng
from simlora.workload.trace import Ints, Labels, TraceTable

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
    ids = popularity.sample(rng(seed, "base"), rng(seed, "popularity"), adapters.probability, len(trace))
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
    """Adapter id of each label; "" and "0" are the base model, -1 is a label that `names` lacks.

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
