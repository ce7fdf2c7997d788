"""Carrying a calibration over to GPUs that it was not measured on."""

from __future__ import annotations

import itertools

import pytest
from support.latency_cases import Engine, calibrated, decode, make_latency, mixed

from simlora.latency.calibration import Calibration
from simlora.latency.scaling import BLOCK_COSTS
from simlora.latency.store import load_calibration
from simlora.scenario.gpu import GPUS, GpuSpec

OLDER = "0.8.5"
"""Its calibration has rows of LoRA kernels apart from their blocks."""


def on(gpu: str) -> Calibration:
    return calibrated(GPUS[gpu], Engine(version=OLDER))[0]


@pytest.mark.parametrize("gpu", ["h200-141gb", "rtx-4090"])
def test_rows_of_lora_kernels_go_by_bandwidth_and_blocks_by_multiprocessors(gpu: str) -> None:
    base, scaled = load_calibration("nvidia-h100"), on(gpu)
    old, new = base.terms.lora_kernels.parameters, scaled.terms.lora_kernels.parameters
    assert old.row_bytes_per_s is not None and new.row_bytes_per_s is not None
    bandwidth = GPUS[gpu].hbm_bytes_per_s / base.gpu.hbm_bytes_per_s
    assert new.row_bytes_per_s == pytest.approx(old.row_bytes_per_s * bandwidth)
    blocks = base.gpu.sm_count / GPUS[gpu].sm_count
    for name in BLOCK_COSTS:
        assert getattr(new, name) == pytest.approx(getattr(old, name) * blocks), name
    assert "lora_kernels" in scaled.extrapolated and scaled.terms.lora_kernels.basis == "scaled"


def test_kernels_without_rows_of_their_own_stay_within_an_architecture() -> None:
    scaled = calibrated(GPUS["h100-80gb"], Engine())[0]
    assert scaled.terms.lora_kernels == load_calibration("nvidia-h200").terms.lora_kernels


def test_a_gpu_with_more_of_everything_is_never_slower() -> None:
    """Among GPUs without a calibration of their architecture."""
    gpus = [gpu for gpu in GPUS.values() if gpu.architecture != "hopper"]
    pairs = [(a, b) for a, b in itertools.permutations(gpus, 2) if _at_most(a, b)]
    assert len(pairs) > 10
    for less, more in pairs:
        slow, fast = make_latency(gpu=less.name), make_latency(gpu=more.name)
        for plan in (decode(1), decode(128, context=2000), decode(32, 8), mixed(16, 1500), mixed(16, 1500, 4)):
            assert fast.price(plan).gpu_s <= slow.price(plan).gpu_s * (1 + 1e-12), (less.name, more.name, plan)


def _at_most(a: GpuSpec, b: GpuSpec) -> bool:
    return all(getattr(a, key) <= getattr(b, key) for key in ("hbm_bytes_per_s", "bf16_flops", "sm_count"))
