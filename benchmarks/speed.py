"""Speed of the simulator: requests simulated per wall second, beside bare SimPy timeouts in the same process.

    python benchmarks/speed.py [--json] [--requests 10000] [--repeat 3]

One replica, Llama-3.1-8B on an H200, 100 adapters by Zipf 1.0, 32 slots, lengths like the Azure conversation trace of
2023 (mean 1,155 in and 211 out, total capped at 4,096). `light` offers 3 requests/s, `saturated` twice what the replica
can serve. `cluster` has 8 replicas behind a router that sees them through a scrape, with prefix caching; `speculative`
three draft tokens. The time counted runs from the finished request table to the finished log (all columns). Timeouts
are counted right before and after each run, since machines change their speed; the run with the median ratio =
requests_per_s / timeouts_per_s is shown.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Generator, Iterator
from typing import Any

import simpy

from simlora.engines.inputs import Inputs
from simlora.engines.vllm import replica as hot
from simlora.scenario.load import scenario_from_dict
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate

TIMEOUTS = 300_000
LIGHT_RPS = 3.0


def inputs_at(rate_rps: float, requests: int, **sections: dict[str, Any]) -> Inputs:
    """The benchmark's scenario at an arrival rate; keys of sections are added to those of the scenario."""
    scenario: dict[str, Any] = {
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
    }
    for name, keys in sections.items():
        scenario[name] = scenario.get(name, {}) | keys
    return build_inputs(scenario_from_dict(scenario, source="benchmarks/speed.py"))


def capacity_rps(requests: int) -> float:
    """Throughput of the replica when everything arrives at once."""
    log = simulate(inputs_at(1e4, min(requests, 3000)))
    return float(len(log.requests.arrival_s) / log.end_s)


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


def cases(requests: int) -> Iterator[tuple[str, Inputs]]:
    """Name and inputs of each case."""
    yield "light", inputs_at(LIGHT_RPS, requests)
    yield "saturated", inputs_at(2 * capacity_rps(requests), requests)
    router = {"kind": "lora-affinity", "scrape_s": 0.1, "delay_s": 0.02}
    yield (
        "cluster",
        inputs_at(
            8 * LIGHT_RPS,
            requests,
            engine={"enable_prefix_caching": True},
            workload={"prefix": {"kind": "share", "fraction": 0.4}},
            cluster={"replicas": 8, "router": router},
        ),
    )
    draft = {"num_speculative_tokens": 3, "acceptance_rate": 0.7}
    yield "speculative", inputs_at(LIGHT_RPS, requests, engine={"speculative": draft})


def measure(inputs: Inputs, check: bool, repeat: int) -> tuple[float, float, float]:
    """(requests per second, timeouts per second beside them, their ratio) of the run with the median ratio."""
    runs = []
    before = timeouts_per_s()
    for _ in range(repeat):
        speed = requests_per_s(inputs, check)
        after = timeouts_per_s()
        timeouts = 2.0 / (1.0 / before + 1.0 / after)
        runs.append((speed / timeouts, speed, timeouts))
        before = after
    ratio, speed, timeouts = sorted(runs)[len(runs) // 2]
    return speed, timeouts, ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    if not args.json:
        print("hot path:", "compiled" if compiled() else "pure Python")
    for name, inputs in cases(args.requests):
        simulate(inputs)  # what the latency model has priced once, it knows
        for check in (False, True):
            speed, timeouts, ratio = measure(inputs, check, 1 if check else args.repeat)
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
                print(f"{name:12s} check={check!s:5s} {figures}")


if __name__ == "__main__":
    main()
