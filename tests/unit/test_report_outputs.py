"""Reports: what they must show, that they fit, and that they are the same for the same log."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from results_logs import play, random_log
from rich.console import Console

from simlora.plan.decision import Candidate, Decision, Outcome
from simlora.report import units
from simlora.report.diff import diff, diff_table, settings_diff
from simlora.report.html import render_html
from simlora.report.perfetto import trace_events, write_trace
from simlora.report.terminal import bar, run_tables
from simlora.results.measured import Measured
from simlora.results.own_run import run_description
from simlora.results.summary import summarize


def text(*renderables: object, width: int = 120) -> str:
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(*renderables)
    return capture.get()


@pytest.fixture(scope="module")
def log():
    return play(list(np.linspace(0, 2, 60)), [0, 1, 2, 3] * 15, [20] * 60).log


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_terminal_fits_and_shows_what_matters(log, width):
    out = text(*run_tables(summarize(log), log.scenario), width=width)
    assert max(len(line) for line in out.splitlines()) <= width
    assert "…" not in out
    lines = out.splitlines()
    assert "llama-3.1-8b on 1 × h200-141gb" in lines[0]
    assert lines[1].startswith("misses its SLO: ")
    for word in ("TTFT", "TPOT", "ITL", "queueing", "in a slot", "from host", "goodput", "slot hits", "steps stalled"):
        assert word in out
    for word in ("KV use", "per month", "per 1M tokens", "Worst tenants", "Jain index", "adapter 3", "thrashing"):
        assert word in out
    assert len(lines) <= 60


def test_terminal_marks_extrapolation_censoring_and_replicas():
    log = random_log(400, 400, replicas=3)
    out = text(*run_tables(summarize(log)))
    assert "EXTRAPOLATED outside the measured range: lora.slots" in out
    assert "Replica" in out and "within the SLO" in out
    cut = play([0.0, 0.1, 0.2], [0, 0, 0], [90, 90, 90], seats=1, cut_s=0.5).log
    assert "unfinished requests got no first token" in re.sub(r"\s+", " ", text(*run_tables(summarize(cut))))


def test_terminal_of_nothing():
    log = random_log(0, 0)
    assert "no requests" in text(*run_tables(summarize(log), log.scenario), width=80)


def test_markup_in_names_is_text(log):
    summary = summarize(log) | {"scenario": "[bold]a[/bold] <b>"}
    assert "[bold]a[/bold] <b>" in text(*run_tables(summary))
    assert "<b>" not in re.search("<title>(.*)</title>", render_html(summary, log)).group(1)


def test_html_is_complete_self_contained_and_repeatable(log):
    page = render_html(summarize(log), log)
    assert page == render_html(summarize(log), log)
    assert page.count("<svg") == 2 and "{{" not in page and "{%" not in page
    assert not re.search(r"""(src|href)=["']?https?://""", page.replace('xlink:href="#', ""))
    assert "<script" not in page
    for word in (
        "Misses its SLO",
        "Where request time goes",
        "Tenants served worst",
        "Replicas",
        "thrashing",
        "Jain index",
    ):
        assert word in page


def test_html_of_nothing_and_of_many_replicas():
    for log in (random_log(0, 0), random_log(200, 50, replicas=70)):
        page = render_html(summarize(log), log)
        assert page.endswith("</html>\n") or page.endswith("</html>")
    assert "and 6 more" in page


def test_trace_is_valid_capped_and_repeatable(log, tmp_path):
    paths = tmp_path / "a.json.gz", tmp_path / "b.json.gz"
    assert [write_trace(log, path) for path in paths] == [0, 0]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    trace = json.loads(gzip.decompress(paths[0].read_bytes()))
    events = trace["traceEvents"]
    kinds = {event["ph"] for event in events}
    assert kinds == {"M", "X", "C", "b", "e"}
    slices = [event for event in events if event["ph"] == "X" and event["tid"] == 1]
    assert len(slices) == len(log.replicas[0].runs["start_s"])
    assert sum(event["ph"] == "b" for event in events) == sum(event["ph"] == "e" for event in events) == 3 * 60
    capped, left_out = trace_events(log, 100)
    assert len([event for event in capped if event["ph"] != "M"]) == 100
    assert left_out > 0 and write_trace(log, paths[0], 100) == left_out


def test_diff_of_a_run_with_itself_is_empty(log):
    summary, run = summarize(log), run_description(Measured(log))
    assert all(row.better is None and row.ratio in (0.0, None) for row in diff(summary, summary))
    assert text(diff_table(summary, summary)) == "same results\n"
    assert "same settings" in text(diff_table(summary, summary, (run, run)))


def test_diff_says_what_changed_and_what_that_gave():
    arrivals, adapters, outputs = list(np.linspace(0, 2, 60)), [0, 1, 2, 3] * 15, [20] * 60
    engine = {"max_lora_rank": 64, "max_cpu_loras": 8, "max_num_seqs": 8, "max_num_batched_tokens": 512}
    few = play(arrivals, adapters, outputs, slots=2, engine=engine | {"max_loras": 2}).log
    many = play(arrivals, adapters, outputs, slots=4, engine=engine | {"max_loras": 4}).log
    rows = {row.metric: row for row in diff(summarize(few), summarize(many))}
    assert rows["ttft_s.mean"].better is True and rows["ttft_s.mean"].ratio < 0
    assert rows["bottleneck.shares.queue_slots"].b == 0.0
    assert rows["cost.gpus"].ratio == 0.0
    runs = run_description(Measured(few)), run_description(Measured(many))
    assert settings_diff(*runs) == [("engine.max_loras", 2, 4)]
    out = text(diff_table(summarize(few), summarize(many), runs, ("few", "many")))
    assert "engine.max_loras" in out and "TTFT mean" in out and "points" in out
    assert "GPUs" not in out  # unchanged
    assert "GPUs" in text(diff_table(summarize(few), summarize(many), everything=True))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "–"),
        (0, "0"),
        (1234567, "1,234,567"),
        (1234.5, "1,234"),
        (123.4, "123"),
        (12.34, "12.3"),
        (0.01234, "0.0123"),
    ],
)
def test_numbers(value, expected):
    assert units.number(value) == expected


def test_units():
    assert [units.seconds(value) for value in (None, 0.0123, 2.5, 7200.0)] == ["–", "12.3 ms", "2.50 s", "2.00 h"]
    assert [units.percent(value) for value in (None, 1.0, 0.99999, 0.5, 0.0001, 0.0)] == [
        "–", "100 %", "> 99.9 %", "50.0 %", "< 0.1 %", "0 %",
    ]  # fmt: skip
    assert [units.size(value) for value in (None, 10, 92e6, 1.5e12)] == ["–", "10 B", "92.0 MB", "1.50 TB"]
    assert [units.usd(value) for value in (None, 2913.2, 3.84, 0.1)] == ["–", "$2,913", "$3.84", "$0.100"]
    assert [units.change(value) for value in (None, -0.5, 0.0, 19.0)] == ["–", "-50.0 %", "0 %", "× 20.0"]
    assert bar(1.0) == "█" * 24 and bar(0.0) == "▏"


def test_html_shows_the_decision(log):
    outcome = Outcome(0.2, 0.02, 0.95, False, 1234.0, 3.99, 880_000)
    better = replace(outcome, ttft_mean_s=0.1, attainment=1.0)
    raised = Candidate((("engine.max_loras", 2, 4),), better)
    impossible = Candidate((("engine.max_num_seqs", 4, 4096),), None, "does not <fit>")
    decision = Decision("queue_slots", 0.4, False, outcome, (raised, impossible), raised, 60)
    page = render_html(summarize(log), log, decision)
    assert "Set max_loras 2 -&gt; 4" in page and "impossible: does not &lt;fit&gt;" in page
    assert "What to change" not in render_html(summarize(log), log)
