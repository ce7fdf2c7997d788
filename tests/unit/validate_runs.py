"""Writes small recorded runs for tests of validation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

TRUTH = Path(__file__).parents[2].parent / "shared" / "truth" / "vllm-0.20.2-h200"

RUN: dict[str, Any] = {
    "format": "simlora-run/1",
    "gpu": "nvidia-h200",
    "server": "vllm",
    "server_version": "0.20.2",
    "model": "llama-3.1-8b",
    "engine": {"enable_lora": True, "max_loras": 4, "max_lora_rank": 16, "max_cpu_loras": 8},
    "resolved": {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
        "num_gpu_blocks": 50000,
        "block_size": 16,
        "async_scheduling": True,
        "chunked_prefill": True,
        "max_cpu_loras": 8,
    },
    "prefix_caching": False,
    "endpoint": "in-process",
    "name": "small",
    "kind": "trace",
    "initial_adapters": {"gpu": [2], "host": [1, 2], "gpu_others": 1, "host_others": 2},
    "cut_s": None,
}
HEADER = "arrival_s,adapter,rank,prompt_tokens,output_tokens,ttft_s,e2e_s,itl_max_s,itl_p50_s"
ROWS = (
    "0.1,1,16,100,10,0.05,0.15,0.012,0.011",
    "0.05,2,8,50,1,0.02,0.02,0,0",
    "0.3,0,0,300,20,0.04,0.3,0.02,0.013",
)


def write_run(
    folder: Path,
    changes: dict[str, Any] | None = None,
    rows: tuple[str, ...] | None = ROWS,
    header: str = HEADER,
    **tables: str,
) -> Path:
    """A folder with run.json (RUN with changes; a key set to ... is left out), requests.csv and more tables."""
    folder.mkdir(parents=True, exist_ok=True)
    run = {key: value for key, value in {**RUN, **(changes or {})}.items() if value is not ...}
    (folder / "run.json").write_text(json.dumps(run))
    if rows is not None:
        (folder / "requests.csv").write_text("\n".join((header, *rows)) + "\n")
    for name, text in tables.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def truth(name: str = "") -> Path:
    """A measured run, or the folder of all of them."""
    if not TRUTH.is_dir():
        pytest.skip("needs ../shared/truth")
    return TRUTH / name
