"""What the popularity of adapters does to systems that can, and cannot, batch requests of different adapters.

    python benchmarks/popularity.py [--requests 1000] [--json]

The study of Punica's evaluation: all requests wait from the start, first come first served, at most 32 together,
Llama-2-7B on an A100, rank 16 on all seven projections, lengths like ShareGPT's. Popularity by Punica's generators:
identical (one adapter), distinct (one each), uniform (as many adapters as the square root of the requests, alike) and
zipf (each adapter has 1.5 times the requests of the next). Rows: kernels that serve any adapters at once (sgmv, and
this project's), one pair of GEMMs per adapter after a shared base pass (sequential), batches of one adapter (grouped),
and one adapter merged into the weights (merged-swap). Everything but the kernels of the first three is the same. No
calibration of an A100 exists: it is scaled from the nearest one, and every figure is marked.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate
from simlora.workload.request_table import RequestTable

BATCH = 32
ZIPF = 1.5
POPULARITIES = ("identical", "distinct", "uniform", "zipf")
ENGINES: dict[str, dict[str, Any]] = {
    "sgmv": {"kind": "sequential", "kernels": "sgmv"},
    "simlora": {"kind": "sequential", "kernels": "simlora"},
    "sequential": {"kind": "sequential"},
    "grouped": {"kind": "grouped"},
    "merged-swap": {"kind": "merged-swap"},
}


@dataclass(frozen=True)
class Outcome:
    """One cell of the table."""

    tokens_per_s: float
    """Output tokens."""
    batch: float
    """Decoding requests, on average over steps."""
    step_s: float
    """Time of a step, on average."""
    extrapolated: float
    """Largest share of simulated time priced by a term outside its measured range."""


def adapters_of(popularity: str, requests: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Adapter (1, 2, ...) of each request, in random order."""
    if popularity == "identical":
        counts = [requests]
    elif popularity == "distinct":
        counts = [1] * requests
    elif popularity == "uniform":
        groups = math.ceil(math.sqrt(requests))
        counts = [len(part) for part in np.array_split(np.arange(requests), groups)]
    else:
        counts = _zipf(requests)
    order = np.repeat(np.arange(1, len(counts) + 1, dtype=np.int32), counts)
    return np.random.default_rng(seed).permutation(order)


def _zipf(requests: int) -> list[int]:
    """Group sizes that grow by ZIPF, the smallest 1, the largest cut to the sum."""
    counts: list[int] = []
    size = 1.0
    while (left := requests - sum(counts)) > 0:
        counts.append(min(int(size), left))
        size *= ZIPF
    return counts


def scenario_of(engine: dict[str, Any], adapters: int, requests: int) -> Scenario:
    """The study's machine and settings; prompts of 25 to 1,000 tokens, answers of 15 to 700 for 95 in 100 requests."""
    return scenario_from_dict(
        {
            "name": "popularity",
            "model": "llama-2-7b",
            "gpu": "a100-80gb",
            "engine": {**engine, "max_num_seqs": BATCH, "max_model_len": 2048},
            "adapters": {"count": adapters, "ranks": 16},
            "workload": {
                "arrivals": {"kind": "poisson", "rate_rps": 1e6},
                "prompt_tokens": {"kind": "lognormal", "median": 150, "sigma": 1.0, "max": 1024},
                "output_tokens": {"kind": "lognormal", "median": 100, "sigma": 1.0, "max": 1024},
                "num_requests": requests,
            },
        },
        source="benchmarks/popularity.py",
    )


def measure(engine: str, popularity: str, requests: int) -> Outcome:
    """One run."""
    adapter = adapters_of(popularity, requests)
    scenario = scenario_of(ENGINES[engine], int(adapter.max()), requests)
    drawn = build_inputs(scenario)
    table = RequestTable(
        np.zeros(requests), adapter, drawn.requests.prompt_tokens, drawn.requests.output_tokens, None, 16, ()
    )
    log = simulate(build_inputs(scenario, drawn.adapters, table))
    runs = log.replicas[0].runs
    steps = runs["steps"]
    return Outcome(
        tokens_per_s=float(table.output_tokens.sum() / log.end_s),
        batch=float(np.average(runs["decode_count"], weights=steps)),
        step_s=float(log.end_s / steps.sum()),
        extrapolated=max(log.extrapolated_s.values(), default=0.0) / log.end_s,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    args = parser.parse_args()
    found = {(e, p): measure(e, p, args.requests) for e in ENGINES for p in POPULARITIES}
    if args.json:
        for (engine, popularity), outcome in found.items():
            print(json.dumps({"engine": engine, "popularity": popularity, **vars(outcome)}))
        return
    print("output tokens/s (mean decoding batch)")
    print(f"{'':12s}" + "".join(f"{popularity:>18s}" for popularity in POPULARITIES))
    for engine in ENGINES:
        cells = (found[engine, popularity] for popularity in POPULARITIES)
        print(f"{engine:12s}" + "".join(f"{cell.tokens_per_s:11,.0f} ({cell.batch:4.1f})" for cell in cells))
    share = max(outcome.extrapolated for outcome in found.values())
    print(f"extrapolated: up to {share:.0%} of the simulated time (no calibration of an A100)")


if __name__ == "__main__":
    main()
