"""Service level: which requests met their objectives. Knows nothing of aggregates other than shares and rates."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from simlora.results.latency import Measured
from simlora.results.metrics import rate

Bools = npt.NDArray[np.bool_]


def met_slo(measured: Measured) -> Bools:
    """Per OFFERED request: completed, TTFT within slo.ttft_s and, with two tokens or more, TPOT within slo.tpot_s.

    An objective that the scenario does not set is met by every completed request.
    """
    slo = getattr(measured.log.scenario, "slo", None)
    ttft_s, tpot_s = getattr(slo, "ttft_s", None), getattr(slo, "tpot_s", None)
    met = measured.completed.copy()
    if ttft_s is not None:
        met &= np.nan_to_num(measured.ttft_s, nan=np.inf) <= ttft_s
    if tpot_s is not None:
        met &= np.isnan(measured.tpot_s) | (measured.tpot_s <= tpot_s)
    return met


def slo_block(measured: Measured) -> dict[str, Any]:
    """{attainment, goodput_rps}: share of offered requests that met the SLO, and their rate over the span."""
    met = met_slo(measured)
    count = int(np.count_nonzero(met))
    return {
        "attainment": count / len(met) if len(met) else None,
        "goodput_rps": rate(count, measured.span_s) if measured.span_s else (0.0 if len(met) else None),
    }
