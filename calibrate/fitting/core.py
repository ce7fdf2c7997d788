"""What every fit of a term shares: held-out samples, least squares in logarithms, and the report of the errors."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from simlora.latency.calibration import Part, Range

from .samples import Row

Array = NDArray[np.float64]
Predict = Callable[[Mapping[str, float]], Array]
"""Parameters -> seconds of every sample."""

HELD_OUT_SHARE = 0.2
FEWEST_SAMPLES = 5
SOFT_ERROR = 0.1
"""Relative error from which a sample counts less than its square: one odd kernel must not bend a term."""
STRAY = 20.0
"""Log units from its start at which a parameter costs as much as one such error: it holds what no sample tells."""


class Point(NamedTuple):
    """One sample beside its fit, for reports and plots. x is the size named by the term's axis."""

    op: str
    series: str
    x: float
    measured_s: float
    fitted_s: float
    held_out: bool


@dataclass(frozen=True)
class TermFit:
    """A term's parameters with how well they hold. Errors are RMS relative errors."""

    term: str
    parameters: Part
    measured: dict[str, Range]
    fit_error: float
    held_out_error: float | None
    note: str
    axis: str
    points: tuple[Point, ...]
    also: Mapping[str, float]
    """Fitted by the way and not part of the term, in seconds or as its name says."""


def held_out_mask(count: int, seed: int, term: str) -> NDArray[np.bool_]:
    """True for the fifth of the samples that a fit does not see; the draw depends on seed and term alone."""
    mask = np.zeros(count, dtype=bool)
    if count < FEWEST_SAMPLES:
        return mask
    generator = np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(term.encode())]))
    mask[generator.permutation(count)[: max(1, round(HELD_OUT_SHARE * count))]] = True
    return mask


def relative_rms(fitted: Array, measured: Array) -> float:
    """RMS of fitted / measured - 1; 0 for no samples."""
    return float(np.sqrt(np.mean((fitted / measured - 1.0) ** 2))) if len(measured) else 0.0


def held_out_rms(fitted: Array, measured: Array, mask: NDArray[np.bool_]) -> float | None:
    """RMS relative error of the samples held out; None where none was."""
    return relative_rms(fitted[mask], measured[mask]) if mask.any() else None


def seconds(rows: Sequence[Row]) -> Array:
    """Medians."""
    return np.array([row["p50"] for row in rows], dtype=float)


def fit_positive(
    predict: Predict,
    measured: Array,
    start: Mapping[str, float],
    weights: Array | None = None,
) -> dict[str, float]:
    """Positive parameters with the least squared relative errors, so that a sum of their terms grows with each size.

    Solved in logarithms of parameters and of seconds, from `start`. A parameter that the samples say nothing about
    stays there: straying by STRAY log units costs as much as one sample that is SOFT_ERROR off.
    """
    names = list(start)
    origin = np.log([start[name] for name in names])
    scale = np.ones(len(measured)) if weights is None else weights

    def residuals(x: Array) -> Array:
        fitted = predict(dict(zip(names, np.exp(x).tolist(), strict=True)))
        errors = np.log(np.maximum(fitted, 1e-12) / measured) / SOFT_ERROR
        return np.concatenate([scale * errors, (x - origin) / STRAY])

    solution = least_squares(residuals, origin, loss="soft_l1", x_scale=1.0, max_nfev=200).x
    return dict(zip(names, np.exp(solution).tolist(), strict=True))


def spans(rows: Sequence[Row], **columns: str) -> dict[str, Range]:
    """Variable -> lowest and highest value among the rows; keyword = variable, value = column."""
    found: dict[str, Range] = {}
    for variable, column in columns.items():
        values = [float(row[column]) for row in rows if column in row]
        if values:
            found[variable] = (min(values), max(values))
    return found


def points(
    rows: Sequence[Row], fitted: Array, mask: NDArray[np.bool_], x: Callable[[Row], float], series: Callable[[Row], str]
) -> tuple[Point, ...]:
    """Rows beside their fit."""
    return tuple(
        Point(str(row["op"]), series(row), float(x(row)), float(row["p50"]), float(value), bool(out))
        for row, value, out in zip(rows, fitted.tolist(), mask.tolist(), strict=True)
    )


def worst(found: Sequence[Point], count: int = 5) -> list[dict[str, Any]]:
    """The samples furthest from their fit."""
    ordered = sorted(found, key=lambda p: -abs(np.log(p.fitted_s / p.measured_s)))
    return [{**p._asdict(), "error": p.fitted_s / p.measured_s - 1.0} for p in ordered[:count]]
