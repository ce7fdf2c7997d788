"""Recording a server that behaves: what is sent, what is written, and that the result is validated like any run."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from record_server import APART_S, GAP_S, record_jumping, running_server

from simlora.errors import ConfigError
from simlora.runs.recorded import read_recorded_run
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario
from simlora.validate.compare import validate
from simlora.validate.record import RecordOptions, record

ONE_BY_ONE = {"kind": "deterministic", "rate_rps": 1 / APART_S}
"""Only a jump of the clock brings the next request."""


def scenario(adapters: dict[str, object] | None = None, **workload: object) -> Scenario:
    return scenario_from_dict(
        {
            "name": "recording",
            "seed": 3,
            "model": "llama-3.2-1b",
            "engine": {"max_loras": 2, "max_cpu_loras": 4, "max_model_len": 4096},
            "adapters": adapters or {"count": 2, "ranks": {8: 0.5, 16: 0.5}, "base_fraction": 0.3},
            "workload": {
                "arrivals": {"kind": "deterministic", "rate_rps": 100},
                "prompt_tokens": {"kind": "uniform", "min": 5, "max": 30},
                "output_tokens": {"kind": "uniform", "min": 1, "max": 12},
                "num_requests": 30,
                **workload,
            },
        }
    )


def rows(folder: Path, name: str = "requests.csv") -> list[dict[str, str]]:
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_gpu_with_other_datasheet_values_is_recorded(tmp_path: Path) -> None:
    other = scenario_from_dict({**scenario().model_dump(mode="json"), "gpu": {"name": "l4", "hbm_gb_per_s": 20.0}})
    with running_server() as server:
        record(server.url, other, tmp_path / "other", RecordOptions(warm_up=1))
        record(server.url, scenario(), tmp_path / "plain", RecordOptions(warm_up=1))
    assert json.loads((tmp_path / "other" / "run.json").read_text())["gpu"] == {"name": "l4", "hbm_gb_per_s": 20.0}
    assert json.loads((tmp_path / "plain" / "run.json").read_text())["gpu"] == scenario().gpu_spec.name
    assert validate([tmp_path / "other"]).rows


def test_what_is_sent(tmp_path: Path) -> None:
    with running_server() as server:
        outcome = record(server.url, scenario(), tmp_path / "run", RecordOptions(warm_up=1))
    assert (outcome.offered, outcome.completed, outcome.rejected, outcome.unfinished) == (30, 30, 0, 0)
    warm_up, *bodies = server.bodies
    assert warm_up["model"] == "base"
    by_prompt = {len(body["prompt"]): body for body in bodies}
    assert {body["model"] for body in bodies} == {"base", "lora-1", "lora-2"}
    for row in rows(tmp_path / "run"):
        body = by_prompt[int(row["prompt_tokens"])]
        assert body["stream"] and body["ignore_eos"] and body["min_tokens"] == body["max_tokens"]
        assert all(isinstance(token, int) and 10 <= token < 128256 for token in body["prompt"])
    prompts = [tuple(body["prompt"]) for body in bodies]
    assert len(set(prompts)) == len(prompts)


def test_what_is_written(tmp_path: Path) -> None:
    with running_server() as server:
        record(server.url, scenario(), tmp_path / "run", RecordOptions(sample_s=0.001))
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["format"] == "simlora-run/1"
    assert run["server_version"] == "0.20.2"
    assert run["resolved"]["num_gpu_blocks"] == 4096
    assert run["prefix_caching"] is False
    assert run["initial_adapters"] is None
    assert run["cut_s"] is None
    assert (run["offered"], run["completed"]) == (30, 30)
    table = rows(tmp_path / "run")
    for index, row in enumerate(table):
        assert float(row["arrival_s"]) >= index / 100
        assert row["status"] == "completed"
        ttft_s, e2e_s, output = float(row["ttft_s"]), float(row["e2e_s"]), int(row["output_tokens"])
        assert e2e_s >= ttft_s >= 0.9 * GAP_S
        assert e2e_s >= 0.9 * output * GAP_S
        assert float(row["itl_max_s"]) >= float(row["itl_p50_s"]) >= 0
        assert {"base": "0", "lora-1": "1", "lora-2": "2"}[row["model"]] == row["adapter"]
    assert rows(tmp_path / "run", "errors.csv") == []
    steps = rows(tmp_path / "run", "steps.csv")
    assert len(steps) >= 3
    assert float(steps[0]["kv_usage"]) == 0.25
    assert sum(float(step["preempted"]) for step in steps) == 30, "counted from the first sample on"
    assert int(steps[-1]["running_adapters"]) == 2
    assert not list(tmp_path.glob(".*")), "no temporary files are left"


def test_a_recording_is_validated(tmp_path: Path) -> None:
    with running_server() as server:
        server.metrics = False
        record(server.url, scenario(), tmp_path / "run", RecordOptions(initial_adapters="none"))
    assert not (tmp_path / "run" / "steps.csv").exists()
    report = validate([tmp_path / "run"])
    by_metric = {row.metric: row for row in report.rows}
    assert by_metric["ttft_mean_s"].measured and by_metric["ttft_mean_s"].simulated
    assert by_metric["preemptions"].measured is None


def test_unknown_residents_are_validated_both_ways(tmp_path: Path) -> None:
    with running_server() as server:
        record(server.url, scenario(), tmp_path / "run")
    report = validate([tmp_path / "run"])
    assert {row.key.get("initial_adapters") for row in report.rows} == {"cold", "all-host"}


def test_text_prompts_and_a_server_that_counts_nothing(tmp_path: Path) -> None:
    with running_server() as server:
        server.usage = False
        options = RecordOptions(prompts="text", adapters="lora-{id}", extra_body={"stream_options": None, "user": "me"})
        outcome = record(server.url, scenario(num_requests=5), tmp_path / "run", options)
    assert outcome.completed == 5
    body = server.bodies[-1]
    assert isinstance(body["prompt"], str) and body["user"] == "me" and "stream_options" not in body
    lengths = {len(body["prompt"].split()): body["max_tokens"] for body in server.bodies}
    for row in rows(tmp_path / "run"):
        assert lengths[int(row["prompt_tokens"])] == int(row["output_tokens"]), "as asked for: the server does not say"


def test_shared_prefixes_are_sent_as_such(tmp_path: Path) -> None:
    with running_server() as server:
        shared = scenario(
            num_requests=6,
            prefix={"kind": "share", "fraction": 0.5},
            prompt_tokens={"kind": "fixed", "value": 64},
        )
        record(server.url, shared, tmp_path / "run", RecordOptions(warm_up=0))
    by_model: dict[str, set[tuple[int, ...]]] = {}
    for body in server.bodies:
        assert len(body["prompt"]) == 64
        by_model.setdefault(body["model"], set()).add(tuple(body["prompt"][:32]))
    assert all(len(prefixes) == 1 for prefixes in by_model.values())
    assert len({tuple(body["prompt"]) for body in server.bodies}) == 6


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (RecordOptions(adapters=["lora-1"]), "--adapters"),
        (RecordOptions(adapters="lora"), "--adapters"),
        (RecordOptions(model="nobody"), "--url"),
    ],
)
def test_what_cannot_work_is_said_before_the_recording(tmp_path: Path, options: RecordOptions, key: str) -> None:
    with running_server() as server, pytest.raises(ConfigError) as caught:
        record(server.url, scenario(), tmp_path / "run", options)
    assert caught.value.key == key
    assert not (tmp_path / "run").exists()


def test_no_server(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="where a server answers"):
        record("http://127.0.0.1:9", scenario(), tmp_path / "run")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="does not exist yet"):
        record("http://127.0.0.1:9", scenario(), tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can be written"):
        record("http://127.0.0.1:9", scenario(), tmp_path / "file" / "run")


def test_registered_adapters_are_resident_at_the_start(tmp_path: Path) -> None:
    adapters = {"count": 3, "ranks": 8, "preload": True}
    with running_server() as server:
        record(server.url, scenario(adapters), tmp_path / "run", RecordOptions(adapters="lora-{id}"))
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["initial_adapters"]["gpu"] == [2, 1], "two slots: those registered last"
    assert run["initial_adapters"]["host"] == [3, 2, 1]
    assert rows(tmp_path / "run", "errors.csv"), "this server has two adapters"
    assert not any(row.key for row in validate([tmp_path / "run"]).rows)


def test_cut_at_the_end_of_arrivals(tmp_path: Path) -> None:
    """Three of ten requests have no end by then."""
    cut = scenario(arrivals=ONE_BY_ONE, num_requests=None, duration_s=10 * APART_S, end="cut")
    with running_server() as server:
        server.fault = lambda count, body: "hang" if count > 9 else ""
        outcome = record_jumping(server, cut, tmp_path / "run", RecordOptions(warm_up=2))
    assert (outcome.completed, outcome.offered) == (7, 10)
    assert outcome.failures == {}, "what was cut did not go wrong"
    run = read_recorded_run(tmp_path / "run")
    assert run.run.cut_s == pytest.approx(10 * APART_S, abs=APART_S / 2)
    assert run.requests is not None and len(run.requests) == outcome.offered
    assert validate([tmp_path / "run"]).rows[0].measured is not None
