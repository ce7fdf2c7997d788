"""Fits scenarios/calibrations/nvidia-h100.json (vLLM 0.8.5) to published measurements, without a GPU.

    python studies/fit_h100.py --agullo FILE.csv              # half an hour on two cores
    python studies/fit_h100.py --held-out SCORES.json         # writes accuracy_agullo.py's error on other rows into it

Kernel terms start from the H200's, scaled by bandwidth. First, single steps: full batches of decodes, prompts, and
steps of runs that are saturated (h100_samples.py), priced directly. Then runs between idle and saturated are simulated
as a whole, and least squares over both move all terms together. Loads, start-up and front end are taken over.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from agullo_rows import AgulloRow
from agullo_run import play
from h100_samples import (
    DECODES,
    LLAMA,
    PREFILL_RPS,
    PREFILL_TOKENS,
    QWEN,
    DecodeSample,
    SaturatedSample,
    middle_rows,
    saturated_samples,
)
from scipy.optimize import least_squares
from simlora.calibrate.base import Engine

from simlora.engines.vllm.profile import vllm_profile
from simlora.latency.calibration import Calibration
from simlora.latency.scaling import scale_to_gpu
from simlora.latency.step import Prefill, StepPlan, StepTiming
from simlora.latency.step_latency import StepLatency
from simlora.latency.store import load_calibration
from simlora.scenario.gpu import builtin_gpu
from simlora.scenario.model import builtin_model

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "scenarios" / "calibrations" / "nvidia-h100.json"
GPU = "h100-64gb"
COMMAND = "python studies/fit_h100.py --agullo agullo_vllm_h100_multilora_runs.csv"

Key = tuple[str, str]

PRIORS: dict[Key, tuple[float, float]] = {
    # the H200's values by the ratio of bandwidths (2.0 to 4.8 TB/s)
    ("operators", "weight_bytes_per_s"): (1.75e12, 0.04),
    ("operators", "gemm_flops"): (7.0e14, 0.1),
    ("operators", "layer_s"): (43e-6, 0.3),
    ("operators", "activation_bytes_per_s"): (1.05e12, 0.3),
    ("attention", "kv_bytes_per_s"): (1.69e12, 0.05),
    ("attention", "request_tokens"): (42.0, 0.5),
    ("attention", "prefill_flops"): (4.5e14, 0.3),
    # the H200's blocks; a block that works waits for memory
    ("lora_kernels", "launch_s"): (3.6e-6, 0.3),
    ("lora_kernels", "zero_s"): (1.5e-6, 0.5),
    ("lora_kernels", "dead_shrink_s"): (5.2e-10, 0.3),
    ("lora_kernels", "dead_expand_s"): (7.6e-10, 0.4),
    ("lora_kernels", "shrink_s"): (8.8e-9, 0.3),
    ("lora_kernels", "expand_s"): (15e-9, 0.4),
    # one of 8 splits goes through 14 to 16 slices of K in a row, one of 64 through one or none
    ("lora_kernels", "shrink_wide_s"): (4e-8, 0.8),
    ("lora_kernels", "expand_wide_s"): (21e-9, 0.4),
    ("lora_kernels", "surplus_factor"): (1.5, 0.4),
    ("lora_kernels", "row_bytes_per_s"): (1.2e12, 0.6),
    ("host", "prepare_s"): (1.8e-3, 0.4),
    ("host", "prepare_request_s"): (30e-6, 0.3),
    ("host", "change_s"): (0.5e-3, 0.5),
    ("host", "metadata_s"): (1.0e-3, 0.5),
    ("host", "metadata_token_s"): (1e-6, 0.5),
    ("host", "metadata_slot_s"): (35e-9, 0.4),
    # copying a dictionary view of n adapters, timed in Python: 0.25 to 0.4 us each
    ("host", "registered_s"): (0.3e-6, 0.3),
    ("host", "eager_lora_layer_s"): (1.2e-3, 0.8),
}
"""Parameter -> (expected value, relative width)."""
FIXED: dict[Key, float] = {
    ("host", "launch_s"): 0.8e-3,
    ("host", "tail_s"): 0.8e-3,
    ("host", "piecewise_layer_s"): 0.15e-3,
    ("host", "eager_layer_s"): 0.4e-3,
    ("host", "eager_lora_unused_layer_s"): 0.2e-3,
    # 4.6 ms at 20,309 waiting requests: predictor_scheduler_overhead.py of the same repository
    ("host", "skip_s"): 0.227e-6,
    # 6.4 ms for 224 pairs of any rank (Llama); 1.6 ms more where the rank is below the slots'
    ("copies", "module_s"): 28.4e-6,
    ("copies", "mismatch_module_s"): 5.5e-6,
}
"""Shown by none of the samples, or measured by itself."""
DECODE_ERROR, PREFILL_ERROR, SATURATED_ERROR, RUN_ERROR = 0.02, 0.05, 0.02, 0.02
MIDDLE_S = 700.0
"""Of a run between idle and saturated, that much is simulated in the fit."""
STEP, ROUNDS = 0.15, 3


def start() -> Calibration:
    """The H200's calibration on this GPU, with the older engine's fixed values."""
    gpu = builtin_gpu(GPU)
    assert gpu is not None
    scaled = scale_to_gpu(load_calibration("nvidia-h200"), gpu)
    data = scaled.model_dump(mode="json", by_alias=True) | {"id": "nvidia-h100", "extrapolated": [], "notes": []}
    data["engine"] = {"kind": "vllm", "version": "0.8"}
    start_parameters = vllm_profile(Engine(version="0.8.5")).start
    assert start_parameters is not None
    data["terms"]["engine_start"]["parameters"] = start_parameters.model_dump()
    data["terms"]["copies"]["parameters"]["overlapped"] = True
    return with_values(Calibration.model_validate(data), FIXED)


def with_values(calibration: Calibration, values: dict[Key, float]) -> Calibration:
    data = calibration.model_dump(mode="json", by_alias=True)
    for (term, name), value in values.items():
        data["terms"][term]["parameters"][name] = max(value, 1.0) if name == "surplus_factor" else value
    return Calibration.model_validate(data)


# --- single steps ----------------------------------------------------------------------------------------------------


def latency_of(calibration: Calibration, model: str, slots: int, rank: int, registered: int) -> StepLatency:
    spec, gpu = builtin_model(model), builtin_gpu(GPU)
    assert spec is not None and gpu is not None
    engine = Engine(
        version="0.8.5",
        enable_lora=slots > 0,
        max_loras=max(slots, 1),
        max_lora_rank=rank or 16,
        max_cpu_loras=max(registered, 1),
        max_num_seqs=2048,
        max_num_batched_tokens=2048,
    )
    return StepLatency(spec, gpu, engine, calibration, vllm_profile(engine))


def seconds(timing: StepTiming) -> float:
    return timing.host_s + timing.load_s + timing.gpu_s + timing.sync_s


def decode_s(calibration: Calibration, sample: DecodeSample) -> float:
    """Mean step of a full batch: where a request leaves, another one's prompt joins the step."""
    latency = latency_of(calibration, sample.model, sample.slots, sample.rank, sample.slots)
    batch, adapters, context = sample.batch, sample.distinct, sample.prompt_tokens + sample.output_tokens // 2
    joining = batch / sample.output_tokens
    calm = math.exp(-joining)
    alone = StepPlan(
        (), batch, batch * context, batch, batch, adapters, batch if adapters else 0, sample.rank, False, (), 1
    )
    prompts = max(1, round(joining / (1.0 - calm)))
    decodes, tokens = batch - prompts, batch + prompts * (sample.prompt_tokens - 1)
    chunks = tuple(Prefill(index, 0, sample.prompt_tokens) for index in range(prompts))
    mixed = StepPlan(
        chunks, decodes, decodes * context, tokens, batch, adapters, tokens if adapters else 0, sample.rank, True, (), 1
    )
    return calm * seconds(latency.price(alone)) + (1.0 - calm) * seconds(latency.price(mixed))


def prefill_s(calibration: Calibration) -> float:
    latency = latency_of(calibration, LLAMA, 0, 0, 0)
    count = 2048 // PREFILL_TOKENS
    chunks = tuple(Prefill(index, 0, PREFILL_TOKENS) for index in range(count))
    tokens = count * PREFILL_TOKENS
    return seconds(latency.price(StepPlan(chunks, 0, 0, tokens, count, 0, 0, 0, True, (), 1))) / count


def saturated_s(calibration: Calibration, sample: SaturatedSample, prompt: int = 222, context: int = 400) -> float:
    latency = latency_of(calibration, QWEN, sample.slots, sample.rank, sample.registered)
    batch, rest = sample.batch, sample.tokens - sample.batch
    count = max(1, round(rest / prompt))
    chunks = tuple(Prefill(index, 0, rest // count) for index in range(count))
    plan = StepPlan(
        chunks, batch, batch * context, sample.tokens, batch + count, sample.slots, sample.tokens, sample.rank, True,
        (), 1,
    )  # fmt: skip
    return seconds(latency.price(plan))


def step_residuals(calibration: Calibration, saturated: Sequence[SaturatedSample]) -> list[float]:
    decodes = [math.log(decode_s(calibration, item) / item.tpot_s) / DECODE_ERROR for item in DECODES]
    prefill = math.log(prefill_s(calibration) * PREFILL_RPS) / PREFILL_ERROR
    full = [math.log(saturated_s(calibration, item) / item.step_s) / SATURATED_ERROR for item in saturated]
    return [*decodes, prefill, *full]


# --- whole runs ------------------------------------------------------------------------------------------------------


def _played(row: AgulloRow, calibration: str) -> float:
    return play(row, calibration).metrics["tpot_s"]


def run_residuals(calibration: Calibration, rows: Sequence[AgulloRow], pool: Any) -> np.ndarray:
    """TPOT of simulated runs against the client's."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "candidate.json"
        path.write_text(calibration.model_dump_json(by_alias=True))
        found = pool.map(partial(_played, calibration=str(path)), rows, chunksize=1)
    return np.array(
        [math.log(tpot_s / row.measured["tpot_s"]) / RUN_ERROR for tpot_s, row in zip(found, rows, strict=True)]
    )


class Fit:
    """Logarithms of all parameters over their priors' means."""

    def __init__(self, path: Path) -> None:
        self.base, self.keys = start(), list(PRIORS)
        self.saturated = saturated_samples(path)
        self.rows = [replace(row, total_time_s=MIDDLE_S) for row in middle_rows(path)]

    def calibration(self, x: np.ndarray) -> Calibration:
        return with_values(self.base, {key: PRIORS[key][0] * math.exp(v) for key, v in zip(self.keys, x, strict=True)})

    def residuals(self, x: np.ndarray) -> list[float]:
        prior = [value / PRIORS[key][1] for key, value in zip(self.keys, x, strict=True)]
        return step_residuals(self.calibration(x), self.saturated) + prior

    def steps(self) -> np.ndarray:
        """Single steps alone."""
        return np.asarray(least_squares(self.residuals, np.zeros(len(self.keys))).x)

    def refine(self, x: np.ndarray) -> np.ndarray:
        """Single steps and whole runs; the runs by derivatives at x, corrected after every round (Broyden)."""
        with multiprocessing.Pool(os.cpu_count()) as pool:
            found = run_residuals(self.calibration(x), self.rows, pool)
            print(f"{len(self.rows)} runs, sum of squares {float(found @ found):.0f}", flush=True)
            columns = []
            for index in range(len(x)):
                moved = x.copy()
                moved[index] += STEP
                columns.append((run_residuals(self.calibration(moved), self.rows, pool) - found) / STEP)
            matrix = np.array(columns).T
            for _ in range(ROUNDS):
                here, at = found, x
                x = least_squares(
                    lambda y, here=here, at=at, matrix=matrix: [*(here + matrix @ (y - at)), *self.residuals(y)],
                    x, loss="soft_l1", f_scale=2.0,
                ).x  # fmt: skip
                found, change = run_residuals(self.calibration(x), self.rows, pool), x - at
                print(f"sum of squares {float(found @ found):.0f}", flush=True)
                matrix = matrix + np.outer(found - here - matrix @ change, change) / (change @ change)
        return x


# --- the file --------------------------------------------------------------------------------------------------------

Ranges = dict[str, tuple[float, float]]
MODELS: Ranges = {
    "hidden_size": (3584, 4096),
    "num_hidden_layers": (28, 32),
    "num_experts": (0, 0),
}
ONE_GPU: Ranges = {"tensor_parallel_size": (1, 1)}
RANGES: dict[str, Ranges] = {
    "operators": MODELS | ONE_GPU | {"tokens": (1, 2048), "requests": (1, 1000)},
    "attention": ONE_GPU | {"context_tokens": (0, 400_000)},
    "lora_kernels": MODELS
    | ONE_GPU
    | {"tokens": (1, 2048), "adapters": (1, 384), "max_loras": (8, 384), "max_lora_rank": (8, 32)},
    "host": {"num_hidden_layers": (28, 32), "requests": (1, 1000)},
    "copies": {"num_hidden_layers": (28, 32), "max_lora_rank": (8, 32)},
    "front_end": {},
    "collectives": {},
    "engine_start": {"max_loras": (8, 384)},
}
BASES = {"front_end": "assumed", "collectives": "assumed"}
NOTES = {
    "operators": "Starts from the H200's by bandwidth; decode batches of two models, and prompts of one.",
    "attention": "Starts from the H200's by bandwidth.",
    "lora_kernels": "No kernel was timed alone: block costs follow from steps over slots, ranks and distinct adapters.",
    "host": "Launch costs per layer are assumed but for eager LoRA; where the GPU takes longer they do not show.",
    "copies": "Published host times of loads; from disk as on the H200: no run reads adapters from disk.",
    "front_end": "Taken over from the H200's; mean TTFT of light rows agrees.",
    "collectives": "Assumed: nothing with more than one GPU was measured.",
    "engine_start": "Graph capture by slots, from start-up logs.",
}
SOURCES = (
    "FerranAgulloLopez/GPULLMAdapterOptimization@bae36e2d: estimators/predictor_default_latency (12 points)",
    "estimators/predictor_latency_overhead (12 points)",
    "estimators/predictor_loading, predictor_scheduler_overhead (constants)",
    "agullo_vllm_h100_multilora_runs.csv: real_results/qwen-2.5-7b-instruct (29 rows fitted, all 163 seen)",
)


def describe(calibration: Calibration, saturated: Sequence[SaturatedSample]) -> dict[str, Any]:
    data = calibration.model_dump(mode="json", by_alias=True)
    decode = _rms([decode_s(calibration, item) / item.tpot_s - 1.0 for item in DECODES])
    lora = [decode_s(calibration, item) / item.tpot_s - 1.0 for item in DECODES if item.slots]
    full = [saturated_s(calibration, item) / item.step_s - 1.0 for item in saturated]
    errors = {"operators": decode, "attention": decode, "lora_kernels": _rms(lora + full), "host": _rms(full)}
    data["provenance"] = {
        "host_cpu": "Intel Xeon Platinum 8460Y+ (MareNostrum 5, 20 cores of a node)",
        "driver": "not recorded",
        "versions": {"vllm": "0.8.5 (0.1.dev6216+g1125ba0, a fork that changes no timing)"},
        "date": "2026-11-29",
        "command": COMMAND,
        "source_runs": list(SOURCES),
        "host_factors": {},
    }
    for name, term in data["terms"].items():
        term |= {
            "basis": BASES.get(name, "measured"),
            "measured": RANGES[name],
            "note": NOTES[name],
            "fit_error": round(errors[name], 4) if name in errors else None,
            "held_out_error": None,
        }
        term["parameters"] = {
            key: float(f"{value:.6g}") if isinstance(value, float) else value
            for key, value in term["parameters"].items()
        }
    return data


def _rms(errors: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


def add_held_out(path: Path, scores: Path) -> None:
    """The error on rows that the fit has not seen, into the terms that were fitted."""
    data, found = json.loads(path.read_text()), json.loads(scores.read_text())
    for name in ("operators", "attention", "lora_kernels", "host"):
        data["terms"][name]["held_out_error"] = round(found["itl_smape"], 4)
    write(data, path)


def write(data: dict[str, Any], path: Path) -> None:
    Calibration.model_validate(data)
    path.write_text(json.dumps(data, indent=1) + "\n")
    print("wrote", path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agullo", type=Path, help="CSV of the published runs: fit")
    parser.add_argument("--held-out", type=Path, help="scores that accuracy_agullo.py --json wrote")
    parser.add_argument("--out", type=Path, default=TARGET)
    args = parser.parse_args()
    if args.agullo:
        fit = Fit(args.agullo)
        x = fit.refine(fit.steps())
        calibration = fit.calibration(x)
        for item in DECODES:
            print(item, f"{decode_s(calibration, item) / item.tpot_s - 1.0:+.1%}")
        for sample in fit.saturated:
            print(sample, f"{saturated_s(calibration, sample) / sample.step_s - 1.0:+.1%}")
        write(describe(calibration, fit.saturated), args.out)
    if args.held_out:
        add_held_out(args.out, args.held_out)


if __name__ == "__main__":
    main()
