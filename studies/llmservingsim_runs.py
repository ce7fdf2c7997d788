"""Four base-model runs of vLLM 0.19 published with LLMServingSim, as recorded runs (simlora-run/1).

    python studies/llmservingsim_runs.py [--data FOLDER] --out FOLDER

Source: casys-kaist/LLMServingSim, commit 5daddb2 (2026-08-21), MIT. Each run has NAME__meta.json (engine flags) and
NAME__requests.jsonl with two clocks: arrival_time is the wall clock, the other stamps are the engine's monotonic clock,
so that TTFT and E2E are taken from queued_ts on.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data" / "llmservingsim_vllm019_validation"

GPUS = {"RTX4090": "rtx-4090", "RTXPRO6000": "rtx-pro-6000"}
MODELS = {
    "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
}
LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")


def run_names(data: Path = DATA) -> list[str]:
    return sorted(path.name.removesuffix("__meta.json") for path in data.glob("*__meta.json"))


def convert(name: str, out: Path, data: Path = DATA) -> Path:
    """Write the run's folder under `out`; returns it."""
    meta: dict[str, Any] = json.loads((data / f"{name}__meta.json").read_text())
    lines = (data / f"{name}__requests.jsonl").read_text().splitlines()
    requests = [json.loads(line) for line in lines if line.strip()]
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(_run(name, meta), indent=1) + "\n")
    with (folder / "requests.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("arrival_s", "adapter", "rank", "prompt_tokens", "output_tokens", "ttft_s", "e2e_s"))
        writer.writerows(_rows(requests))
    return folder


def _run(name: str, meta: dict[str, Any]) -> dict[str, Any]:
    flags = meta["engine_kwargs"]
    resolved = {key: flags[key] for key in LIMITS if flags.get(key) is not None}
    cache = meta.get("kv_cache", {})
    if cache.get("num_gpu_blocks"):
        resolved |= {"num_gpu_blocks": cache["num_gpu_blocks"], "block_size": cache["block_size"]}
    run: dict[str, Any] = {
        "format": "simlora-run/1",
        "name": name,
        "kind": "trace",
        "gpu": GPUS[name.split("_")[0]],
        "server": "vllm",
        "server_version": "0.20",
        "notes": f"recorded on vLLM {meta['vllm_version']}, simulated by the rules of 0.20",
        "model": MODELS[meta["model"]],
        "engine": {
            "enable_lora": False,
            "tensor_parallel_size": flags["tensor_parallel_size"],
            "gpu_memory_utilization": cache.get("gpu_memory_utilization", 0.9),
        },
        "resolved": resolved,
        "endpoint": "in-process",
        "prefix_caching": False,
    }
    replicas = flags.get("data_parallel_size", 1)
    if replicas > 1:
        run["cluster"] = {"replicas": replicas, "router": {"kind": "least-requests"}}
    return run


def _rows(requests: Iterable[dict[str, Any]]) -> Iterable[tuple[Any, ...]]:
    ordered = sorted(requests, key=lambda request: request["arrival_time"])
    start = ordered[0]["arrival_time"]
    for request in ordered:
        queued = request["queued_ts"]
        yield (
            round(request["arrival_time"] - start, 6), 0, 0, request["input_toks"], request["output_toks"],
            round(request["first_token_ts"] - queued, 6), round(request["last_token_ts"] - queued, 6),
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    for name in run_names(args.data):
        print(convert(name, args.out, args.data))


if __name__ == "__main__":
    main()
