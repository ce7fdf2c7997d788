"""python -m simlora.calibrate: the same as `simlora calibrate`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from simlora.errors import ConfigError, SimloraError

from .base import DEFAULT_VERSION
from .campaign import fit_only, run_calibration
from .plan import PARTS
from .result import Options
from .session import parse_budget


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0, or 2 with one message on standard error."""
    arguments = _parser().parse_args(argv)
    options = Options(arguments.name, arguments.base, arguments.engine_version, not arguments.bare_load_costs)
    try:
        if arguments.fit_only:
            result = fit_only(arguments.out, options)
        else:
            parts = tuple(arguments.only.split(",")) if arguments.only else PARTS
            result = run_calibration(
                arguments.out, _budget(arguments.budget), arguments.quick, _say, parts, options, arguments.dry
            )
    except SimloraError as error:
        print(error, file=sys.stderr)
        return 2
    for line in result.lines:
        _say(line)
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


def _budget(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse_budget(text)
    except ValueError as error:
        raise ConfigError("<arguments>", "--budget", text, "a positive time such as 9m, 90s or 540") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simlora.calibrate", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of samples and results; a second call continues there")
    add("--budget", help="time after which no further item is started: 9m, 90s (default 9m, with --quick 3m)")
    add("--quick", action="store_true", help="a coarse grid, about 3 minutes")
    add("--only", help=f"parts, separated by commas: {', '.join(PARTS)}")
    add("--fit-only", action="store_true", help="fit the folder's samples again; needs no GPU")
    add("--name", help="id of the calibration (default: the GPU's name)")
    add("--base", help="calibration that engine terms are taken from (default: the nearest shipped one)")
    add("--engine-version", default=DEFAULT_VERSION, help="vLLM version that engine terms are chosen for")
    add("--bare-load-costs", action="store_true", help="fixed load costs of bare copies, not of the base's engine")
    add("--dry", action="store_true", help="tiny shapes on the CPU: exercises everything, measures nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
