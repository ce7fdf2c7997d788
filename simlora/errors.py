"""Errors that a user can cause. Everything else that is raised is a defect of simlora."""

from __future__ import annotations

ARGUMENTS = "<arguments>"
"""Source of a value that comes from the command line and not from a file."""


class SimloraError(Exception):
    """Bad input or an impossible request. The command line prints the message and exits with code 2."""


class ConfigError(SimloraError):
    """One wrong value in an input file or on the command line.

    The message is always `<source>: <key>: <value>: <what is allowed>`.
    """

    def __init__(self, source: str, key: str, value: object, allowed: str) -> None:
        self.source, self.key, self.value, self.allowed = source, key, value, allowed
        super().__init__(f"{source}: {key}: {value!r}: {allowed}")
