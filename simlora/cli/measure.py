"""Commands that deal with real servers and GPUs: validate, record, calibrate."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from simlora.cli.common import Override, app, err, out, read_scenario
from simlora.errors import ARGUMENTS, ConfigError


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
    from simlora.validate.compare import validate as compare
    from simlora.validate.rows import write_json
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

    scenario, _ = read_scenario(file, None, set_, None)
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
def calibrate(
    out_dir: Annotated[Path, typer.Option("--out", help="Folder of samples and results; a second call continues")],
    budget: Annotated[str | None, typer.Option(help="No further item is started after this: 9m, 90s")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A coarse grid, about 3 minutes")] = False,
    only: Annotated[str | None, typer.Option(help="Parts, separated by commas: launch,operators,lora,...")] = None,
    name: Annotated[str | None, typer.Option(help="Id of the calibration; default: the GPU's name")] = None,
    from_runs: Annotated[
        list[Path] | None, typer.Option(help="Recorded run to fit to instead; no GPU; repeat it")
    ] = None,
    base: Annotated[str | None, typer.Option(help="With --from-runs: calibration to start from")] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="With --from-runs: engine terms start at typical values, not at the base's")
    ] = False,
    held_out: Annotated[
        Path | None, typer.Option("--held-out", help="With --from-runs: folder for fits without one run each")
    ] = None,
) -> None:
    """Measure this machine's GPU and fit a calibration, or fit one to recorded runs (--out is a file then)."""
    if from_runs:
        _fit_to_runs(from_runs, out_dir, base, anew, held_out)
        return
    from simlora.calibrate.campaign import run_calibration
    from simlora.calibrate.plan import PARTS
    from simlora.calibrate.result import Options
    from simlora.calibrate.session import parse_budget

    try:
        budget_s = None if budget is None else parse_budget(budget)
    except ValueError:
        raise ConfigError(ARGUMENTS, "--budget", budget, "a positive time such as 9m, 90s or 540") from None
    parts = tuple(only.split(",")) if only else PARTS
    result = run_calibration(out_dir, budget_s, quick, err.print, parts, Options(name))
    for line in result.lines:
        out.print(line)


def _fit_to_runs(runs: list[Path], out_file: Path, base: str | None, anew: bool, held_out: Path | None) -> None:
    from simlora.validate.fit import fit_from_runs

    if out_file.suffix != ".json":
        raise ConfigError(ARGUMENTS, "--out", str(out_file), "a .json file to write, with --from-runs")
    words = ["simlora calibrate", *(f"--from-runs {run}" for run in runs)]
    words += [f"--base {base}"] if base is not None else []
    words += ["--anew"] if anew else []
    report = fit_from_runs(
        runs, base, out_file, err.print, anew=anew, held_out_folder=held_out, command=" ".join(words)
    )
    for line in report.lines:
        out.print(line)
