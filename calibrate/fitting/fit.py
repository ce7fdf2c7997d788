"""From samples of a campaign to a calibration: measured terms fitted, engine terms carried over from a base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simlora.latency.calibration import Calibration, GpuId, Provenance, Term, Terms
from simlora.scenario.model import ModelSpec

from .attention import fit_attention
from .copies import fit_copies
from .core import TermFit, worst
from .links import fit_collectives
from .lora import fit_lora
from .operators import fit_operators
from .samples import Row, check_row

HELD_OUT_SEED = 20
FIXED_LOAD_COSTS = ("module_s", "mismatch_module_s", "disk_module_s", "disk_bytes_per_s", "overlapped")
"""What an engine's own code adds to on the host: recorded runs show it, copies alone do not."""


@dataclass(frozen=True)
class CampaignFit:
    """A calibration and how its measured terms came about."""

    calibration: Calibration
    fits: tuple[TermFit, ...]


def fit_campaign(
    rows: Sequence[Row],
    models: Mapping[str, ModelSpec],
    base: Calibration,
    gpu: GpuId,
    provenance: Provenance,
    name: str,
    seed: int = HELD_OUT_SEED,
    keep_load_costs: bool = True,
) -> CampaignFit:
    """Fit every term that the samples cover; the others are the base's, with its basis and a note saying so.

    models: every model that samples name. base: a calibration already carried over to this GPU. keep_load_costs: fixed
    costs of adapter loads stay the base's where it measured them on this GPU with an engine. Raises ConfigError for a
    row that is no sample.
    """
    for row in rows:
        check_row(row)
    terms, link = base.terms, gpu.gpu_link_bytes_per_s
    found = [
        fit_operators(rows, models, terms.operators.parameters, seed),
        fit_attention(rows, models, terms.attention.parameters, seed),
        fit_lora(rows, models, terms.lora_kernels.parameters, seed),
        fit_copies(rows, models, terms.copies.parameters, seed),
        fit_collectives(rows, next(iter(models.values())), link, terms.collectives.parameters, seed),
    ]
    fits = {fit.term: fit for fit in found if fit is not None}
    updated = {name: _term(term, fits.get(name), base.id) for name, term in terms if term is not None}
    updated["operators"] = _with_attention_start(updated["operators"], fits)
    same_gpu = base.gpu.name == gpu.name and "copies" not in base.extrapolated
    if keep_load_costs and "copies" in fits and terms.copies.basis == "measured" and same_gpu:
        updated["copies"] = _keep_load_costs(updated["copies"], terms.copies, base.id)
    calibration = base.model_copy(
        update={
            "id": name,
            "gpu": gpu,
            "provenance": provenance,
            "terms": Terms.model_validate({key: term.model_dump() for key, term in updated.items()}),
            "extrapolated": tuple(term for term in base.extrapolated if term not in fits),
        }
    )
    return CampaignFit(calibration, tuple(fits.values()))


def _term(old: Term, fit: TermFit | None, base: str) -> Any:
    """The fitted term, or the base's with a note."""
    if fit is None:
        note = f"not measured here: as in {base}" + (f" ({old.note})" if old.note else "")
        return old.model_copy(update={"note": note})
    return old.model_copy(
        update={
            "basis": "measured",
            "measured": fit.measured,
            "fit_error": fit.fit_error,
            "held_out_error": fit.held_out_error,
            "note": fit.note,
            "parameters": fit.parameters,
        }
    )


def _with_attention_start(operators: Any, fits: Mapping[str, TermFit]) -> Any:
    """The fixed time of an attention kernel belongs to a layer's fixed time: the attention term has no place for it."""
    if "operators" not in fits or "attention" not in fits:
        return operators
    start = fits["attention"].also["decode_s"]
    parameters = operators.parameters.model_copy(update={"layer_s": operators.parameters.layer_s + start})
    note = f"{operators.note}; layer_s holds {start * 1e6:.1f} us of attention kernels"
    return operators.model_copy(update={"parameters": parameters, "note": note})


def _keep_load_costs(new: Any, old: Any, base: str) -> Any:
    known = type(old.parameters).model_fields
    kept = {name: getattr(old.parameters, name) for name in FIXED_LOAD_COSTS if name in known}
    bare = new.parameters
    note = (
        f"{new.note}; costs of the engine's code as in {base}: bare copies take {bare.module_s * 1e6:.1f} us a pair, "
        f"bare reads {bare.disk_module_s * 1e6:.1f} us a pair and {bare.disk_bytes_per_s / 1e9:.2f} GB/s"
    )
    return new.model_copy(update={"parameters": bare.model_copy(update=kept), "note": note})


def summary(fit: CampaignFit) -> list[dict[str, Any]]:
    """One row a fitted term: errors as fractions, parameters, ranges, and the samples furthest from their fit."""
    return [
        {
            "term": found.term,
            "samples": len(found.points),
            "held_out": sum(point.held_out for point in found.points),
            "fit_error": found.fit_error,
            "held_out_error": found.held_out_error,
            "parameters": found.parameters.model_dump(),
            "measured": found.measured,
            "also": dict(found.also),
            "note": found.note,
            "worst": worst(found.points),
        }
        for found in fit.fits
    ]
