"""The same requests on several engines: what carries over, what is told, what is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simlora.errors import ConfigError
from simlora.plan.compare import as_json, compare_engines
from simlora.plan.variants import DEDICATED, variant
from simlora.report.comparison import COLUMNS, cells, comparison_texts, html, markdown, verdict
from simlora.results.atomic_write import check_writable, write_texts, write_whole
from simlora.scenario.engines import ENGINES
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario


def scenario(**changes: Any) -> Scenario:
    return scenario_from_dict(
        {
            "name": "few",
            "model": "llama-2-7b",
            "gpu": "h200",
            "engine": {"max_loras": 4, "max_lora_rank": 16, "max_cpu_loras": 8, "max_num_seqs": 64},
            "adapters": {"count": 8, "ranks": {16: 1.0}},
            "workload": {
                "arrivals": {"kind": "poisson", "rate_rps": 2},
                "prompt_tokens": {"kind": "lognormal", "median": 150, "sigma": 0.5, "max": 1000},
                "output_tokens": {"kind": "lognormal", "median": 60, "sigma": 0.5, "max": 300},
                "duration_s": 60,
            },
            **changes,
        }
    )


@pytest.fixture(scope="module")
def comparison() -> Any:
    return compare_engines(scenario(), ["vllm", DEDICATED], check=True)


@pytest.mark.parametrize("kind", (*ENGINES, DEDICATED))
def test_every_variant_keeps_the_workload(kind: str) -> None:
    original, changed = scenario(), variant(scenario(), kind)
    assert changed.workload == original.workload and changed.model_spec == original.model_spec
    assert changed.adapters.count == 8 and changed.slo == original.slo
    assert changed.engine.kind == ("vllm" if kind == DEDICATED else kind)
    assert changed.engine.max_model_len == original.engine.max_model_len


def test_settings_carry_over_by_their_meaning() -> None:
    assert variant(scenario(), "sglang").engine.max_loras == 5  # the base model takes a slot there
    assert variant(scenario(), "slora").engine.max_num_seqs == 64
    assert variant(variant(scenario(), "slora"), "vllm").engine.kind == "vllm"
    back = variant(variant(scenario(), DEDICATED), "vllm")
    assert back.cluster.topology == "shared" and back.engine == scenario().engine


@pytest.mark.parametrize("kind", [kind for kind in ENGINES if kind != "vllm"])
def test_vllm_gets_slots_that_serve_what_another_engine_serves(kind: str) -> None:
    """vLLM's own defaults (1 slot of rank 16) would refuse the adapters, or thrash."""
    given = scenario(engine={"kind": kind}, adapters={"count": 40, "ranks": {64: 1.0}})
    changed = variant(given, "vllm").engine
    assert changed.max_lora_rank == 64 and changed.max_cpu_loras == 40 and changed.max_loras >= 7
    assert changed.gpu_memory_utilization < 1


def test_seats_and_slots_carry_over_between_any_two_engines() -> None:
    given = scenario(engine={"kind": "sglang", "max_loras_per_batch": 5, "max_running_requests": 48})
    assert variant(given, "vllm").engine.max_loras == variant(given, "grouped").engine.max_loras == 4
    assert variant(given, "slora").engine.max_num_seqs == variant(given, "punica").engine.max_num_seqs == 48
    assert variant(given, "lorax").engine.max_num_seqs == 1024  # waiting requests count there


def test_an_engine_that_cannot_serve_says_why() -> None:
    mixed = scenario(adapters={"count": 8, "ranks": {8: 0.5, 16: 0.5}})
    found = compare_engines(mixed, ["vllm", "punica"])
    assert [p.engine for p in found.played] == ["vllm"] and "rank" in found.unsupported["punica"]
    assert as_json(found)["punica"] == {"unsupported": found.unsupported["punica"]}


def test_unknown_engine() -> None:
    with pytest.raises(ConfigError, match="--engines: 'tgi': names from: vllm, slora"):
        compare_engines(scenario(), ["vllm", "tgi"])


def test_nobody_can_serve() -> None:
    with pytest.raises(ConfigError, match="none of them serves this"):
        compare_engines(scenario(adapters={"count": 8, "ranks": {8: 0.5, 16: 0.5}}), ["punica"])


def test_common_random_numbers(comparison: Any) -> None:
    offered = {p.summary["requests"]["offered"] for p in comparison.played}
    assert len(offered) == 1 and comparison.requests == offered.pop()


def test_costs_against_dedicated(comparison: Any) -> None:
    shared, dedicated = comparison.played
    assert dedicated.summary["cost"]["gpus"] == 8 and comparison.cost_ratio(dedicated) == 1.0
    assert comparison.cost_ratio(shared) == pytest.approx(1 / 8)
    assert shared.usd_per_month == pytest.approx(730 * shared.scenario.cost.gpu_hour_usd)
    assert comparison.best() is shared and "vllm is the cheapest" in verdict(comparison)


def test_engines_of_one_price_are_named_together(comparison: Any) -> None:
    shared = comparison.played[0]
    twin = replace(shared, engine="slora")
    told = verdict(replace(comparison, played=(twin, *comparison.played)))
    assert told.startswith("slora and vllm are the cheapest that meet the SLO, slora best (100 % in SLO): $")


def test_reasons_tell_slots_loads_kernels_and_memory(comparison: Any) -> None:
    shared, dedicated = (" ".join(p.reasons) for p in comparison.played)
    for word in ("4 slots of rank 16", "loads:", "kernels:", "memory: KV cache for"):
        assert word in shared
    assert "8 deployments of a whole model each" in dedicated


def test_reports(comparison: Any, tmp_path: Path) -> None:
    data = as_json(comparison)
    assert list(data) == ["vllm", DEDICATED] and data["vllm"]["simlora_version"]
    write_texts(tmp_path / "out", comparison_texts(comparison, data), "--report")
    assert json.loads((tmp_path / "out" / "comparison.json").read_text()) == data
    assert len(cells(comparison, comparison.played[0])) == len(COLUMNS)
    for text in (markdown(comparison), html(comparison)):
        assert "dedicated" in text and "extrapolated" in text and "None" not in text


def test_the_order_is_that_of_the_request() -> None:
    mixed = scenario(adapters={"count": 8, "ranks": {8: 0.5, 16: 0.5}})
    assert list(as_json(compare_engines(mixed, ["punica", "vllm", "punica"]))) == ["punica", "vllm"]


def test_files_are_written_all_or_none(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(ConfigError, match=r"--report: .*: a folder that can be written"):
        write_texts(tmp_path, {"a": "1", "b": "2", "c": "3"}, "--report")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    write_texts(tmp_path / "new" / "folder", {"a": "1", "c": "3"}, "--report")
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == ["a", "c"]


def test_what_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path, tmp_path / "file" / "out.json"):
        with pytest.raises(ConfigError, match="--json"):
            check_writable(path, "--json")
        with pytest.raises(ConfigError, match="--json"):
            write_whole(path, "text", "--json")
    with pytest.raises(ConfigError, match="--report"):
        check_writable(tmp_path / "file", "--report", folder=True)
    check_writable(tmp_path / "deep" / "er" / "out.json", "--json")
    check_writable(tmp_path / "deep" / "er", "--report", folder=True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
