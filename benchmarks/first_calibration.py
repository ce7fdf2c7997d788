"""Everything of the first H200 calibration that is not fitted: identity, provenance, measured ranges, assumptions."""

from __future__ import annotations

from typing import Any

from simlora.latency.calibration import SCHEMA, Calibration

MODEL = {"hidden_size": (4096, 4096), "num_hidden_layers": (32, 32), "num_experts": (0, 0)}
ONE_GPU = {"tensor_parallel_size": (1, 1)}

STARTS: dict[str, dict[str, float]] = {
    "operators": {
        "weight_bytes_per_s": 4.2e12, "gemm_flops": 6.8e14, "blend": 2.0, "layer_s": 42e-6,
        "activation_bytes_per_s": 2.5e12,
    },
    "attention": {"kv_bytes_per_s": 4.05e12, "request_tokens": 70.0, "prefill_flops": 4.2e14},
    "lora_kernels": {
        "launch_s": 3.6e-6, "zero_s": 1e-6, "dead_shrink_s": 0.5e-9, "dead_expand_s": 0.8e-9, "shrink_s": 9e-9,
        "shrink_wide_s": 2e-9, "expand_s": 15e-9, "expand_wide_s": 20e-9,
    },
    "host": {
        "prepare_s": 1.5e-3, "prepare_request_s": 40e-6, "change_s": 0.8e-3, "metadata_s": 3e-3, "launch_s": 1.5e-3,
        "piecewise_layer_s": 2.5e-4, "eager_layer_s": 7.5e-4, "eager_lora_unused_layer_s": 4e-4,
        "eager_lora_layer_s": 1.6e-3, "tail_s": 1e-3,
    },
    "copies": {
        "module_s": 70e-6, "bytes_per_s": 54e9, "mismatch_module_s": 10e-6, "disk_module_s": 200e-6,
        "disk_bytes_per_s": 1e9,
    },
    "front_end": {"in_s": 1.3e-3, "out_s": 0.7e-3, "out_request_s": 60e-6, "http_s": 2e-3},
    "collectives": {"latency_s": 8e-6, "link_fraction": 0.7},
    "engine_start": {"base_s": 94.0, "lora_s": 47.0, "slot_s": 0.0},
}  # fmt: skip

RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "operators": MODEL | ONE_GPU | {"tokens": (1, 2048), "requests": (1, 256)},
    "attention": ONE_GPU | {"context_tokens": (0, 110_000)},
    "lora_kernels": MODEL | ONE_GPU | {
        "tokens": (1, 8192), "adapters": (1, 32), "max_loras": (8, 128), "max_lora_rank": (16, 64),
    },
    "host": {"num_hidden_layers": (32, 32), "requests": (1, 256)},
    "copies": {"num_hidden_layers": (32, 32), "max_lora_rank": (16, 64)},
    "front_end": {"requests": (1, 256)},
    "collectives": {},
    "engine_start": {"num_hidden_layers": (32, 32), "max_loras": (8, 32)},
}  # fmt: skip

NOTES = {
    "operators": "Decode rows and prompts of one model size: the weight rate is assumed, the cost per layer follows.",
    "lora_kernels": "Kernel times of whole steps; zero_s from decode rows. Tokens of several adapters spread evenly.",
    "host": "Step logs and micro runs, one factor per engine process; the host's speed drifts by a fifth within a run.",
    "copies": "Loads from disk scatter by a half between processes and repeats; reads came from the page cache.",
    "front_end": "In-process client. http_s is assumed: no HTTP endpoint was measured.",
    "collectives": "Assumed: nothing with more than one GPU was measured.",
    "engine_start": "Five engine processes: 94 s without LoRA, 85 to 174 s (mean 141) with 8 or 32 slots.",
}


def skeleton() -> Calibration:
    """A complete calibration whose parameters are starting values."""
    terms: dict[str, Any] = {}
    for name, parameters in STARTS.items():
        basis = "assumed" if name == "collectives" else "measured"
        terms[name] = {
            "basis": basis, "measured": RANGES[name], "note": NOTES.get(name, ""), "parameters": parameters,
        }  # fmt: skip
    return Calibration.model_validate(
        {
            "schema": SCHEMA,
            "id": "nvidia-h200",
            "engine": {"kind": "vllm", "version": "0.20"},
            "gpu": {
                "name": "h200-141gb",
                "architecture": "hopper",
                "hbm_bytes_per_s": 4.8e12,
                "bf16_flops": 989e12,
                "sm_count": 132,
                "host_link_bytes_per_s": 64e9,
                "gpu_link_bytes_per_s": 450e9,
            },
            "provenance": {
                "host_cpu": "Intel Xeon (virtual machine, 16 cores), machines A and B of one kind",
                "driver": "not recorded",
                "versions": {"vllm": "0.20.2", "torch": "2.11.0+cu130", "triton": "3.6.0"},
                "date": "2026-11-29",
                "command": "",
                "source_runs": (),
            },
            "terms": terms,
        }
    )
