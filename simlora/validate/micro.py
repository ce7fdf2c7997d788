"""Single measurements of a server: steady decode, lone prefills and adapter loads, measured and simulated.

Both sides take the same medians: over the repeats of a prefill without repeat 0, and over the repeats of a load's
phase. The simulated side runs the simulator on the requests that the recorder sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from simlora.runs.measurements import DecodeRow, LoadRow, PrefillRow
from simlora.runs.recorded import RecordedRun
from simlora.validate.micro_runs import decode_itl_s, lone_ttfts_s
from simlora.validate.options import ReplayOptions
from simlora.validate.rows import DECODE, LOAD, PREFILL


@dataclass(frozen=True)
class Item:
    """What was measured."""

    metric: str
    values: tuple[tuple[str, Any], ...]

    @property
    def key(self) -> dict[str, Any]:
        return dict(self.values)


def measured_medians(recorded: RecordedRun) -> dict[Item, float]:
    """Every single measurement of the run, in the order of its files."""
    decodes = {_decode_item(row): row.itl_p50_s for row in recorded.decodes}
    prefills = _medians(recorded.prefills, [row.ttft_s for row in recorded.prefills], _prefill_item, _after_first)
    loads = _medians(recorded.loads, [row.ttft_s for row in recorded.loads], _load_item)
    return {**decodes, **prefills, **loads}


def simulated_medians(recorded: RecordedRun, options: ReplayOptions, step_scale: float = 1.0) -> dict[Item, float]:
    """The same measurements made on the simulator.

    Raises:
        ConfigError: the server cannot be simulated.
    """
    decodes = {}
    for row in recorded.decodes:
        itl_s = decode_itl_s(recorded, row, options, step_scale)
        if itl_s is not None:
            decodes[_decode_item(row)] = itl_s
    prefills, loads = lone_ttfts_s(recorded, options, step_scale)
    return {
        **decodes,
        **_medians(recorded.prefills, prefills, _prefill_item, _after_first),
        **_medians(recorded.loads, loads, _load_item),
    }


def _medians(
    rows: Iterable[Any],
    values: Iterable[float],
    item: Callable[[Any], Item],
    counts: Callable[[Any], bool] | None = None,
) -> dict[Item, float]:
    groups: dict[Item, list[float]] = {}
    for row, value in zip(rows, values, strict=True):
        if counts is None or counts(row):
            groups.setdefault(item(row), []).append(value)
    return {key: median(group) for key, group in groups.items()}


def _after_first(row: PrefillRow) -> bool:
    """The first repeat may carry a cold load or a compilation."""
    return row.repeat > 0


def _decode_item(row: DecodeRow) -> Item:
    key = (
        ("batch", row.batch),
        ("distinct_adapters", row.distinct_adapters),
        ("rank", row.rank),
        ("prompt_tokens", row.prompt_tokens),
    )
    return Item(DECODE, key)


def _prefill_item(row: PrefillRow) -> Item:
    return Item(PREFILL, (("prompt_tokens", row.prompt_tokens), ("rank", row.rank)))


def _load_item(row: LoadRow) -> Item:
    return Item(LOAD, (("rank", row.rank), ("phase", row.phase)))
