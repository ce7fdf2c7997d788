"""Says so where the kernels cannot be tested."""

from __future__ import annotations

import importlib.util

import pytest


def test_torch_and_triton_are_installed() -> None:
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the kernels' tests need {' and '.join(missing)}: pip install 'simlora[gpu]'")
    import simlora.kernels

    assert simlora.kernels.apply_lora
