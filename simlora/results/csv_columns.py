"""A CSV file from numpy columns, some rows at a time: long runs have millions of rows, whose text needs gigabytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROWS = 50_000
"""Rows that are text at a time."""


def write_columns(path: Path, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write a header and one row per index of the columns, with Unix line ends.

    NaN is an empty cell; floats are written so that they read back exactly. Text must need no quotes.
    """
    length = min((len(column) for column in columns.values()), default=0)
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(",".join(columns) + "\n")
        for begin in range(0, length, ROWS):
            cells = [_texts(column[begin : begin + ROWS]) for column in columns.values()]
            file.write("\n".join(map(",".join, zip(*cells, strict=True))) + "\n")


def _texts(values: npt.NDArray[Any]) -> list[str]:
    texts = list(map(str, values.tolist()))
    if values.dtype.kind == "f":
        for index in np.flatnonzero(np.isnan(values)).tolist():
            texts[index] = ""
    return texts
