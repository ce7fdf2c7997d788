"""What the commands share: consoles, arguments, and how a scenario is read from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from simlora.errors import ARGUMENTS, ConfigError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

ScenarioFile = Annotated[Path | None, typer.Argument(help="Scenario YAML file")]
VllmArgs = Annotated[str | None, typer.Option(help='Flags of a server you run: "serve MODEL --enable-lora ..."')]
Override = Annotated[list[str] | None, typer.Option("--set", help="Change a key: --set engine.max_loras=16")]
BIG_RUN = 20_000
"""Requests from which a run shows a progress bar."""


def read_scenario(
    file: Path | None, vllm_args: str | None, overrides: list[str] | None, seed: int | None
) -> tuple[Any, tuple[str, ...]]:
    """The scenario that the arguments describe, and notes about how it came about."""
    import yaml

    from simlora.scenario.load import changed, load_scenario, read_yaml
    from simlora.scenario.vllm_args import scenario_from_vllm_args

    notes: tuple[str, ...] = ()
    if vllm_args is not None:
        base = read_yaml(file) if file is not None else None
        scenario, notes = scenario_from_vllm_args(vllm_args, base, file.parent if file else None)
    elif file is not None:
        scenario = load_scenario(file)
    else:
        raise ConfigError(ARGUMENTS, "FILE", None, "give a scenario file, or --from-vllm-args")
    changes: dict[str, Any] = {} if seed is None else {"seed": seed}
    for text in overrides or []:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ConfigError(ARGUMENTS, "--set", text, "key.path=value, e.g. engine.max_loras=16")
        changes[key] = yaml.safe_load(value)
    return (changed(scenario, changes) if changes else scenario), notes


@contextmanager
def progress_of(requests: int) -> Iterator[Any]:
    """A progress callback for long runs; None for short ones."""
    if requests < BIG_RUN or not err.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("simulated {task.fields[now]:,.0f} s"),
        BarColumn(),
        TextColumn("{task.completed:,}/{task.total:,}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("run", total=requests, now=0.0)
        yield lambda done, now_s: bar.update(task, completed=done, now=now_s)
