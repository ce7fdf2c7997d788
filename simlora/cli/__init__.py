"""The command line. The only package that prints, exits, or turns seconds into milliseconds for a person."""

from __future__ import annotations

import gc
import signal
import sys
from typing import Any

from simlora.cli import simulate  # isort: skip  (its commands come first in the help)
from simlora.cli import measure
from simlora.cli.common import app
from simlora.errors import SimloraError

__all__ = ["app", "main", "measure", "simulate"]


class _Interrupted(BaseException):
    """Ctrl-C; not a KeyboardInterrupt, so that the command framework leaves it to main."""


def _interrupt(signum: int, frame: Any) -> None:
    raise _Interrupted


def main() -> None:
    """Entry point: errors of the user end with exit code 2 and one message, an interrupt with 130."""
    gc.set_threshold(
        200_000, 50
    )  # importing and simulating make little garbage in cycles, and looking for it takes time
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
