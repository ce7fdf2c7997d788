"""Speed of the simulator: requests simulated per wall second, beside bare SimPy timeouts in the same process.

    python benchmarks/speed.py [--json] [--requests 10000] [--repeat 3]

One replica, Llama-3.1-8B on an H200, 100 adapters by Zipf 1.0, 32 slots, lengths like the Azure conversation trace of
2023 (mean 1,155 in and 211 out, total capped at 4,096). `light` offers 3 requests/s, `saturated` twice what the replica
can serve. The time counted runs from the finished request table to the finished log (all columns); the best of --repeat
runs is kept, for the timeouts too. ratio = requests_per_s / timeouts_per_s lets machines compare.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Generator
from typing import Any

import simpy

from simlora.engines.inputs import Inputs
from simlora.engines.vllm import replica as hot
from simlora.scenario.load import scenario_from_dict
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate

TIMEOUTS = 300_000
LIGHT_RPS = 3.0


def inputs_at(rate_rps: float, requests: int) -> Inputs:
    """The benchmark's scenario at an arrival rate."""
    return build_inputs(
        scenario_from_dict(
            {
                "name": "speed",
                "model": "llama-3.1-8b",
                "gpu": "h200-141gb",
                "engine": {"max_loras": 32, "max_lora_rank": 16, "max_cpu_loras": 100, "max_model_len": 4096},
                "adapters": {"count": 100, "ranks": 16, "popularity": {"kind": "zipf", "alpha": 1.0}},
                "workload": {
                    "arrivals": {"kind": "poisson", "rate_rps": rate_rps},
                    "prompt_tokens": {"kind": "lognormal", "median": 940, "sigma": 0.8, "max": 3096},
                    "output_tokens": {"kind": "lognormal", "median": 129, "sigma": 1.05, "max": 1000},
                    "num_requests": requests,
                },
            },
            source="benchmarks/speed.py",
        )
    )


def capacity_rps(requests: int) -> float:
    """Throughput of the replica when everything arrives at once."""
    log = simulate(inputs_at(1e4, min(requests, 3000)))
    return float(len(log.requests.arrival_s) / log.end_s)


def best(measure: Callable[[], float], repeat: int) -> float:
    return max(measure() for _ in range(repeat))


def timeouts_per_s() -> float:
    def ticks(env: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        for _ in range(TIMEOUTS):
            yield env.timeout(1.0)

    env = simpy.Environment()
    env.process(ticks(env))
    started = time.perf_counter()
    env.run()
    return TIMEOUTS / (time.perf_counter() - started)


def requests_per_s(inputs: Inputs, check: bool) -> float:
    started = time.perf_counter()
    simulate(inputs, check=check)
    return len(inputs.requests) / (time.perf_counter() - started)


def compiled() -> bool:
    """Whether the hot path runs compiled (see setup.py)."""
    return not str(hot.__file__).endswith(".py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    if not args.json:
        print("hot path:", "compiled" if compiled() else "pure Python")
    cases = {"light": LIGHT_RPS, "saturated": 2 * capacity_rps(args.requests)}
    for name, rate in cases.items():
        inputs = inputs_at(rate, args.requests)
        for check in (False, True):
            timeouts = best(timeouts_per_s, args.repeat)
            speed = best(lambda i=inputs, c=check: requests_per_s(i, c), 1 if check else args.repeat)  # type: ignore[misc]
            ratio = speed / timeouts
            if args.json:
                row = {
                    "case": name,
                    "check": check,
                    "compiled": compiled(),
                    "requests_per_s": round(speed),
                    "timeouts_per_s": round(timeouts),
                }
                print(json.dumps({**row, "ratio": round(ratio, 5)}))
            else:
                figures = f"{speed:10,.0f} requests/s  {timeouts:11,.0f} timeouts/s  ratio {ratio:.4f}"
                print(f"{name:10s} check={check!s:5s} {figures}")


if __name__ == "__main__":
    main()
