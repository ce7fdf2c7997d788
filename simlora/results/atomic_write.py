"""Text files that are there whole, or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from simlora.errors import ARGUMENTS, ConfigError


def write_whole(path: str | Path, text: str, option: str) -> Path:
    """Write a file by way of a temporary one beside it; the folder is made if need be.

    Raises:
        ConfigError: it cannot be written; option is the command line's name for it.
    """
    target = _absolute(path)
    with _refused(option, path, "a file"):
        target.parent.mkdir(parents=True, exist_ok=True)
        _put_in_place([_written(target, text)])
    return target


def write_texts(folder: str | Path, texts: Mapping[str, str], option: str) -> None:
    """Write several files into a folder, all of them or none; the folder is made if need be.

    Raises:
        ConfigError: as for write_whole.
    """
    target = _absolute(folder)
    with _refused(option, folder, "a folder"):
        target.mkdir(parents=True, exist_ok=True)
        written: list[tuple[Path, Path]] = []
        try:
            for name, text in texts.items():
                written.append(_written(target / name, text))
        except BaseException:
            _drop(written)
            raise
        _put_in_place(written)


def check_writable(path: str | Path, option: str, folder: bool = False) -> None:
    """Raise before a long computation what writing there would raise after it. Leaves nothing behind.

    Raises:
        ConfigError: as for write_whole, or write_texts with folder.
    """
    target = _absolute(path)
    within = target if folder else target.parent
    missing = [place for place in (within, *within.parents) if not place.exists()]
    with _refused(option, path, "a folder" if folder else "a file"):
        if not folder and target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        try:
            within.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=within)
            os.close(descriptor)
            os.unlink(temporary)
        finally:
            for place in missing:
                with suppress(OSError):
                    place.rmdir()


def _absolute(path: str | Path) -> Path:
    return Path(path).expanduser().absolute()


@contextmanager
def _refused(option: str, path: str | Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        allowed = f"{what} that can be written ({error.strerror or error})"
        raise ConfigError(ARGUMENTS, option, str(path), allowed) from None


def _written(target: Path, text: str) -> tuple[Path, Path]:
    """(temporary file with the text, the file that it is to become)."""
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, f"{target.name}: {os.strerror(errno.EISDIR)}")
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # temporary files are private
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary, target


def _put_in_place(written: list[tuple[Path, Path]]) -> None:
    try:
        for temporary, target in written:
            os.replace(temporary, target)
    finally:
        _drop(written)


def _drop(written: list[tuple[Path, Path]]) -> None:
    for temporary, _ in written:
        temporary.unlink(missing_ok=True)
