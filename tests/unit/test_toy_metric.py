"""A metric is one entry beside its function: summary, comparison, terminal and page follow from it."""

from __future__ import annotations

import numpy as np
import pytest
from results_logs import play
from rich.console import Console

from simlora.report import diff as diff_module
from simlora.report import facts
from simlora.report.diff import diff
from simlora.report.html import render_html
from simlora.report.terminal import run_tables
from simlora.results import summary as summary_module
from simlora.results.measured import Measured, distribution
from simlora.results.summary import METRICS, summarize
from simlora.results.summary_metric import LOWER, Metric


def longest_prompt(measured: Measured) -> int:
    return int(measured.log.requests.prompt_tokens.max())


TOYS = (
    Metric("requests.longest", "count", longest_prompt, "prompt", "longest prompt", LOWER, listed="Traffic"),
    Metric("wait_s", "s", lambda m: distribution(m.queue_s), "toy", "waiting", LOWER, statistics=("mean",)),
)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch):
    for module in (summary_module, facts, diff_module):  # all that read the table
        monkeypatch.setattr(module, "METRICS", (*METRICS, *TOYS))
    return play(list(np.linspace(0, 2, 60)), [0, 1, 2, 3] * 15, [20] * 60).log


def test_the_summary_holds_it(log) -> None:
    summary = summarize(log)
    assert summary["requests"]["longest"] == int(log.requests.prompt_tokens.max())
    assert list(summary["wait_s"]) == list(summary["ttft_s"])[:6]
    assert summarize(log, ["requests.longest"]) == {"requests": {"longest": summary["requests"]["longest"]}}


def test_reports_show_it(log) -> None:
    console = Console(width=120, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(*run_tables(summarize(log), log.scenario))
    page = render_html(summarize(log), log)
    for word in ("longest prompt", "waiting"):
        assert word in capture.get() and word in page


def test_two_runs_are_compared_by_it(log) -> None:
    one = summarize(log)
    other = one | {"requests": one["requests"] | {"longest": 10**6}}
    row = next(row for row in diff(one, other) if row.metric == "requests.longest")
    assert (row.label, row.text_b, row.better) == ("longest prompt", "1,000,000", False)
    assert "waiting mean" in [row.label for row in diff(one, other)]


def test_every_metric_says_what_it_is() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names) and all(metric.about for metric in METRICS)
    assert all(metric.label for metric in METRICS if metric.better is not None or metric.listed or metric.statistics)
