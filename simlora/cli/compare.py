"""Commands that weigh alternatives against each other on the same requests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simlora.cli.common import ARGUMENTS, Override, ScenarioFile, VllmArgs, app, err, out, read_scenario
from simlora.errors import ConfigError


@app.command()
def compare(
    file: ScenarioFile = None,
    engines: Annotated[
        str | None,
        typer.Option(help="Engines, separated by commas; by default all but the naive baselines, and dedicated"),
    ] = None,
    from_vllm_args: VllmArgs = None,
    set_: Override = None,
    report: Annotated[Path | None, typer.Option(help="Folder for the comparison as Markdown, HTML and JSON")] = None,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write {engine: summary} as JSON")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed instead of the scenario's")] = None,
    check: Annotated[bool, typer.Option("--check", help="Verify the invariants at every step")] = False,
) -> None:
    """Play one scenario on several engines: cost, latency, and why they differ."""
    from simlora.plan.compare import as_json, compare_engines
    from simlora.plan.variants import DEDICATED
    from simlora.report.comparison import comparison_tables, comparison_texts, json_text
    from simlora.results.atomic_write import check_writable, write_texts, write_whole
    from simlora.scenario.engines import PUBLISHED

    every = (*PUBLISHED, DEDICATED)
    names = list(every) if engines is None else [name.strip() for name in engines.split(",") if name.strip()]
    if not names:
        raise ConfigError(ARGUMENTS, "--engines", engines, f"engines separated by commas, e.g. {','.join(every)}")
    scenario, notes = read_scenario(file, from_vllm_args, set_, seed)
    for line in notes:
        err.print(f"note: {line}")
    if report is not None:
        check_writable(report, "--report", folder=True)
    if json_out is not None:
        check_writable(json_out, "--json")
    with err.status("comparing") as status:
        comparison = compare_engines(scenario, names, lambda name: status.update(f"simulating {name}"), check)
    out.print(comparison_tables(comparison))
    data = as_json(comparison)
    if report is not None:
        write_texts(report, comparison_texts(comparison, data), "--report")
        out.print(f"wrote {report}")
    if json_out is not None:
        write_whole(json_out, json_text(data), "--json")
        out.print(f"wrote {json_out}")
