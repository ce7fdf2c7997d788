"""Commands that need a scenario or a run, and no server or GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import simlora
from simlora.cli.common import Override, ScenarioFile, VllmArgs, app, err, out, progress_of, read_scenario
from simlora.errors import ARGUMENTS, ConfigError
from simlora.scenario.trace_formats import TRACE_FORMATS


@app.command()
def run(
    file: ScenarioFile = None,
    from_vllm_args: VllmArgs = None,
    set_: Override = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Folder for summary, requests, time series, report")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed instead of the scenario's")] = None,
    check: Annotated[bool, typer.Option("--check", help="Verify the invariants at every step")] = False,
    step_by_step: Annotated[
        bool, typer.Option("--step-by-step", help="No coalescing of decode steps (slow, same result)")
    ] = False,
    decision: Annotated[bool, typer.Option(help="Try changes and recommend one")] = True,
    perfetto: Annotated[bool, typer.Option("--perfetto", help="Write trace.json.gz for ui.perfetto.dev")] = False,
) -> None:
    """Simulate a scenario: throughput, latency, SLO, cost, and what to change."""
    from simlora.plan.decision import decide
    from simlora.report.decision import decision_panel
    from simlora.report.terminal import run_tables
    from simlora.results.atomic_write import check_writable
    from simlora.results.files import check_folder
    from simlora.results.summary import summarize
    from simlora.sim.build import build_inputs
    from simlora.sim.simulate import simulate

    scenario, notes = read_scenario(file, from_vllm_args, set_, seed)
    if out_dir is not None:
        check_writable(check_folder(out_dir), "--out", folder=True)
    inputs = build_inputs(scenario)
    with progress_of(len(inputs.requests)) as progress:
        log = simulate(inputs, coalesce=not step_by_step, check=check, progress=progress)
    summary = summarize(log)
    for line in notes:
        err.print(f"note: {line}")
    for part in run_tables(summary, scenario):
        out.print(part)
    decided = decide(inputs, summary) if decision else None
    if decided is not None:
        out.print(decision_panel(decided))
    if out_dir is not None:
        _write(out_dir, log, summary, decided, perfetto)
        out.print(f"wrote {out_dir}")


def _write(folder: Path, log: Any, summary: dict[str, Any], decided: Any, perfetto: bool) -> None:
    from simlora.report.html import render_html
    from simlora.report.perfetto import write_trace
    from simlora.results.files import REPORT, TRACE, Writer, run_writers, text_writer, write_folder

    writers: dict[str, Writer] = run_writers(log, summary)
    writers[REPORT] = text_writer(lambda: render_html(summary, log, decided))
    if perfetto:
        writers[TRACE] = lambda path: write_trace(log, path)
    write_folder(folder, writers)


@app.command()
def memory(file: ScenarioFile = None, from_vllm_args: VllmArgs = None, set_: Override = None) -> None:
    """Show what takes a GPU's memory, and what binds."""
    from simlora.engines.fit import build_ledger, require_fit, scenario_shortage
    from simlora.engines.registry import engine_spec
    from simlora.memory.ledger import binding, ledger_rows
    from simlora.report.terminal import memory_table

    scenario, notes = read_scenario(file, from_vllm_args, set_, None)
    ledger = build_ledger(scenario)
    binds = binding(ledger, scenario_shortage(scenario, ledger))
    advice = engine_spec(scenario.engine.kind).memory_advice(scenario, ledger)
    out.print(memory_table(ledger_rows(ledger), binds, [*notes, *advice]))
    require_fit(scenario)


@app.command()
def trace(
    file: Annotated[Path, typer.Argument(help="Trace file, or folder of a recorded run")],
    format_: Annotated[str, typer.Option("--format", help=f"{', '.join(TRACE_FORMATS)} or auto")] = "auto",
    unit: Annotated[str | None, typer.Option(help="Unit of numeric time stamps: s, ms, us or ns")] = None,
    adapter_column: Annotated[str | None, typer.Option(help="Column that names the adapter")] = None,
    jitter: Annotated[bool, typer.Option("--jitter", help="Spread quantised stamps over the clock's tick")] = False,
    max_model_len: Annotated[int | None, typer.Option(help="Context length to hold the requests against")] = None,
    batch_size: Annotated[int, typer.Option(help="Batch for the expected number of distinct adapters")] = 32,
    convert: Annotated[Path | None, typer.Option(help="Write the trace as plain CSV")] = None,
) -> None:
    """Show what a trace holds, and convert it."""
    from simlora.report.terminal import trace_table
    from simlora.workload.traces.describe import describe_trace
    from simlora.workload.traces.reader import read_trace
    from simlora.workload.traces.simlora_csv import write_canonical
    from simlora.workload.traces.table import TraceOptions

    if unit not in (None, "s", "ms", "us", "ns"):
        raise ConfigError(ARGUMENTS, "--unit", unit, "one of: s, ms, us, ns")
    options = TraceOptions(format=format_, unit=unit, jitter=jitter, adapter_column=adapter_column)  # type: ignore[arg-type]
    table = read_trace(file, options)
    out.print(trace_table(describe_trace(table, max_model_len=max_model_len, batch_size=batch_size)))
    if convert is not None:
        write_canonical(table, convert)
        out.print(f"wrote {convert}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of scenario files."""
    from simlora.scenario.schema import json_schema

    print(json.dumps(json_schema(), indent=1))


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(help="Folder of a run, or its summary.json")],
    b: Annotated[Path, typer.Argument(help="Folder of another run, or its summary.json")],
) -> None:
    """Compare two runs."""
    from simlora.report.diff import diff_table
    from simlora.results.files import read_run, read_summary

    out.print(diff_table(read_summary(a), read_summary(b), runs=(read_run(a), read_run(b)), names=(str(a), str(b))))


@app.command()
def version() -> None:
    """Print the version."""
    print(simlora.__version__)


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
