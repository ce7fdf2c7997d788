"""The published multi-LoRA runs of vLLM on a 64 GB H100: which rows can be simulated, and which were used in the fit.

Source: FerranAgulloLopez/GPULLMAdapterOptimization, commit bae36e2d (2025-11-14), Apache-2.0, its result files, one CSV
row for each run.
"""

from __future__ import annotations

import ast
import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODELS = {"llama-3.1-8b-instruct": "llama-3.1-8b", "qwen-2.5-7b-instruct": "qwen2.5-7b"}
"""Models that ran on vLLM 0.8.5; the Llama-2 rows are of 0.5.0, an engine that is not modelled."""
FITTED = "real_results/qwen"
"""Rows whose path has this part were used in fitting scenarios/calibrations/nvidia-h100.json."""
FINISHED, SATURATED = 0.98, 0.97
"""Share of the offered rate: at least the first is finished, below the second is saturated."""


@dataclass(frozen=True)
class AgulloRow:
    """One run: a server under load for total_time_s, and the client's metrics over what finished in that time."""

    path: str
    model: str
    count: int
    rates_rps: tuple[float, ...]
    """Adapter i has rate i mod 3, and likewise the ranks."""
    ranks: tuple[int, ...]
    max_loras: int
    max_cpu_loras: int
    max_lora_rank: int
    max_num_seqs: int
    total_time_s: float
    offered_rps: float
    prompt_tokens: float
    """Mean over what finished."""
    output_tokens: float
    measured: dict[str, float]
    """throughput_rps, ttft_s, itl_s, tpot_s (means)."""

    @property
    def fitted(self) -> bool:
        return FITTED in self.path

    @property
    def share(self) -> float:
        """Finished over offered."""
        return self.measured["throughput_rps"] / self.offered_rps

    @property
    def sweep(self) -> tuple[Any, ...]:
        """What runs that differ in slots alone have in common."""
        return self.model, self.count, self.rates_rps, self.ranks, self.max_lora_rank


def read_rows(path: Path) -> tuple[list[AgulloRow], dict[str, int]]:
    """Rows that can be simulated, and how many were left out, by reason."""
    rows, left_out = [], dict[str, int]()
    with path.open(newline="", encoding="utf-8") as file:
        for record in csv.DictReader(file):
            reason = _problem(record)
            if reason:
                left_out[reason] = left_out.get(reason, 0) + 1
            else:
                rows.append(_row(record))
    return rows, left_out


def _problem(record: dict[str, str]) -> str | None:
    if record["model"] not in MODELS:
        return "another engine (vLLM 0.5.0, Llama-2)"
    for key in ("offered_req_s", "total_time", "n_adapters", "max_loras", "max_lora_rank", "max_num_seqs"):
        if not _number(record[key]):
            return f"no {key}"
    if not _number(record["successful"]):
        return "nothing finished"
    if not (_number(record["ttft_mean_ms"]) and _number(record["itl_mean_ms"])):
        return "no latencies"
    return None


def _number(text: str) -> float:
    """0 where there is none."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if value == value else 0.0


def _row(record: dict[str, str]) -> AgulloRow:
    finished, count, slot_rank = float(record["successful"]), int(float(record["n_adapters"])), record["max_lora_rank"]
    rates = _rates(record, count)
    return AgulloRow(
        path=record["path"],
        model=MODELS[record["model"]],
        count=count,
        rates_rps=rates,
        ranks=_ranks(record["path"], int(float(slot_rank))),
        max_loras=int(float(record["max_loras"])),
        max_cpu_loras=int(_number(record["max_cpu_loras"]) or count),
        max_lora_rank=int(float(slot_rank)),
        max_num_seqs=int(float(record["max_num_seqs"])),
        total_time_s=float(record["total_time"]),
        offered_rps=float(record["offered_req_s"]),
        prompt_tokens=float(record["in_tok"]) / finished,
        output_tokens=float(record["out_tok"]) / finished,
        measured={
            "throughput_rps": float(record["req_s"]),
            "ttft_s": float(record["ttft_mean_ms"]) / 1e3,
            "itl_s": float(record["itl_mean_ms"]) / 1e3,
            "tpot_s": float(record["tpot_mean_ms"]) / 1e3,
        },
    )


def _rates(record: dict[str, str], count: int) -> tuple[float, ...]:
    """The rates that the client gives to adapters in turn; a total is spread evenly."""
    try:
        rates = ast.literal_eval(record["adapter_rates"])
    except (SyntaxError, ValueError):
        rates = None
    if rates:
        return tuple(float(rate) for rate in rates)
    return (float(record["offered_req_s"]) / count,)


def _ranks(path: str, slot_rank: int) -> tuple[int, ...]:
    """Ranks of the adapters in turn: from the folder's name (`..._size_8-16-32`); the folders `rank_R_...` have every
    rank from 8 up to the slots' (the launchers beside the results say so)."""
    for part in path.split("/"):
        if "_size_" in part:
            return tuple(int(rank) for rank in part.split("_size_")[1].split("-"))
    return tuple(rank for rank in (8, 16, 32) if rank <= slot_rank) or (slot_rank,)
