"""A campaign folder's results: the calibration, a report of the fit, and plots."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simlora.latency.calibration import Calibration, Provenance

from .base import DEFAULT_VERSION, base_calibration, identity, measured_gpu
from .device import DRY_GPU
from .fitting.families import fit_families
from .fitting.fit import HELD_OUT_SEED, CampaignFit, fit_campaign, summary
from .fitting.samples import noisy_share, of_op
from .grid import model_named
from .plots import write_plots
from .samples import CampaignFolder

CALIBRATION, REPORT, PLOTS = "calibration.json", "fit.json", "fit.png"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Options:
    """How samples become a calibration. name: its id; None = the GPU's. base: engine terms; None = nearest shipped."""

    name: str | None = None
    base: str | None = None
    engine_version: str = DEFAULT_VERSION
    keep_load_costs: bool = True


def write_results(folder: CampaignFolder, options: Options) -> CampaignFit | None:
    """Fit what the samples allow and write calibration.json, fit.json and fit.png; None where nothing can be fitted."""
    rows, machines = folder.rows(), folder.provenance()
    if not rows or not machines:
        return None
    facts = _main_machine(machines, rows)
    spec, note = measured_gpu(facts, rows)
    models = {name: model_named(name) for name in dict.fromkeys(["llama-3.1-8b", *_models(rows)])}
    base = base_calibration(spec, options.base, options.engine_version)
    fit = fit_campaign(
        rows,
        models,
        base,
        identity(spec),
        _provenance(facts, machines, base),
        options.name or "-".join(str(facts["gpu"]).lower().split()),
        keep_load_costs=options.keep_load_costs,
    )
    if not fit.fits:
        return None
    dry = "dry run on a CPU: no figure here says anything about a GPU" if facts["gpu"] == DRY_GPU else ""
    notes = tuple(filter(None, (dry, note, _yardstick(_of_machine(rows, facts["id"])))))
    fit = CampaignFit(fit.calibration.model_copy(update={"notes": (*fit.calibration.notes, *notes)}), fit.fits)
    _write_json(folder.path / CALIBRATION, fit.calibration.model_dump(mode="json", by_alias=True))
    _write_json(folder.path / REPORT, _report(fit, rows, models))
    write_plots(fit.fits, folder.path / PLOTS)
    return fit


def _models(rows: Sequence[Row]) -> list[str]:
    return sorted({row["model"] for row in rows if "model" in row})


def _main_machine(machines: Sequence[Row], rows: Sequence[Row]) -> Row:
    """The machine with the most samples."""
    counts = Counter(row["provenance"] for row in rows)
    return max(machines, key=lambda machine: counts[machine["id"]])


def _provenance(main: Row, machines: Sequence[Row], base: Calibration) -> Provenance:
    """The main machine's; all are named in source_runs. Host terms, and so host factors, are the base's."""
    return Provenance(
        host_cpu=f"{main['host_cpu']}, {main['host_cores']} cores",
        driver=main["driver"],
        versions=main["versions"],
        date=str(main["date"])[:10],
        command=main["command"],
        source_runs=tuple(machine["id"] for machine in machines),
        host_factors=base.provenance.host_factors,
    )


def _of_machine(rows: Sequence[Row], name: str) -> list[Row]:
    """The rows of one machine: a later session may have been on a faster or slower host."""
    return [row for row in rows if row["provenance"] == name]


def _yardstick(rows: Sequence[Row]) -> str:
    """How fast the host's interpreter and launches were: what engine terms of another host can be compared by."""
    loops = of_op(rows, "python_loop")
    if not loops:
        return ""
    launches = {row["launcher"]: row["p50"] * 1e6 for row in of_op(rows, "launch", regime="eager")}
    parts = [f"{name} launch {value:.1f} us" for name, value in sorted(launches.items())]
    return ", ".join([f"host: Python loop {np.median([row['p50'] for row in loops]) * 1e9:.0f} ns a turn", *parts])


def _report(fit: CampaignFit, rows: Sequence[Row], models: Mapping[str, Any]) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["op"]] = counts.get(row["op"], 0) + 1
    return {
        "calibration": fit.calibration.id,
        "samples": counts,
        "noisy_share": noisy_share(rows),
        "terms": summary(fit),
        "lora_families": {
            name: term.model_dump(mode="json")
            for name, term in fit_families(rows, models, fit.calibration, HELD_OUT_SEED).items()
        },
        "copies_under_compute": [
            {key: row[key] for key in ("compute", "bytes", "slowdown")} for row in of_op(rows, "compute_under_h2d")
        ],
    }


def _write_json(path: Path, data: Any) -> None:
    """Written beside and renamed, so that a reader never sees half a file."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(data, indent=1) + "\n")
    part.replace(path)
