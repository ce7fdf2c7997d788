"""Which adapters a replay starts with.

A recording lists the residents that its requests use, oldest first, and only counts the others. Those others get
numbers above the requests' adapters, so that slots and host memory are as full as they were. Where they stand in the
order of use is not known: they are spread evenly among the listed ones, each gap with the others first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simlora.engines.inputs import InitialAdapters
from simlora.errors import ConfigError
from simlora.runs.recorded import RecordedRequests, RecordedRun
from simlora.runs.run_file import AdapterName, Residents

RECORDED, COLD, ALL_HOST = "recorded", "cold", "all-host"


@dataclass(frozen=True)
class Start:
    """One assumption about the residents."""

    label: str
    """RECORDED, or for unknown residents COLD (none) or ALL_HOST (every adapter in host memory, none in a slot)."""
    initial: InitialAdapters
    others: int
    """Adapters count + 1 .. count + others are resident, and no request uses them."""


def starts(recorded: RecordedRun, slots: int, host: int) -> tuple[Start, ...]:
    """How a replay may begin: as recorded, or both extremes where it was not recorded and matters.

    Args:
        slots, host: max_loras and max_cpu_loras of the server.

    Raises:
        ConfigError: residents that do not fit, or that the run cannot have had.
    """
    requests, residents = recorded.requests, recorded.run.initial_adapters
    assert requests is not None, "called for a run with requests"
    if not requests.adapter.any():
        return (Start(RECORDED, InitialAdapters(), 0),)
    if residents is None:
        return Start(COLD, InitialAdapters(), 0), Start(ALL_HOST, InitialAdapters(host=_most_used(requests, host)), 0)
    return (_recorded(recorded.source, residents, requests, slots, host),)


def _recorded(source: str, residents: Residents, requests: RecordedRequests, slots: int, host: int) -> Start:
    """What is in a slot is in host memory, too, whether the recording says so or not."""
    count = requests.adapters.count
    gpu_ids = _ids(source, "initial_adapters.gpu", residents.gpu, requests)
    host_ids = _ids(source, "initial_adapters.host", residents.host, requests)
    for key, used, limit in (
        ("gpu", len(gpu_ids) + residents.gpu_others, slots),
        ("host", len(host_ids) + residents.host_others, host),
    ):
        if used > limit:
            allowed = f"at most {limit} residents, the others included"
            raise ConfigError(source, f"initial_adapters.{key}", used, allowed)
    others = max(residents.gpu_others, residents.host_others)
    # The newest of the others in host memory are those in slots.
    other_ids = range(count + 1, count + others + 1)
    gpu = spread(gpu_ids, other_ids[others - residents.gpu_others :])
    cached = [*spread(host_ids, other_ids), *(adapter for adapter in gpu_ids if adapter not in host_ids)]
    return Start(RECORDED, InitialAdapters(tuple(gpu), tuple(cached[-host:])), others)


def spread(listed: Sequence[int], others: Sequence[int]) -> list[int]:
    """Both in one order, the others spread evenly among the listed, before each of them."""
    merged: list[int] = []
    total = len(listed) + len(others)
    remaining = iter(others)
    for index, adapter in enumerate(listed, start=1):
        place = index * total // len(listed)
        while len(merged) < place - 1:
            merged.append(next(remaining))
        merged.append(adapter)
    return [*merged, *remaining]


def _ids(source: str, key: str, listed: Sequence[AdapterName], requests: RecordedRequests) -> list[int]:
    names, count = requests.adapters.names, requests.adapters.count
    ids = []
    for name in listed:
        adapter = names.index(str(name)) + 1 if names and str(name) in names else name
        if not isinstance(adapter, int) or isinstance(adapter, bool) or not 1 <= adapter <= count:
            raise ConfigError(source, key, name, "adapters by the numbers or names that requests.csv has for them")
        ids.append(adapter)
    if len(set(ids)) < len(ids):
        raise ConfigError(source, key, list(listed), "each adapter once")
    return ids


def _most_used(requests: RecordedRequests, host: int) -> tuple[int, ...]:
    """The adapters asked for most, as many as host memory holds; the most popular is the newest."""
    counts = np.bincount(requests.adapter, minlength=requests.adapters.count + 1)[1:]
    order = np.argsort(counts, kind="stable") + 1
    used = [int(adapter) for adapter in order if counts[adapter - 1]]
    return tuple(used[-host:])
