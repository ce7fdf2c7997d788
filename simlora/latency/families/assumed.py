"""Families that nobody measured on the calibrated GPU: their costs from the measured ones, by what they have in common.

A kernel starts as fast as vLLM's shrink and expand do; weights stream as the LoRA kernels of this repository read them;
rows move as element-wise kernels move them; whole tiles are multiplied as GEMMs multiply. All of it is marked assumed.
"""

from __future__ import annotations

from simlora.latency.calibration import Calibration
from simlora.latency.calibration_engines import FamilyParameters, FamilyTerm

CACHE_OVER_MEMORY = 2.2
"""Rate of weights that the L2 cache serves, over that of the memory: 128 further rows of one adapter take 1.32 ms more
in one-row kernels (benchmarks/results/kernels-details-h200.json), 8.1 TB/s, where first reads reach 3.7 TB/s."""
MEMORY_SHARE = 0.87
"""Rate of first reads in those kernels over that of the base model's GEMMs."""


def assumed_family(name: str, calibration: Calibration) -> FamilyTerm:
    """Costs of one-row kernels (bgmv, mbgmv), tiles (sgmv, mbgmm) and grouped GEMM, from the calibration's other
    terms."""
    terms = calibration.terms
    memory = terms.operators.parameters.weight_bytes_per_s * MEMORY_SHARE
    tiled = name not in ("bgmv", "mbgmv")
    parameters = FamilyParameters(
        launch_s=terms.lora_kernels.parameters.launch_s,
        bytes_per_s=memory,
        cache_bytes_per_s=memory * CACHE_OVER_MEMORY,
        flops=terms.operators.parameters.gemm_flops if tiled else None,
        activation_bytes_per_s=terms.operators.parameters.activation_bytes_per_s,
    )
    return FamilyTerm(basis="assumed", parameters=parameters, note="from the calibration's measured terms")
