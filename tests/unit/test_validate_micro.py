"""Single measurements: the simulator's answer to the recorder's small request streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from validate_runs import RUN, write_run

from simlora.runs.recorded import read_recorded_run
from simlora.validate.compare import compare, validate
from simlora.validate.rows import DECODE, LOAD, PREFILL, Row

DECODES = """batch,distinct_adapters,rank,prompt_tokens,itl_p50_s
1,0,0,256,0.005
32,0,0,256,0.0055
32,4,16,256,0.009
32,4,16,2048,0.011
"""
PREFILLS = """prompt_tokens,rank,repeat,ttft_s
128,0,0,9.0
128,0,1,0.014
128,0,2,0.016
128,0,3,0.03
128,16,0,0.4
128,16,1,0.02
"""


def micro(tmp_path: Path, changes: dict[str, Any] | None = None, **tables: str) -> dict[tuple[str, ...], Row]:
    folder = write_run(tmp_path / "run", {"kind": "micro", "initial_adapters": None, **(changes or {})}, None, **tables)
    rows = compare(read_recorded_run(folder))
    return {(row.metric, *map(str, row.key.values())): row for row in rows}


def loads(adapters: int) -> str:
    rows = [f"16,{phase},{repeat},0.1" for phase in ("cold", "warm") for repeat in range(adapters)]
    return "\n".join(["rank,phase,repeat,ttft_s", *rows, *(f"16,hot,{repeat},0.02" for repeat in range(8))]) + "\n"


def test_decode_gaps(tmp_path: Path) -> None:
    rows = micro(tmp_path, decode=DECODES)
    alone, base, lora, long = rows.values()
    assert [row.metric for row in rows.values()] == [DECODE] * 4
    assert base.key == {"batch": 32, "distinct_adapters": 0, "rank": 0, "prompt_tokens": 256}
    assert (base.measured, lora.measured) == (0.0055, 0.009)
    assert alone.simulated is not None and base.simulated is not None
    assert lora.simulated is not None and long.simulated is not None
    assert 0.003 < alone.simulated <= base.simulated < lora.simulated < long.simulated < 0.03
    shorter, longer = base.simulated_step_x095, base.simulated_step_x105
    assert shorter == pytest.approx(0.95 * base.simulated) and longer == pytest.approx(1.05 * base.simulated)


def test_a_row_that_never_is_steady_has_no_simulated_value(tmp_path: Path) -> None:
    # The last of 200 prompts is computed after the first requests have ended.
    text = "batch,distinct_adapters,rank,prompt_tokens,itl_p50_s,output_tokens\n200,0,0,2048,0.01,8\n"
    (row,) = micro(tmp_path, decode=text).values()
    assert row.simulated is None and row.error is None
    assert row.to_dict()["simulated"] is None


def test_prefills_leave_their_first_repeat_out(tmp_path: Path) -> None:
    rows = micro(tmp_path, prefill=PREFILLS)
    base, lora = rows[(PREFILL, "128", "0")], rows[(PREFILL, "128", "16")]
    assert base.measured == 0.016
    assert lora.measured == 0.02
    # With an adapter that is in its slot, not one that has to be loaded.
    assert base.simulated is not None and lora.simulated is not None
    assert base.simulated <= lora.simulated < base.simulated + 0.03


def test_loads_by_where_the_adapter_is(tmp_path: Path) -> None:
    rows = micro(tmp_path, load=loads(8))  # 4 slots, 8 in host memory: each use evicts the adapter needed next but 3
    cold, warm, hot = (rows[(LOAD, "16", phase)].simulated for phase in ("cold", "warm", "hot"))
    assert cold is not None and warm is not None and hot is not None
    assert cold > warm + 0.05 > warm > hot + 0.005


def test_adapters_that_all_have_a_slot_are_warm_there(tmp_path: Path) -> None:
    rows = micro(tmp_path, load=loads(4))
    assert rows[(LOAD, "16", "warm")].simulated == pytest.approx(rows[(LOAD, "16", "hot")].simulated)


def test_without_host_memory_to_spare_every_return_is_cold(tmp_path: Path) -> None:
    small = {"engine": {**RUN["engine"], "max_cpu_loras": 4}, "resolved": {**RUN["resolved"], "max_cpu_loras": 4}}
    rows = micro(tmp_path, small, load=loads(8))
    assert rows[(LOAD, "16", "warm")].simulated == pytest.approx(rows[(LOAD, "16", "cold")].simulated)


def test_one_folder_may_hold_everything(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", decode=DECODES, prefill=PREFILLS, load=loads(2))
    report = validate([folder])
    assert len(report.of_requests()) == 10
    assert [row.metric for row in report.of_measurements()] == [DECODE] * 4 + [PREFILL] * 2 + [LOAD] * 3
