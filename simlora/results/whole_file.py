"""Text files that are there whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from simlora.errors import ConfigError

ARGUMENTS = "<arguments>"


def write_whole(path: str | Path, text: str, option: str) -> Path:
    """Write a file by way of a temporary one beside it; the folder is made if need be.

    Raises:
        ConfigError: it cannot be written; option is the command line's name for it.
    """
    target = Path(path).expanduser().absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)  # temporary files are private
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        allowed = f"a file that can be written ({error.strerror or error})"
        raise ConfigError(ARGUMENTS, option, str(path), allowed) from None
    return target


def write_texts(folder: str | Path, texts: Mapping[str, str], option: str) -> None:
    """Write several files into a folder, each of them whole. All texts exist before the first is written."""
    for name, text in texts.items():
        write_whole(Path(folder) / name, text, option)
