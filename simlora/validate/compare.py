"""Compares recorded runs with their simulations, metric by metric."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from simlora.results.metrics import METRICS
from simlora.runs.recorded import RecordedRun
from simlora.validate.micro import measured_medians, simulated_medians
from simlora.validate.options import ReplayOptions
from simlora.validate.replay import measured_metrics, replays
from simlora.validate.residents import RECORDED
from simlora.validate.rows import LONGER, SHORTER, Row

T = TypeVar("T")


def compare(recorded: RecordedRun, options: ReplayOptions | None = None) -> list[Row]:
    """All rows of one run: the metrics of its requests, then its single measurements.

    Raises:
        ConfigError: the run cannot be simulated.
    """
    options = options or ReplayOptions()
    rows = list(_request_rows(recorded, options)) if recorded.requests is not None else []
    return [*rows, *_micro_rows(recorded, options)]


def _request_rows(recorded: RecordedRun, options: ReplayOptions) -> Iterator[Row]:
    measured = measured_metrics(recorded)
    for replay in replays(recorded, options):
        base, shorter, longer = _three(replay.metrics)
        key = {} if replay.start.label == RECORDED else {"initial_adapters": replay.start.label}
        for name in METRICS:
            yield Row(recorded.name, name, measured[name], base[name], shorter[name], longer[name], key)


def _micro_rows(recorded: RecordedRun, options: ReplayOptions) -> Iterator[Row]:
    measured = measured_medians(recorded)
    if not measured:
        return
    base, shorter, longer = _three(lambda scale: simulated_medians(recorded, options, scale))
    for item, value in measured.items():
        metric, key = item.metric, item.key
        yield Row(recorded.name, metric, value, base.get(item), shorter.get(item), longer.get(item), key)


def _three(simulated: Callable[[float], T]) -> tuple[T, T, T]:
    return simulated(1.0), simulated(SHORTER), simulated(LONGER)
