"""A valid scenario survives being dumped and loaded, whatever it holds."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from simlora.scenario.load import changed, scenario_from_dict

RATES = st.floats(0.01, 100, allow_nan=False).map(lambda value: round(value, 3))
LENGTHS = st.one_of(
    st.builds(lambda m, s: {"kind": "lognormal", "median": m, "sigma": s}, RATES, st.floats(0, 2)),
    st.builds(lambda low: {"kind": "uniform", "min": low, "max": 2 * low}, st.integers(1, 99)),
    st.builds(lambda n: {"kind": "fixed", "value": n}, st.integers(1, 4000)),
    st.just({"kind": "empirical", "path": "lengths.csv", "column": "n"}),
)
ARRIVALS = st.one_of(
    st.builds(lambda r: {"kind": "poisson", "rate_rps": r}, RATES),
    st.builds(lambda r, cv: {"kind": "gamma", "rate_rps": r, "cv": cv}, RATES, RATES),
    st.builds(lambda r: {"kind": "deterministic", "rate_rps": r}, RATES),
    st.builds(lambda r: {"kind": "diurnal", "mean_rate_rps": r, "peak_to_trough": 3}, RATES),
    st.builds(
        lambda r: {"kind": "flash-crowd", "base_rps": r, "peak_rps": 3 * r, "start_s": 5, "ramp_s": 1, "hold_s": 9},
        RATES,
    ),
    st.builds(
        lambda r: {"kind": "mmpp", "states": [{"rate_rps": r, "mean_s": 9}, {"rate_rps": 0, "mean_s": 5}]},
        RATES,
    ),
)
WORKLOADS = st.one_of(
    st.builds(
        lambda a, p, o: {"arrivals": a, "prompt_tokens": p, "output_tokens": o, "duration_s": 60},
        ARRIVALS,
        LENGTHS,
        LENGTHS,
    ),
    st.builds(
        lambda f, n, r: {"trace": {"path": "t.csv", "format": f}, "limit": n, "scale_rate": r},
        st.sampled_from(["azure", "burstgpt", "mooncake", "vllm-bench", "simlora-run", "csv"]),
        st.integers(1, 99),
        RATES,
    ),
    st.just({"num_requests": 50, "prefix": {"kind": "share", "fraction": 0.3}, "end": "cut"}),
)
ENGINES = st.builds(
    lambda slots, more, version, tp, **switches: {
        "max_loras": slots, "max_cpu_loras": slots + more, "max_lora_rank": 64, "version": version,
        "tensor_parallel_size": tp, **switches,
    },
    st.integers(4, 32), st.integers(0, 9), st.sampled_from(["0.20", "0.8.5"]), st.sampled_from([1, 2, 4]),
    enable_prefix_caching=st.none() | st.booleans(), enforce_eager=st.booleans(),
    max_num_seqs=st.none() | st.integers(1, 256), num_gpu_blocks_override=st.none() | st.integers(2, 9999),
)  # fmt: skip
ADAPTERS = st.one_of(
    st.builds(
        lambda n, alpha, base: {
            "count": n, "ranks": {8: 0.25, 16: 0.75}, "popularity": {"kind": "zipf", "alpha": alpha},
            "base_fraction": base, "pinned": [1],
        },
        st.integers(1, 500), st.floats(0, 2), st.floats(0, 1),
    ),
    st.just({"popularity": {"kind": "classes", "classes": [{"count": 3, "share": 1.0}]}, "ranks": 64}),
    st.just({"count": 5, "rank_by_popularity": "largest-first", "target_modules": ["q_proj", "v_proj"]}),
)  # fmt: skip
GPU = st.sampled_from(
    ["h200", "l4", {"name": "h100-80gb", "host_link": "pcie4"}, {"name": "a100-80gb", "memory_gib": 75.5}]
)


@given(
    data=st.fixed_dictionaries(
        {"model": st.sampled_from(["llama-3.1-8b", "qwen2.5-7b", "llama-3.1-70b"])},
        optional={
            "seed": st.integers(0, 2**40), "gpu": GPU, "engine": ENGINES, "adapters": ADAPTERS, "workload": WORKLOADS,
            "cluster": st.just({"replicas": 3, "router": {"kind": "lora-affinity", "delay_s": 0.1}}),
            "storage": st.just({"host_gib": 4000, "remote": {"bandwidth_gib_s": 2.0}}),
            "slo": st.just({"ttft_s": 0.5}), "cost": st.just({"gpu_hour_usd": 2.5}),
        },
    )
)  # fmt: skip
@settings(max_examples=150)
def test_dump_and_load_give_the_same_scenario(data: dict[str, Any]) -> None:
    if "engine" not in data and "adapters" in data:
        data["engine"] = {"max_loras": 8, "max_lora_rank": 64}
    first = scenario_from_dict(data)
    as_json = first.to_dict()
    assert scenario_from_dict(as_json).to_dict() == as_json
    assert scenario_from_dict(yaml.safe_load(yaml.safe_dump(as_json))).to_dict() == as_json
    assert changed(first, {}).to_dict() == as_json
    engine = first.engine
    assert None not in (engine.max_cpu_loras, engine.max_num_seqs, engine.max_num_batched_tokens, engine.max_model_len)
