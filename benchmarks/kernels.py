"""LoRA kernels against peers on one GPU: the LoRA time of a whole Llama-3.1-8B step.

python benchmarks/kernels.py --peers vllm,sglang,flashinfer,bmm,loop --out benchmarks/results/kernels-h200.json

One figure a shape: all layers and projections, replayed as a CUDA graph, weights of every layer distinct, median.
Peers are imported from what is installed; one that is missing or cannot run a shape gives null. limit_s = bytes moved
once (weights of the distinct adapters at their own rank, inputs read, outputs read and written) / measured copy
bandwidth; floor_s = limit_s + launches * launch_s, launch_s between dependent empty Triton kernels in a graph.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from kernel_details import details
from kernel_peers import LAUNCHES, PEERS, RUNNERS, SETS, WIDE, Step, Weights, make_weights, once, ours, timed
from simlora.kernels.measure import LAYERS, LLAMA_8B, copy_bandwidth, launch_seconds, token_mapping, traffic_bytes


def shape_row(
    step: Step,
    distinct: int,
    weights: Weights,
    peers: list[str],
    ceilings: tuple[float, float],
    failures: dict[str, str],
) -> dict[str, Any]:
    """One row of the file."""
    bandwidth, launch_s = ceilings
    limit = sum(traffic_bytes(LLAMA_8B, LAYERS, step.mapping, step.ranks)) / bandwidth
    row: dict[str, Any] = {
        "tokens": step.tokens,
        "distinct": distinct,
        "ranks": sorted(set(step.ranks)),
        "slots": step.slots,
        "max_rank": step.max_rank,
        "launches": LAUNCHES,
        "limit_s": limit,
        "floor_s": limit + LAUNCHES * launch_s,
        "ours_s": timed(lambda: ours(step, weights.ours), failures, "ours"),
    }
    for name in PEERS:
        row[name + "_s"] = timed(partial(RUNNERS[name], step, weights), failures, name) if name in peers else None
    return row


def rows(
    peers: list[str], budget_s: float, ceilings: tuple[float, float], failures: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """One row for each shape, until the budget is spent."""
    begin = time.monotonic()
    for slots, max_rank, ranks, shapes in SETS:
        if time.monotonic() - begin > budget_s:
            return
        weights: Weights | None = make_weights(slots, max_rank, ranks, "sglang" in peers)
        for tokens, distinct in shapes:
            if time.monotonic() - begin > budget_s:
                print(f"budget spent before slots {slots} ranks {sorted(set(ranks))} tokens {tokens}", file=sys.stderr)
                return
            assert weights is not None
            yield shape_row(
                Step(token_mapping(tokens, distinct), slots, ranks, max_rank),
                distinct,
                weights,
                peers,
                ceilings,
                failures,
            )
        weights = None
        torch.cuda.empty_cache()


def line(row: dict[str, Any]) -> str:
    """One row of the printed table, milliseconds."""
    ms = [
        f"{row[k] * 1e3:8.3f}" if row[k] is not None else "       -"
        for k in ("limit_s", "floor_s", "ours_s", *(p + "_s" for p in PEERS))
    ]
    ratio = row["ours_s"] / row["floor_s"] if row["ours_s"] else float("nan")
    best = min((row[p + "_s"] for p in PEERS if row[p + "_s"]), default=float("nan"))
    gain = best / row["ours_s"] if row["ours_s"] else float("nan")
    ranks = ",".join(str(r) for r in row["ranks"])
    return f"{row['slots']:5} {ranks:>10} {row['tokens']:6} {row['distinct']:8} {' '.join(ms)} {ratio:7.2f} {gain:6.1f}"


def provenance(launch_s: float) -> dict[str, Any]:
    """Where and how the file was made."""
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "gpu": torch.cuda.get_device_name(0),
        "driver": driver,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "command": "python " + " ".join(sys.argv),
        "launch_s": launch_s,
    }


def warm(item: tuple[int, int, list[str]]) -> None:
    """Compile what one shape needs, in a worker process, by running it once on one layer."""
    index, shape, peers = item
    if index < 0:
        details(once, 1)
        return
    slots, max_rank, ranks, shapes = SETS[index]
    tokens, distinct = shapes[shape]
    weights = make_weights(slots, max_rank, ranks, "sglang" in peers, 1)
    step = Step(token_mapping(tokens, distinct), slots, ranks, max_rank)
    for name in peers:
        timed(partial(RUNNERS[name], step, weights), {}, name, once)
    timed(partial(ours, step, weights.ours), {}, "ours", once)


def warm_all(workers: int, peers: list[str], with_details: bool) -> None:
    """Fill Triton's cache in parallel."""
    items = [(-1, 0, peers)] * with_details
    items += [(i, j, peers) for j in reversed(range(len(WIDE))) for i, s in enumerate(SETS) if j < len(s[3])]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(warm, items, chunksize=1)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated; '' for none")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=600.0, help="seconds after which no further shape is started")
    parser.add_argument("--details", type=Path, help="also measure reuse, layouts and segment building into this file")
    parser.add_argument("--warm", type=int, default=0, help="first compile ahead in this many processes")
    parser.add_argument("--warm-only", action="store_true", help="stop after compiling")
    args = parser.parse_args()
    peers = [p for p in args.peers.split(",") if p]
    if unknown := set(peers) - set(PEERS):
        parser.error(f"--peers: {sorted(unknown)}: any of {PEERS}")
    if args.warm:
        warm_all(args.warm, peers, args.details is not None)
    if args.warm_only:
        return
    bandwidth, launch_s = copy_bandwidth(), launch_seconds()
    print(f"copy {bandwidth / 1e12:.2f} TB/s, launch {launch_s * 1e6:.2f} us; milliseconds below")
    print(
        "slots      ranks tokens distinct    limit    floor     ours "
        + " ".join(f"{p[:8]:>8}" for p in PEERS)
        + " ours/fl  gain",
        flush=True,
    )
    failures: dict[str, str] = {}
    table: list[dict[str, Any]] = []
    for row in rows(peers, args.budget, (bandwidth, launch_s), failures):
        table.append(row)
        print(line(row), flush=True)
        body = ",\n".join("  " + json.dumps(r) for r in table)
        args.out.write_text('{"provenance": ' + json.dumps(provenance(launch_s)) + ',\n"rows": [\n' + body + "\n]}\n")
    for name, reason in failures.items():
        print(f"{name}: null where {reason}")
    if args.details:
        args.details.write_text(json.dumps(details(), indent=1) + "\n")
        print(args.details.read_text())


if __name__ == "__main__":
    main()
