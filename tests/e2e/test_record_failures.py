"""Recording a server that misbehaves: every request stays in the recording, and says what happened to it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from record_server import APART_S, record_jumping, running_server
from test_record import ONE_BY_ONE, rows, scenario

from simlora.runs.recorded import read_recorded_run
from simlora.validate.compare import validate
from simlora.validate.record import Recorded, RecordOptions, record
from simlora.validate.replay import measured_metrics

COLD = RecordOptions(warm_up=0)


def check_complete(folder: Path, outcome: Recorded) -> None:
    """Nothing is lost: each request is a row, each failure an error, and the whole still reads as a recorded run."""
    table, errors = rows(folder), rows(folder, "errors.csv")
    assert len(table) == outcome.offered == 30
    statuses = [row["status"] for row in table]
    assert statuses.count("completed") == outcome.completed
    assert statuses.count("rejected") == outcome.rejected
    assert statuses.count("unfinished") == outcome.unfinished
    for row in table:
        assert (row["status"] == "completed") == bool(row["e2e_s"]) == bool(row["ttft_s"])
    assert len(errors) == sum(outcome.failures.values())
    for error in errors:
        assert table[int(error["request"])]["status"] != "completed"
        assert error["message"]
    recorded = read_recorded_run(folder)
    assert recorded.requests is not None and recorded.requests.rejected == outcome.rejected


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("error-500", "http"),
        ("hang", "timeout"),
        ("stream-error", "stream"),
        ("not-json", "stream"),
        ("short", "stream"),
        ("reset", "connection"),
    ],
)
def test_one_in_ten_goes_wrong(tmp_path: Path, fault: str, kind: str) -> None:
    load = scenario(output_tokens={"kind": "fixed", "value": 6})
    with running_server() as server:
        server.fault = lambda count, body: fault if count % 10 == 5 else ""

        def jump_s(sent: int, finished: int, failed: int) -> float:
            return 2 * COLD.timeout_s if finished == 27 and fault == "hang" else 0.0

        outcome = record_jumping(server, load, tmp_path / "run", COLD, jump_s)
    check_complete(tmp_path / "run", outcome)
    assert outcome.failures == {kind: 3}
    assert (outcome.completed, outcome.unfinished) == (27, 3)
    assert outcome.server_died_s is None
    assert validate([tmp_path / "run"]).rows


def test_an_adapter_that_the_server_lacks(tmp_path: Path) -> None:
    with running_server() as server:
        options = RecordOptions(adapters=["lora-1", "nobody"], warm_up=0)
        outcome = record(server.url, scenario(), tmp_path / "run", options)
    check_complete(tmp_path / "run", outcome)
    errors = rows(tmp_path / "run", "errors.csv")
    assert outcome.rejected == len(errors) > 0
    assert {error["status"] for error in errors} == {"404"}
    assert {error["model"] for error in errors} == {"nobody"}
    assert "does not exist" in errors[0]["message"]


def test_a_server_that_dies(tmp_path: Path) -> None:
    """Before it answers the twelfth request; two later ones find nobody, then the rest is not sent."""
    load = scenario(arrivals=ONE_BY_ONE, output_tokens={"kind": "fixed", "value": 3})
    options = RecordOptions(warm_up=0, give_up_s=2.5 * APART_S)
    with running_server() as server:
        server.fault = lambda count, body: "die" if count == 12 else ""
        outcome = record_jumping(server, load, tmp_path / "run", options)
    check_complete(tmp_path / "run", outcome)
    assert outcome.completed == 11
    assert outcome.server_died_s == pytest.approx(11 * APART_S, abs=APART_S / 2)
    assert outcome.failures == {"connection": 3, "not-sent": 16}, "after a while nothing more is sent"
    recorded = read_recorded_run(tmp_path / "run")
    assert recorded.run.cut_s == pytest.approx(outcome.server_died_s, abs=1e-5)
    measured = measured_metrics(recorded)
    assert measured["ttft_mean_s"] is not None
    assert validate([tmp_path / "run"]).rows


def test_an_interrupt_writes_what_there_is(tmp_path: Path) -> None:
    """Ctrl-C after five answers."""

    def jump_s(sent: int, finished: int, failed: int) -> float:
        if finished == 5:
            signal.raise_signal(signal.SIGINT)
        return APART_S

    with running_server() as server:
        outcome = record_jumping(server, scenario(arrivals=ONE_BY_ONE), tmp_path / "run", COLD, jump_s)
    check_complete(tmp_path / "run", outcome)
    assert outcome.interrupted
    assert outcome.completed == 5
    assert outcome.failures == {"not-sent": 25}
