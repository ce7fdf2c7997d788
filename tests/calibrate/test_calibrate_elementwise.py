"""The fused element-wise kernels against plain torch, in Triton's interpreter."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from simlora.calibrate import elementwise  # noqa: E402

if not triton.knobs.runtime.interpret:
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)

TOKENS, WIDTH = 3, 48
TOLERANCE = 1e-2


def _close(a, b) -> None:
    assert float((a.float() - b.float()).norm() / b.float().norm()) < TOLERANCE


def test_add_norm() -> None:
    torch.manual_seed(0)
    x, residual, weight = torch.randn(TOKENS, WIDTH), torch.randn(TOKENS, WIDTH), torch.randn(WIDTH)
    expected_residual, expected = residual.clone(), torch.empty_like(x)
    elementwise.add_norm(x, expected_residual, weight, expected)
    out = torch.empty_like(x)
    elementwise._add_norm[(TOKENS,)](x, residual, weight, out, WIDTH=WIDTH, BLOCK=64, EPS=elementwise.EPSILON)
    _close(out, expected)
    _close(residual, expected_residual)


def test_silu_mul() -> None:
    torch.manual_seed(0)
    gate_up, expected, out = torch.randn(TOKENS, 2 * WIDTH), torch.empty(TOKENS, WIDTH), torch.zeros(TOKENS, WIDTH)
    elementwise.silu_mul(gate_up, expected)
    elementwise._silu_mul[(TOKENS, 2)](gate_up, out, WIDTH, BLOCK=32)
    _close(out, expected)


@pytest.mark.parametrize("heads", [(4, 2), (3, 1)])
def test_rope_and_cache(heads: tuple[int, int]) -> None:
    torch.manual_seed(0)
    queries, keys, half = *heads, 8
    total = queries + 2 * keys
    qkv, angle = torch.randn(TOKENS, total * 2 * half), torch.rand(TOKENS, half)
    angles = (angle.cos(), angle.sin())
    expected_qkv, expected_cache = qkv.clone(), torch.empty(TOKENS, 2 * keys * 2 * half)
    elementwise.rope_and_cache(expected_qkv, angles, expected_cache, heads)
    cache = torch.full_like(expected_cache, float("nan"))
    elementwise._rope[(TOKENS,)](qkv, *angles, cache, queries + keys, HEADS=total, Q_HEADS=queries, HALF=half, BLOCK=8)
    _close(qkv, expected_qkv)
    _close(cache, expected_cache)
    pairs = expected_cache.view(TOKENS, 2 * keys, 2, half)[:, :keys]
    original = qkv.view(TOKENS, total, 2, half)[:, queries : queries + keys]
    _close(pairs.norm(dim=2), original.norm(dim=2))  # a rotation keeps lengths, and keys stay in place in qkv
