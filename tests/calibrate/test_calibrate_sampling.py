"""Statistics of repeated timings, and the rules for cold buffers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from simlora.calibrate.bench import MOST_COPIES, dry_bench, measured  # noqa: E402
from simlora.calibrate.lora_kernels import token_mapping  # noqa: E402
from simlora.calibrate.sampling import FEWEST_REPEATS, MOST_REPEATS, HostTimer, repeat, stats  # noqa: E402
from simlora.calibrate.session import SkipItemError  # noqa: E402


def test_percentiles_are_numpys_for_one_call() -> None:
    times = [5e-3, 1e-3, 2e-3, 4e-3, 3e-3]
    p20, p50, p80, n = stats(times, calls=10)
    assert (p20, p50, p80) == pytest.approx(np.percentile(times, (20, 50, 80)) / 10) and n == 5
    with pytest.raises(ValueError, match="no times"):
        stats([])


def test_repeats_stop_when_patience_ends_but_not_before_the_fewest() -> None:
    assert len(repeat(lambda: 1e-6, 1.0)) == MOST_REPEATS
    assert len(repeat(lambda: 10.0, 1.0)) == FEWEST_REPEATS
    assert len(repeat(lambda: 0.125, 1.0)) == 8
    assert len(repeat(lambda: 10.0, 1.0, fewest=1)) == 1


def test_a_timer_times_what_it_is_given() -> None:
    called = []
    result = HostTimer(0.0).wall(lambda: called.append(1))
    assert result.n == 1 and called == [1] and result.p20 > 0.0


def test_buffers_together_exceed_the_cache(tmp_path: Path) -> None:
    bench = dry_bench(tmp_path)
    size = bench.l2_bytes
    assert bench.copies(size) == 4
    assert bench.copies(100 * size) == 2
    assert bench.copies(1) == MOST_COPIES
    assert bench.copies(bench.memory_bytes) == 1
    with pytest.raises(SkipItemError, match="GiB of device memory"):
        bench.require_memory(2 * bench.memory_bytes)


def test_a_point_that_cannot_run_becomes_a_note(tmp_path: Path) -> None:
    def broken() -> None:
        raise NotImplementedError("no kernel for this shape")

    row = measured("gemm", dry_bench(tmp_path).timer.graph, broken, tokens=3)
    assert row == {"note": "gemm {'tokens': 3}: NotImplementedError: no kernel for this shape"}


def test_token_mappings_hold_the_adapters_asked_for() -> None:
    even = token_mapping(64, 8)
    assert torch.bincount(even.long()).tolist() == [8] * 8
    mixed = token_mapping(64, 8, base_share=0.25)
    assert int((mixed < 0).sum()) == 16 and mixed[mixed >= 0].unique().numel() == 8
    skewed = token_mapping(512, 16, zipf=1.0)
    counts = torch.bincount(skewed.long(), minlength=16)
    assert counts.min() >= 1 and counts[0] == counts.max() and counts[0] > 3 * counts[15]
    assert torch.equal(skewed, token_mapping(512, 16, zipf=1.0))
