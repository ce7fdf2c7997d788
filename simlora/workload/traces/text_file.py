"""Opens a trace file, local or remote, plain or compressed, as text."""

from __future__ import annotations

import zlib
from pathlib import PurePosixPath

from simlora.errors import ConfigError
from simlora.scenario.root import Scenario

# What fsspec, its back ends and the decompressors raise for a path that is wrong, unreachable or damaged.
_OPEN_ERRORS = (OSError, ValueError, ImportError, EOFError, zlib.error)


def read_text(path: str) -> str:
    """Whole file as text without a byte-order mark; `.gz` and the like are decompressed by their name.

    Raises ConfigError when it cannot be opened, is empty, or is not UTF-8 text.
    """
    import fsspec

    source = file_name(path)
    try:
        with fsspec.open(path, "rb", compression="infer") as stream:
            data: bytes = stream.read()
    except FileNotFoundError as error:
        raise ConfigError(path, "trace", path, "no such file") from error
    except _OPEN_ERRORS as error:
        raise ConfigError(path, "trace", path, f"cannot be read ({error or type(error).__name__})") from error
    return decode(data, source)


def decode(data: bytes, source: str) -> str:
    """UTF-8 text of a trace; ConfigError for anything else and for blank content."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        bad = data[error.start : error.start + 1]
        allowed = "UTF-8 text (a compressed file needs its suffix, such as .gz)"
        raise ConfigError(f"{source}:{line}", "encoding", bad, allowed) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ConfigError(f"{source}:{line}", "encoding", "\0", "a trace is text, this file holds binary data")
    if not text.strip():
        raise ConfigError(source, "trace", "", "the file is empty")
    return text


def resolved(scenario: Scenario, path: str) -> str:
    """A path as the scenario means it: URLs as they stand, relative ones from the scenario's folder."""
    return path if "://" in path else str(scenario.path(path))


def file_name(path: str) -> str:
    """Last part of a path or URL."""
    return PurePosixPath(path.replace("\\", "/")).name or path
