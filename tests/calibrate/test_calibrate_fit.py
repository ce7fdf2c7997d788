"""Fits on samples of a machine whose true parameters are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import synthetic as truth
from simlora.calibrate.fitting.attention import fit_attention
from simlora.calibrate.fitting.copies import fit_copies
from simlora.calibrate.fitting.core import TermFit, held_out_mask
from simlora.calibrate.fitting.families import fit_families
from simlora.calibrate.fitting.fit import CampaignFit, fit_campaign, summary
from simlora.calibrate.fitting.links import fit_collectives
from simlora.calibrate.fitting.lora import fit_lora
from simlora.calibrate.fitting.operators import fit_operators
from simlora.calibrate.fitting.samples import check_row, noisy_share

from simlora.errors import ConfigError
from simlora.latency.calibration import Calibration, Provenance

SEED, NOISE, RECOVERED = 20, 0.02, 0.05
Rows = list[dict[str, Any]]


def _operators(rows: Rows) -> TermFit | None:
    return fit_operators(rows, truth.MODELS, truth.BASE.terms.operators.parameters, SEED)


def _attention(rows: Rows) -> TermFit | None:
    return fit_attention(rows, truth.MODELS, truth.BASE.terms.attention.parameters, SEED)


def _lora(rows: Rows) -> TermFit | None:
    return fit_lora(rows, truth.MODELS, truth.BASE.terms.lora_kernels.parameters, SEED)


def _copies(rows: Rows) -> TermFit | None:
    return fit_copies(rows, truth.MODELS, truth.BASE.terms.copies.parameters, SEED)


def _collectives(rows: Rows) -> TermFit | None:
    model, template = truth.MODELS["llama-3.1-8b"], truth.BASE.terms.collectives.parameters
    return fit_collectives(rows, model, truth.LINK, template, SEED)


FITS: list[tuple[Callable[[Rows], TermFit | None], Callable[[], Rows], Any]] = [
    (_operators, truth.operator_rows, truth.OPERATORS),
    (_attention, truth.attention_rows, truth.ATTENTION),
    (_lora, truth.lora_rows, truth.LORA),
    (_copies, truth.copy_rows, truth.COPIES),
    (_collectives, truth.collective_rows, truth.COLLECTIVES),
]
NAMES = ["operators", "attention", "lora_kernels", "copies", "collectives"]


def _fitted(fit: Callable[[Rows], TermFit | None], rows: Rows) -> TermFit:
    found = fit(rows)
    assert found is not None
    return found


@pytest.mark.parametrize(("fit", "make", "true"), FITS, ids=NAMES)
def test_true_parameters_are_recovered(fit: Any, make: Any, true: Any) -> None:
    found = _fitted(fit, truth.finish(make()))
    for name, value in true.model_dump().items():
        assert getattr(found.parameters, name) == pytest.approx(value, rel=RECOVERED), name
    assert found.fit_error < 0.01 and found.held_out_error is not None and found.held_out_error < 0.01


@pytest.mark.parametrize(("fit", "make", "true"), FITS, ids=NAMES)
def test_noise_shows_in_the_held_out_error(fit: Any, make: Any, true: Any) -> None:
    found = _fitted(fit, truth.finish(make(), NOISE))
    assert found.held_out_error is not None and found.held_out_error < 5 * NOISE
    held_out = [point for point in found.points if point.held_out]
    assert 0.1 < len(held_out) / len(found.points) < 0.3
    errors = np.array([point.fitted_s / point.measured_s - 1.0 for point in found.points])
    assert 0.3 * NOISE < np.sqrt(np.mean(errors**2)) < 3 * NOISE


@pytest.mark.parametrize(("fit", "make", "true"), FITS, ids=NAMES)
def test_one_wild_sample_does_not_bend_a_term(fit: Any, make: Any, true: Any) -> None:
    if fit is _lora:
        pytest.skip("plain least squares: its terms are told apart by every sample")
    rows = truth.finish(make())
    rows[len(rows) // 2]["p50"] *= 5.0
    rows[len(rows) // 2]["p80"] *= 5.0
    clean, bent = _fitted(fit, truth.finish(make())), _fitted(fit, rows)
    for name, value in clean.parameters.model_dump().items():
        assert getattr(bent.parameters, name) == pytest.approx(value, rel=0.15), name


def _ascending(points: Sequence[Any]) -> bool:
    times = [p.fitted_s for p in sorted(points, key=lambda p: p.x)]
    return all(a <= b * (1 + 1e-12) for a, b in pairwise(times))


@pytest.mark.parametrize(("fit", "make", "true"), FITS, ids=NAMES)
def test_fitted_times_grow_with_size_even_on_noise(fit: Any, make: Any, true: Any) -> None:
    if fit is _lora:
        pytest.skip("vLLM's kernels change their split at 128 tokens, and become faster there")
    found = _fitted(fit, truth.finish(make(), noise=0.3))
    steps = [p for p in found.points if p.op != "dense_step"]  # beyond the captured sizes they sample fewer rows
    for series in {(p.op, p.series) for p in steps}:
        assert _ascending([p for p in steps if (p.op, p.series) == series]), series


def test_the_held_out_samples_depend_on_seed_and_term_alone() -> None:
    mask = held_out_mask(50, 1, "operators")
    assert mask.sum() == 10 and (mask == held_out_mask(50, 1, "operators")).all()
    assert (mask != held_out_mask(50, 2, "operators")).any() and (mask != held_out_mask(50, 1, "copies")).any()
    assert held_out_mask(4, 1, "operators").sum() == 0


def test_parameters_never_see_the_held_out_samples() -> None:
    rows = truth.finish(truth.collective_rows())
    clean = _fitted(_collectives, rows)
    for row, out in zip(rows, held_out_mask(len(rows), SEED, "collectives").tolist(), strict=True):
        if out:
            row["p50"] *= 3.0
    bent = _fitted(_collectives, rows)
    assert bent.parameters == clean.parameters and bent.held_out_error > 0.5


def test_padded_kernels_stand_in_for_vllms() -> None:
    found = _fitted(_lora, truth.finish(truth.lora_rows("padded")))
    assert found.parameters.expand_s == pytest.approx(truth.LORA.expand_s, rel=RECOVERED)
    assert "padded algorithm" in found.note
    both = truth.finish([*truth.lora_rows("padded"), *truth.lora_rows("vllm")])
    assert "vLLM's own kernels" in _fitted(_lora, both).note


@pytest.mark.parametrize(("fit", "make", "true"), FITS, ids=NAMES)
def test_too_few_samples_fit_nothing(fit: Any, make: Any, true: Any) -> None:
    assert fit([]) is None
    assert fit(truth.finish(make()[:1])) is None


def test_ranges_are_those_of_the_samples() -> None:
    operators = _fitted(_operators, truth.finish(truth.operator_rows()))
    assert operators.measured["tokens"] == (1.0, 2048.0) and operators.measured["hidden_size"] == (4096.0, 8192.0)
    assert operators.measured["tensor_parallel_size"] == (1.0, 8.0)
    lora = _fitted(_lora, truth.finish(truth.lora_rows()))
    assert lora.measured["max_loras"] == (8.0, 128.0) and lora.measured["max_lora_rank"] == (16.0, 64.0)
    attention = _fitted(_attention, truth.finish(truth.attention_rows()))
    assert attention.measured["context_tokens"] == (128.0, 128 * 8192.0)


def test_segmented_families_get_costs_of_their_own() -> None:
    rows = truth.finish(truth.lora_rows("simlora"), NOISE)
    for row in rows:  # seconds of a kernel of own rank: 4 us a launch and 3 TB/s of weights
        if row["op"] == "lora_step":
            row["p50"] = 32 * 8 * 4e-6 + row["adapters"] * row["slot_rank"] * 83_886_080 / 16 / 3e12
    found = fit_families(rows, truth.MODELS, truth.BASE, SEED)["simlora"]
    assert found.parameters.launch_s == pytest.approx(4e-6, rel=0.1)
    assert found.parameters.bytes_per_s == pytest.approx(3e12, rel=0.1)
    assert found.held_out_error is not None and found.held_out_error < 0.05


PROVENANCE = Provenance(
    host_cpu="a CPU", driver="1", versions={"torch": "2"}, date="2026-01-01", command="c", source_runs=("here",)
)


def _campaign(rows: Rows, **options: Any) -> CampaignFit:
    return fit_campaign(rows, truth.MODELS, truth.BASE, truth.BASE.gpu, PROVENANCE, "mine", **options)


def test_a_campaign_becomes_a_calibration_with_engine_terms_carried_over() -> None:
    parts = [truth.operator_rows(), truth.attention_rows(), truth.lora_rows(), truth.copy_rows()]
    fit = _campaign(truth.finish([row for part in parts for row in part]))
    read = Calibration.model_validate(fit.calibration.model_dump(mode="json", by_alias=True))
    assert read == fit.calibration and read.id == "mine" and read.provenance == PROVENANCE
    terms = read.terms
    assert {name for name, term in terms if term.basis == "measured" and term.held_out_error is not None} >= {
        "operators", "attention", "lora_kernels", "copies",
    }  # fmt: skip
    assert terms.host.parameters == truth.BASE.terms.host.parameters
    assert terms.host.note.startswith(f"not measured here: as in {truth.BASE.id}")
    assert terms.collectives.basis == truth.BASE.terms.collectives.basis
    assert {row["term"] for row in summary(fit)} == {"operators", "attention", "lora_kernels", "copies"}


def test_a_layer_holds_the_start_of_its_attention_kernel() -> None:
    fit = _campaign(truth.finish([*truth.operator_rows(), *truth.attention_rows()]))
    expected = truth.OPERATORS.layer_s + truth.DECODE_S
    assert fit.calibration.terms.operators.parameters.layer_s == pytest.approx(expected, rel=RECOVERED)


def test_fixed_load_costs_stay_those_of_an_engine_unless_bare_ones_are_asked_for() -> None:
    rows = truth.finish(truth.copy_rows())
    old = truth.BASE.terms.copies.parameters
    kept = _campaign(rows).calibration.terms.copies
    assert kept.parameters.module_s == old.module_s and kept.parameters.disk_bytes_per_s == old.disk_bytes_per_s
    assert kept.parameters.bytes_per_s == pytest.approx(truth.COPIES.bytes_per_s, rel=RECOVERED)
    assert "bare copies take" in kept.note
    bare = _campaign(rows, keep_load_costs=False).calibration.terms.copies.parameters
    assert bare.module_s == pytest.approx(truth.COPIES.module_s, rel=RECOVERED)


def test_a_row_that_is_no_sample_is_refused_by_name() -> None:
    (good,) = truth.finish([{"op": "norm", "bytes": 8, "s": 1e-6}])
    check_row(good)
    for key, value in (("unit", "ms"), ("p50", float("nan")), ("p20", 1.0), ("p80", -1.0), ("n", 0)):
        with pytest.raises(ConfigError, match="samples: "):
            check_row({**good, key: value})
    with pytest.raises(ConfigError, match="provenance"):
        check_row({key: value for key, value in good.items() if key != "provenance"})
    with pytest.raises(ConfigError):
        _campaign([{**good, "unit": "ms"}])


def test_noisy_samples_are_counted() -> None:
    (quiet,) = truth.finish([{"op": "norm", "s": 1e-6}])
    assert noisy_share([quiet, {**quiet, "p80": 2 * quiet["p20"]}]) == 0.5 and noisy_share([]) == 0.0
