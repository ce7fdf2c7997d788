"""Fits the terms of other engines' kernels, launches, copies and sends, and writes them into the H200 calibrations.

python studies/fit_lora_families.py

Reads scenarios/calibrations/samples/nvidia-h200/samples.jsonl.gz (SGLang's kernels, launches, copies),
send_recv.json beside it and benchmarks/results/kernels-h200.json (the same kernels again, this project's, torch.bmm and
a loop over adapters).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from simlora.calibrate.fitting.families import fit_families
from simlora.calibrate.fitting.fit import HELD_OUT_SEED
from simlora.calibrate.fitting.links import fit_sends
from simlora.calibrate.fitting.samples import Row, of_op

from simlora.latency.calibration import (
    Calibration,
    FamiliesTerm,
    HostMemoryParameters,
    HostMemoryTerm,
    LaunchParameters,
    LaunchTerm,
)
from simlora.latency.store import load_calibration
from simlora.scenario.gpu import GPUS
from simlora.scenario.model import builtin_model

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "scenarios" / "calibrations"
SAMPLES = FOLDER / "samples" / "nvidia-h200" / "samples.jsonl.gz"
SENDS = SAMPLES.with_name("send_recv.json")
PEERS = ROOT / "benchmarks" / "results" / "kernels-h200.json"
COLUMNS = {"ours_s": "simlora", "sglang_s": "sglang", "bmm_s": "bmm", "loop_s": "loop"}
CALIBRATIONS = ("nvidia-h200", "nvidia-h200-kernels")
SEED = 11
MODELS = ("llama-3.1-8b", "llama-3.1-70b")


def samples() -> list[Row]:
    """Campaign and benchmark rows in one form. The campaign's of this project's kernels are left out: it ran before
    they took several rows at a time."""
    rows = [json.loads(line) for line in gzip.decompress(SAMPLES.read_bytes()).decode().splitlines()]
    kept = [row for row in rows if row.get("family") != "simlora"]
    return [*kept, *peer_rows(json.loads(PEERS.read_text())["rows"])]


def peer_rows(table: list[dict[str, Any]]) -> Iterator[Row]:
    """Tokens spread evenly over the first adapters of slots whose ranks repeat."""
    for row in table:
        tokens, distinct = row["tokens"], row["distinct"]
        ranks = [row["ranks"][index % len(row["ranks"])] for index in range(distinct)]
        sizes = {
            "model": "llama-3.1-8b", "tp": 1, "layers": 32, "slots": row["slots"], "slot_rank": row["max_rank"],
            "tokens": tokens, "lora_tokens": tokens, "adapters": distinct, "rank_mix": row["ranks"],
            "sum_of_ranks": sum(ranks), "sum_of_token_ranks": sum(ranks[i % distinct] for i in range(tokens)),
        }  # fmt: skip
        for column, family in COLUMNS.items():
            if row[column] is not None:
                yield {"op": "lora_step", "family": family, "p50": row[column], **sizes}


def launch_term(rows: list[Row]) -> LaunchTerm:
    """Medians as measured in the first session; views in units of a launch of their own session, whose host may be
    faster or slower."""
    sessions: dict[str, dict[tuple[str, str], float]] = {}
    for row in of_op(rows, "launch"):
        sessions.setdefault(row["provenance"], {}).setdefault((row["regime"], row["launcher"]), row["p50"])
    found = next(iter(sessions.values()))
    views = [row["p50"] / sessions[row["provenance"]]["eager", "torch"] for row in of_op(rows, "torch_view")]
    parameters = LaunchParameters(
        graph_s=_round(found["graph", "torch"]),
        torch_s=_round(found["eager", "torch"]),
        triton_s=_round(found["eager", "triton"]),
        view_s=_round(float(np.median(views)) * found["eager", "torch"]) if views else 0.0,
    )
    note = (
        "256 small kernels one after another; views of a CUDA tensor likewise, median over slices, transposes and such"
    )
    return LaunchTerm(basis="measured", parameters=parameters, note=note)


def host_memory_term(rows: list[Row]) -> HostMemoryTerm:
    """Rates by what pageable loads take beyond pinned ones of equal rank; pinning by what a read leaves unexplained."""
    loads = of_op(rows, "adapter_load", layout="modules")
    times = {(row["memory"], row["rank"], row["slot_rank"]): (row["p50"], row["bytes"]) for row in loads}
    equal = [key for key in times if key[0] == "pageable" and key[1] == key[2]]
    link = load_calibration(CALIBRATIONS[0]).terms.copies.parameters.bytes_per_s
    rates = []
    for key in equal:
        (slow_s, size), (fast_s, _) = times[key], times[("pinned", *key[1:])]
        rates.append(size / (slow_s - fast_s + size / link))
    whole, parse, pack = (
        {row["rank"]: (row["p50"], row) for row in of_op(rows, name, cache="page")}
        for name in ("adapter_from_disk", "adapter_parse", "adapter_pack")
    )
    smallest = min(whole)
    pin_s = whole[smallest][0] - parse[smallest][0] - pack[smallest][0]
    row = whole[smallest][1]
    slow = {
        kind: [item["slowdown"] for item in of_op(rows, "compute_under_h2d", compute=kind)]
        for kind in ("streaming", "arithmetic")
    }
    pageable = float(np.median(rates))
    parameters = HostMemoryParameters(
        pageable_bytes_per_s=_round(pageable),
        pin_tensor_s=_round((pin_s - row["bytes"] / pageable) / (2 * row["pairs"])),
        pin_bytes_per_s=_round(pageable),
        streaming_slowdown=_round(float(np.median(slow["streaming"]))),
        arithmetic_slowdown=_round(max(float(np.median(slow["arithmetic"])), 1.0)),
    )
    note = "loads from pageable memory against pinned; pinning: rest of a read from the page cache, its rate assumed"
    return HostMemoryTerm(basis="measured", parameters=parameters, note=note)


def _round(value: float) -> float:
    return float(f"{value:.6g}")


def main() -> None:
    rows, link = samples(), GPUS["h200-141gb"].gpu_link_bytes_per_s
    sends = fit_sends(json.loads(SENDS.read_text()), link, HELD_OUT_SEED)
    assert sends is not None
    models = {name: spec for name in MODELS if (spec := builtin_model(name)) is not None}
    for name in CALIBRATIONS:
        path = FOLDER / f"{name}.json"
        data = json.loads(path.read_text())
        calibration = Calibration.model_validate(data)
        launches = launch_term(rows)
        with_launches = calibration.model_copy(
            update={"terms": calibration.terms.model_copy(update={"launches": launches})}
        )
        families = fit_families(rows, models, with_launches, SEED)
        term = FamiliesTerm(basis="measured", parameters=families, note="each family has errors of its own")
        terms = {"lora_families": term, "launches": launches, "host_memory": host_memory_term(rows), "sends": sends}
        data["terms"] |= {key: value.model_dump(mode="json") for key, value in terms.items()}
        path.write_text(json.dumps(data, indent=1) + "\n")
    for family, found in families.items():
        print(f"{family:12} fit {found.fit_error:.1%} held out {found.held_out_error:.1%}  {found.note}")
        print("            ", found.parameters.model_dump(exclude_none=True))
    for name in ("launches", "host_memory", "sends"):
        print(name, data["terms"][name]["parameters"])


if __name__ == "__main__":
    main()
