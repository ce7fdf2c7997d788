"""The table of reports/kernels-h200.md from benchmarks/results/kernels-h200.json:

python benchmarks/kernel_report.py benchmarks/results/kernels-h200.json reports/kernels-h200.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = (
    "slots",
    "ranks",
    "tokens",
    "adapters",
    "limit",
    "floor",
    "ours",
    "vLLM",
    "SGLang",
    "FlashInfer",
    "bmm",
    "loop",
    "ours / floor",
    "ours / limit",
    "best peer / ours",
)
TIMES = ("limit_s", "floor_s", "ours_s", "vllm_s", "sglang_s", "flashinfer_s", "bmm_s", "loop_s")
PEERS = TIMES[3:]


def milliseconds(value: float | None) -> str:
    """Three significant digits or more; a dash where a peer did not run."""
    if value is None:
        return "-"
    return f"{value * 1e3:.3f}" if value < 0.01 else f"{value * 1e3:.1f}"


def cells(row: dict[str, Any]) -> list[str]:
    """One row of the table."""
    best = min((row[p] for p in PEERS if row[p]), default=None)
    ratios = [row["ours_s"] / row["floor_s"], row["ours_s"] / row["limit_s"]]
    return [
        str(row["slots"]),
        ", ".join(map(str, row["ranks"])),
        str(row["tokens"]),
        str(row["distinct"]),
        *(milliseconds(row[t]) for t in TIMES),
        *(f"{r:.2f}" for r in ratios),
        f"{best / row['ours_s']:.1f}" if best else "-",
    ]


def report(body: dict[str, Any]) -> str:
    """The whole fragment."""
    source = body["provenance"]
    launch_us = source["launch_s"] * 1e6
    lines = [
        "# LoRA kernels on an H200",
        "",
        "The LoRA time of one whole Llama-3.1-8B step (32 layers, all seven projections, weights of every layer",
        "distinct), replayed as a CUDA graph, median, in milliseconds. limit = weights of the distinct adapters at",
        "their own rank, inputs read once, outputs read and written once, at the copy bandwidth of the same process;",
        f"floor = limit + 256 launches of {launch_us:.2f} us. Peers run with the tiles they ship; bmm = gathered",
        "torch.bmm, loop = two products for each adapter and slice.",
        "",
        f"{source['gpu']}, driver {source['driver']}, torch {source['torch']}, Triton {source['triton']}, "
        f"{source['date']}: `{source['command']}`",
        *([source["note"]] if "note" in source else []),
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
    ]
    return "\n".join(lines + ["| " + " | ".join(cells(row)) + " |" for row in body["rows"]]) + "\n"


def main() -> None:
    """Command line: the JSON file, the Markdown file."""
    Path(sys.argv[2]).write_text(report(json.loads(Path(sys.argv[1]).read_text())))


if __name__ == "__main__":
    main()
