"""Reports in Markdown whose sections are written by different commands."""

from __future__ import annotations

import os
from pathlib import Path


def update(path: Path, head: str, sections: dict[str, str]) -> None:
    """Replace these sections (heading -> text), keep the others where they are, and append those that are new."""
    found = _sections(path.read_text(encoding="utf-8")) if path.exists() else {}
    found |= {heading: text.strip() for heading, text in sections.items()}
    parts = [head.strip(), *(f"## {heading}\n\n{text}" for heading, text in found.items())]
    write(path, "\n\n".join(parts) + "\n")


def write(path: Path, text: str) -> None:
    """The whole file, in one go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def _sections(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in ("\n" + text).split("\n## ")[1:]:
        heading, _, body = part.partition("\n")
        found[heading.strip()] = body.strip()
    return found
