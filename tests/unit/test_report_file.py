"""Reports whose sections are written by different commands, and passes over many rows that can be taken up again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import accuracy_agullo
import accuracy_base
import pytest
import report_file
from test_agullo import ROW

ROOT = Path(__file__).parents[2]


def test_a_section_is_replaced_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "report.md"
    report_file.update(path, "# Title\n\nAbout.", {"First": "one", "Second": "two\n"})
    assert path.read_text() == "# Title\n\nAbout.\n\n## First\n\none\n\n## Second\n\ntwo\n"
    report_file.update(path, "# Title", {"First": "1", "Third": "three"})
    assert path.read_text() == "# Title\n\n## First\n\n1\n\n## Second\n\ntwo\n\n## Third\n\nthree\n"
    assert list(path.parent.iterdir()) == [path]


def test_the_committed_report_has_all_its_sections() -> None:
    text = (ROOT / "reports" / "accuracy.md").read_text()
    for heading in ("Whole runs", "Single measurements", accuracy_base.HEADING):
        assert f"\n## {heading}\n\n" in text


def test_rows_that_were_simulated_are_not_simulated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, refused, new = (replace(ROW, path=name, total_time_s=30.0) for name in ("done", "refused", "new"))
    log = tmp_path / "rows.jsonl"
    lines = [{"path": "done", "simulated": ROW.measured}, {"path": "refused", "simulated": "cannot be simulated: x"}]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(accuracy_agullo.os, "cpu_count", lambda: 1)
    results, failed = accuracy_agullo.simulate([new, refused, done], None, log)
    assert [item.row.path for item in results] == ["new", "done"]
    assert results[1].simulated == ROW.measured and failed == {"refused": "cannot be simulated: x"}
    assert set(accuracy_agullo.read_log(log)) == {"done", "refused", "new"}
    again, _ = accuracy_agullo.simulate([new, done], None, log)
    assert again[0].simulated == results[0].simulated and len(log.read_text().splitlines()) == 3
