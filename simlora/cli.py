"""The command line. The only place that prints, exits, or turns seconds into milliseconds for a person."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import simlora
from simlora.errors import ConfigError, SimloraError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

ScenarioFile = Annotated[Path | None, typer.Argument(help="Scenario YAML file")]
VllmArgs = Annotated[str | None, typer.Option(help='Flags of a server you run: "serve MODEL --enable-lora ..."')]
Override = Annotated[list[str] | None, typer.Option("--set", help="Change a key: --set engine.max_loras=16")]
BIG_RUN = 20_000
"""Requests from which a run shows a progress bar."""


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
    from simlora.results.files import check_folder
    from simlora.results.summary import summarize
    from simlora.sim.build import build_inputs
    from simlora.sim.simulate import simulate

    scenario, notes = _scenario(file, from_vllm_args, set_, seed)
    if out_dir is not None:
        check_folder(out_dir)
    inputs = build_inputs(scenario)
    with _progress(len(inputs.requests)) as progress:
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
    from simlora.report.files import report_writers
    from simlora.results.files import run_writers, write_folder

    write_folder(folder, {**run_writers(log, summary), **report_writers(log, summary, decided, perfetto)})


@app.command()
def memory(file: ScenarioFile = None, from_vllm_args: VllmArgs = None, set_: Override = None) -> None:
    """Show what takes a GPU's memory, and what binds."""
    from simlora.memory.fit import build_ledger, require_fit
    from simlora.memory.rows import binding, ledger_rows
    from simlora.plan.advice import memory_advice
    from simlora.report.memory import memory_table

    scenario, notes = _scenario(file, from_vllm_args, set_, None)
    ledger = build_ledger(scenario)
    out.print(memory_table(ledger_rows(ledger), binding(ledger), [*notes, *memory_advice(scenario, ledger)]))
    require_fit(scenario)


@app.command()
def trace(
    file: Annotated[Path, typer.Argument(help="Trace file, or folder of a recorded run")],
    format_: Annotated[
        str, typer.Option("--format", help="azure, burstgpt, mooncake, vllm-bench, simlora-run, csv or auto")
    ] = "auto",
    unit: Annotated[str | None, typer.Option(help="Unit of numeric time stamps: s, ms, us or ns")] = None,
    adapter_column: Annotated[str | None, typer.Option(help="Column that names the adapter")] = None,
    jitter: Annotated[bool, typer.Option("--jitter", help="Spread quantised stamps over the clock's tick")] = False,
    max_model_len: Annotated[int | None, typer.Option(help="Context length to hold the requests against")] = None,
    batch_size: Annotated[int, typer.Option(help="Batch for the expected number of distinct adapters")] = 32,
    convert: Annotated[Path | None, typer.Option(help="Write the trace as plain CSV")] = None,
) -> None:
    """Show what a trace holds, and convert it."""
    from simlora.report.trace import trace_table
    from simlora.workload.describe import describe_trace
    from simlora.workload.export import write_canonical
    from simlora.workload.trace import TraceOptions
    from simlora.workload.trace_reader import read_trace

    if unit not in (None, "s", "ms", "us", "ns"):
        raise ConfigError("<arguments>", "--unit", unit, "one of: s, ms, us, ns")
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
def validate(
    runs: Annotated[list[Path], typer.Argument(help="Folders of recorded runs")],
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the comparison as JSON")] = None,
    plots: Annotated[
        Path | None, typer.Option("--plots", help="Folder for plots of measured against simulated")
    ] = None,
    calibration: Annotated[str | None, typer.Option(help="Calibration by name or path")] = None,
) -> None:
    """Simulate recorded runs and compare."""
    from simlora.validate.command import validate as compare
    from simlora.validate.report import write_json
    from simlora.validate.table import LEGEND, measurement_table, run_table

    report = compare(runs, calibration=calibration)
    if report.of_requests():
        out.print(run_table(report.of_requests()))
    if report.of_measurements():
        out.print(measurement_table(report.of_measurements()))
    out.print(LEGEND)
    for note in report.notes:
        out.print(f"note: {note}")
    if json_out is not None:
        write_json(report.rows, json_out)
    if plots is not None:
        from simlora.validate.plots import write_plots

        write_plots(runs, plots, calibration=calibration)


@app.command()
def record(
    file: Annotated[Path, typer.Argument(help="Scenario YAML file: what to send")],
    url: Annotated[str, typer.Option(help="Address of an OpenAI-compatible server, e.g. http://localhost:8000")],
    out_dir: Annotated[Path, typer.Option("--out", help="Folder of the recorded run")],
    set_: Override = None,
    model: Annotated[
        str | None, typer.Option(help="Base model's name on the server; default: the one it lists")
    ] = None,
    adapters: Annotated[str | None, typer.Option(help="Adapter names: a pattern such as tenant-{id}, or a,b,c")] = None,
    text: Annotated[bool, typer.Option("--text", help="Send words instead of token ids")] = False,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds that one request may take")] = 600.0,
    cold: Annotated[bool, typer.Option("--cold", help="The server has just started: no adapter is in memory")] = False,
) -> None:
    """Drive a real server with a scenario's requests and record what it did."""
    from simlora.validate.record import RecordOptions
    from simlora.validate.record import record as drive_server

    scenario, _ = _scenario(file, None, set_, None)
    names = adapters.split(",") if adapters is not None and "{id}" not in adapters else adapters
    options = RecordOptions(
        model=model,
        adapters=names,
        prompts="text" if text else "token-ids",
        timeout_s=timeout_s,
        initial_adapters="none" if cold else "unknown",
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)  # an interrupted recording keeps what it has
    done = drive_server(url, scenario, out_dir, options)
    out.print(f"recorded {done.completed:,} of {done.offered:,} requests in {done.folder}")
    for kind, count in done.failures.items():
        out.print(f"failed: {count:,} {kind}")
    if done.max_lag_s > 0.05:
        out.print(f"note: requests left up to {done.max_lag_s:.2f} s late: this client is too slow for the rate")


@app.command()
def version() -> None:
    """Print the version."""
    print(simlora.__version__)


def _scenario(
    file: Path | None, vllm_args: str | None, overrides: list[str] | None, seed: int | None
) -> tuple[Any, tuple[str, ...]]:
    """The scenario that the arguments describe, and notes about how it came about."""
    import yaml

    from simlora.scenario import changed, load_scenario
    from simlora.scenario.vllm_args import scenario_from_vllm_args
    from simlora.scenario.yaml_file import read_yaml

    notes: tuple[str, ...] = ()
    if vllm_args is not None:
        base = read_yaml(file) if file is not None else None
        scenario, notes = scenario_from_vllm_args(vllm_args, base, file.parent if file else None)
    elif file is not None:
        scenario = load_scenario(file)
    else:
        raise ConfigError("<arguments>", "FILE", None, "give a scenario file, or --from-vllm-args")
    changes: dict[str, Any] = {} if seed is None else {"seed": seed}
    for text in overrides or []:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ConfigError("<arguments>", "--set", text, "key.path=value, e.g. engine.max_loras=16")
        changes[key] = yaml.safe_load(value)
    return (changed(scenario, changes) if changes else scenario), notes


@contextmanager
def _progress(requests: int) -> Iterator[Any]:
    """A progress callback for long runs; None for short ones."""
    if requests < BIG_RUN or not err.is_terminal:
        yield None
        return
    columns = (
        TextColumn("simulated {task.fields[now]:,.0f} s"),
        BarColumn(),
        TextColumn("{task.completed:,}/{task.total:,}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("run", total=requests, now=0.0)
        yield lambda done, now_s: bar.update(task, completed=done, now=now_s)


class _Interrupted(BaseException):
    """Ctrl-C; not a KeyboardInterrupt, so that the command framework leaves it to main."""


def _interrupt(signum: int, frame: Any) -> None:
    raise _Interrupted


def main() -> None:
    """Entry point: errors of the user end with exit code 2 and one message, an interrupt with 130."""
    signal.signal(signal.SIGINT, _interrupt)
    try:
        app()
    except SimloraError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except _Interrupted:
        print("interrupted: nothing was written", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    main()
