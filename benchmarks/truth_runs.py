"""Reading recorded runs of ../shared/truth, and the metrics both sides are compared by."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simlora.latency.calibration import Calibration
from simlora.latency.model import StepLatency
from simlora.scenario.gpu_catalog import builtin_gpu
from simlora.scenario.model_catalog import builtin_model

TRUTH = Path(__file__).resolve().parents[2] / "shared" / "truth" / "vllm-0.20.2-h200"
PEERS = Path(__file__).resolve().parents[2] / "shared" / "peers" / "kernels-h200.jsonl"
GPU = "h200-141gb"


@dataclass(frozen=True)
class Engine:
    """Engine flags of a recorded run; satisfies simlora.latency.inputs.EngineSettings."""

    enable_lora: bool
    max_loras: int
    max_lora_rank: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_cpu_loras: int = 1
    kind: str = "vllm"
    version: str = "0.20"
    tensor_parallel_size: int = 1
    enforce_eager: bool = False
    specialize_active_lora: bool = False
    fully_sharded_loras: bool = False
    endpoint: str = "in-process"


@dataclass(frozen=True)
class Run:
    """One folder: run.json and whichever tables it has."""

    name: str
    meta: dict[str, Any]
    tables: dict[str, pd.DataFrame]

    @property
    def engine(self) -> Engine:
        flags, limits = self.meta["engine"], self.meta["resolved"]
        return Engine(
            enable_lora=flags.get("enable_lora", False),
            max_loras=flags.get("max_loras", 1),
            max_lora_rank=flags.get("max_lora_rank", 16),
            max_num_seqs=limits["max_num_seqs"],
            max_num_batched_tokens=limits["max_num_batched_tokens"],
        )

    @property
    def machine(self) -> str:
        return str(self.meta["host"]["machine"])

    def latency(self, calibration: Calibration) -> StepLatency:
        model, gpu = builtin_model(self.meta["model"]), builtin_gpu(GPU)
        assert model is not None and gpu is not None
        return StepLatency(model, gpu, self.engine, calibration)


def read_runs(kind: str) -> list[Run]:
    """All runs of a kind ("micro" or "trace"), by name."""
    runs = []
    for folder in sorted(TRUTH.iterdir()):
        if not (folder / "run.json").is_file():
            continue
        meta = json.loads((folder / "run.json").read_text())
        if meta["kind"] == kind:
            tables = {path.stem: pd.read_csv(path) for path in sorted(folder.glob("*.csv"))}
            runs.append(Run(folder.name, meta, tables))
    return runs


def read_peers() -> list[dict[str, Any]]:
    """Measured LoRA kernel times of whole steps."""
    rows = [json.loads(line) for line in PEERS.read_text().splitlines()]
    return [row for row in rows if row.get("vllm") and "tokens" in row]


def read_copies() -> list[dict[str, float]]:
    rows = [json.loads(line) for line in PEERS.read_text().splitlines()]
    return [row for row in rows if "h2d_bytes" in row]


def metrics(arrival: Any, output: Any, ttft: Any, e2e: Any) -> dict[str, float]:
    """Of the requests that finished: throughput (1/s), and TTFT and TPOT in seconds."""
    done = ~np.isnan(e2e)
    arrival, output, ttft, e2e = arrival[done], output[done], ttft[done], e2e[done]
    several = output > 1
    tpot = (e2e[several] - ttft[several]) / (output[several] - 1)
    return {
        "request_throughput_rps": len(arrival) / float((arrival + e2e).max() - arrival.min()),
        "tpot_mean_s": float(tpot.mean()),
        "tpot_p99_s": float(np.percentile(tpot, 99)),
        "ttft_mean_s": float(ttft.mean()),
        "ttft_p50_s": float(np.median(ttft)),
        "ttft_p99_s": float(np.percentile(ttft, 99)),
    }
