"""Questions and accidents of real users, each as a test. The numbers are those of reference/cases.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simlora.engines.fit import build_ledger, require_fit
from simlora.engines.pricing import scenario_latency
from simlora.errors import ConfigError
from simlora.latency.step_latency import StepLatency
from simlora.scenario.load import changed, scenario_from_dict
from simlora.scenario.root import Scenario
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate
from simlora.workload.adapter_table import build_adapters
from simlora.workload.requests import build_requests
from simlora.workload.traces.reader import parse_trace, read_trace
from simlora.workload.traces.table import TraceOptions


def scenario(**sections: object) -> Scenario:
    return scenario_from_dict({"model": "llama-3.1-8b", "gpu": "h200-141gb", **sections})


def latency_of(item: Scenario) -> StepLatency:
    return scenario_latency(item)


def test_c03_kv_memory_per_slot_in_closed_form() -> None:
    """H100 64 GB, vLLM 0.8.5, Llama-3.1-8B: 5.76 MB x rank + 6.5 MB a slot; rank 32 x 224 slots leave no KV."""
    engine = {
        "version": "0.8.5",
        "max_loras": 8,
        "max_lora_rank": 16,
        "max_num_seqs": 2048,
        "max_num_batched_tokens": 2048,
    }
    base = scenario(
        gpu="h100-64gb",
        engine={**engine, "max_model_len": 8192},
        storage={"host_gib": 4096},
        adapters={"count": 300, "ranks": 16},
    )
    measured = {8: 302_000, 64: 256_640, 128: 212_032, 224: 138_272}
    for slots, tokens in measured.items():
        kv = build_ledger(changed(base, {"engine.max_loras": slots})).kv_tokens
        assert kv == pytest.approx(tokens, rel=0.03), slots
    wide = changed(base, {"engine.max_loras": 224, "engine.max_lora_rank": 32})
    with pytest.raises(ConfigError, match="largest max_loras that fits"):
        require_fit(wide)


def test_c05_loading_into_a_slot_is_bound_by_launches_not_by_bytes() -> None:
    """Four times larger adapters load in nearly the same time; a rank below the slot's adds 10 to 27 %."""
    own = [
        latency_of(scenario(engine={"max_loras": 8, "max_lora_rank": rank})).load_s(rank, "host")
        for rank in (8, 16, 32)
    ]
    assert max(own) / min(own) < 1.25
    wide = latency_of(scenario(engine={"max_loras": 8, "max_lora_rank": 32}))
    assert 1.0 < wide.load_s(8, "host") / own[0] < 1.4
    bytes_alone = 2 * 20.97e6 / 50e9  # a rank-8 adapter of Llama-3.1-8B over a 50 GB/s link
    assert own[0] > 4 * bytes_alone


def test_c36_planning_questions_have_one_line_answers() -> None:
    """Which adapters fit in GPU memory, which in host memory, for a thousand adapters on one card."""
    item = scenario(
        engine={"max_loras": 16, "max_lora_rank": 16, "max_cpu_loras": 1000, "max_model_len": 8192},
        adapters={"count": 1000, "ranks": 16},
    )
    ledger = build_ledger(item)
    assert ledger.slots_bytes == 16 * ledger.slot_bytes
    assert ledger.host_bytes == 1000 * ledger.adapter_bytes(16)
    assert ledger.kv_tokens > 0


def test_c37_max_cpu_loras_follows_max_loras_and_may_not_be_below() -> None:
    assert scenario(engine={"max_loras": 8}).engine.max_cpu_loras == 8
    with pytest.raises(ConfigError) as error:
        scenario(engine={"max_loras": 8, "max_cpu_loras": 4})
    assert "max_cpu_loras" in str(error.value) and "max_loras" in str(error.value)
    assert "4" in str(error.value) and "8" in str(error.value)


@pytest.mark.parametrize("end", ["drain", "cut"])
def test_c38_slots_never_leak(end: str) -> None:
    """2 slots, 3 host places, 6 adapters, prompts in chunks: INV-3 and INV-4 hold at every plan, and all get served."""
    item = scenario(
        engine={"max_loras": 2, "max_cpu_loras": 3, "max_num_batched_tokens": 256, "max_num_seqs": 16},
        adapters={"count": 6, "pinned": [3]},
        workload={"arrivals": {"kind": "poisson", "rate_rps": 4}, "duration_s": 30, "end": end},
    )
    log = simulate(build_inputs(item), check=True)
    assert end == "cut" or np.all(log.requests.status == 0)


def test_c46_long_requests_are_never_clipped_silently(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("arrival_s,adapter,prompt_tokens,output_tokens\n0,0,100,50\n1,0,900,500\n2,0,5000,10\n3,0,10,20\n")
    item = scenario(
        engine={"max_model_len": 1024}, workload={"trace": {"path": str(path), "format": "csv"}, "scale_rate": 2.0}
    )
    table = build_requests(item, build_adapters(item))
    notes = " ".join(table.notes)
    assert len(table) == 3 and int(table.output_tokens.max()) == 124
    assert "1 " in notes and "1024" in notes.replace(",", "")
    assert "2" in notes  # the factor and the resulting rate are said
    assert table.arrival_s[-1] == pytest.approx(1.5)


def test_c48_trace_units_are_checked(tmp_path: Path) -> None:
    """Mooncake counts milliseconds; the same names in seconds are a thousand times apart."""
    line = '{"timestamp": %d, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}'
    table = parse_trace("\n".join(line % t for t in (0, 1000, 2000)), "m.jsonl", TraceOptions(format="mooncake"))
    assert table.arrival_s.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(ConfigError, match="hash_ids"):
        parse_trace(line.replace("[1, 2]", "[1]") % 0, "m.jsonl", TraceOptions(format="mooncake"))
    path = tmp_path / "ns.csv"
    path.write_text(
        "arrival_s,adapter,prompt_tokens,output_tokens\n" + "".join(f"{i * 1e-6},0,5,5\n" for i in range(50))
    )
    with pytest.raises(ConfigError, match="unit"):
        read_trace(path, TraceOptions(format="csv"))


@pytest.mark.parametrize("version", ["0.7.3", "0.6", "0.19", "1.0"])
def test_c49_other_versions_are_refused_by_name(version: str) -> None:
    with pytest.raises(ConfigError) as error:
        scenario(engine={"version": version})
    assert "engine.version" in str(error.value) and version in str(error.value) and "0.20" in str(error.value)
