"""Finds the folders of recorded runs among paths that a user gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simlora.errors import ConfigError
from simlora.runs.run_file import RUN


def run_folders(paths: Sequence[str | Path]) -> list[Path]:
    """Each path that holds a run.json; of other folders, those up to two levels below that do, in order of name.

    Raises:
        ConfigError: no path at all.
    """
    folders: list[Path] = []
    for path in map(Path, paths):
        if (path / RUN).exists() or not path.is_dir():
            folders.append(path)
            continue
        inside = sorted([*path.glob(f"*/{RUN}"), *path.glob(f"*/*/{RUN}")])
        folders += [file.parent for file in inside] or [path]
    if not folders:
        raise ConfigError("<arguments>", "RUN", None, "at least one folder of a recorded run")
    return folders
