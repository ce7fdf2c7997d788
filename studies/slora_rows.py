"""S-LoRA's published runs on an A10G and an A100-80GB, with the settings of the scripts that made them.

Results: the paper's JSON lines, flattened to one CSV. Settings: benchmarks/{exp_suite,launch_server,trace}.py and the
exp_cmds*.sh beside each result in github.com/S-LoRA/S-LoRA (Apache-2.0, c1ddf48).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simlora.workload.adapter_table import AdapterTable
from simlora.workload.request_table import RequestTable

RANKS = {"S1": (8,), "S2": (64, 32, 16, 8)}
"""Adapter i has rank i modulo the tuple. Both settings serve Llama-7B."""
SEED = 42
SYSTEMS = ("slora", "no_mem", "bmm")
GPUS = {"a10g": "a10g", "a100-80": "a100-80gb"}
SWEEPS = {"num_adapters": "adapters", "req_rate": "rate", "cv": "cv"}
POOL = {"a10g": 14_500, "a100-80": 125_000}
"""--num-token of S-LoRA proper: the largest pool that the authors could start."""
SMALLER: dict[tuple[str, str, str], tuple[tuple[int, int], ...]] = {
    ("a10g", "S1", "no_mem"): ((1, 13_500),),
    ("a10g", "S2", "no_mem"): ((1, 13_500), (20, 10_000), (50, 9_000)),
    ("a10g", "S1", "bmm"): ((1, 14_500), (20, 12_000)),
    ("a10g", "S2", "bmm"): ((1, 13_000), (20, 8_000)),
    ("a100-80", "S2", "no_mem"): ((1, 125_000), (50, 110_000), (100, 100_000), (200, 90_000)),
    ("a100-80", "S2", "bmm"): ((1, 125_000), (20, 70_000)),
}
"""(From that many adapters on, --num-token), smaller where adapters lie outside the pool."""


@dataclass(frozen=True)
class SloraRow:
    """One published run."""

    device: str
    setting: str
    system: str
    sweep: str
    adapters: int
    rate_rps: float
    cv: float
    duration_s: float
    throughput_rps: float
    latency_s: float
    ttft_s: float
    attainment: float
    """Share of requests whose first token came within 6 s."""

    @property
    def pool_tokens(self) -> int:
        steps = SMALLER.get((self.device, self.setting, self.system), ((0, POOL[self.device]),))
        return [tokens for least, tokens in steps if self.adapters >= least][-1]

    @property
    def ranks(self) -> list[int]:
        """By adapter, in order."""
        cycle = RANKS[self.setting]
        return [cycle[index % len(cycle)] for index in range(self.adapters)]

    @property
    def workload(self) -> tuple[str, str, int, float, float, float]:
        """What the systems have in common."""
        return self.device, self.setting, self.adapters, self.rate_rps, self.cv, self.duration_s


def read_rows(path: Path) -> list[SloraRow]:
    """The synthetic runs of the three systems, without repetitions of the same run in other sweeps' files."""
    rows: dict[tuple[object, ...], SloraRow] = {}
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            found = _row(line)
            if found is not None:
                rows.setdefault((found.system, *found.workload), found)
    return list(rows.values())


def _row(line: dict[str, str]) -> SloraRow | None:
    folders = line["file"].split("/")
    if len(folders) != 3 or folders[0] != "synthetic" or folders[1] not in SYSTEMS or line["num_adapters"] == "0":
        return None
    for sweep, name in SWEEPS.items():
        head = f"synthetic_{sweep}_"
        device, _, rest = folders[2].removeprefix(head).partition("_")
        if folders[2].startswith(head) and device in GPUS and rest.split("_")[0] in RANKS:
            return SloraRow(
                device, rest.split("_")[0], folders[1], name, int(line["num_adapters"]), float(line["req_rate"]),
                float(line["cv"]), float(line["duration"]), float(line["throughput"]), float(line["avg_latency"]),
                float(line["avg_first_token_latency"]), float(line["avg_attainment"]),
            )  # fmt: skip
    return None


def requests_of(row: SloraRow) -> RequestTable:
    """The published generator with its seed; all these runs have power exponent 1, which is uniform popularity."""
    random = np.random.RandomState(SEED)
    total = int(row.rate_rps * row.duration_s)
    adapter = (random.power(1.0, total) * row.adapters).astype(np.int32) + 1
    prompt, output = (random.randint(8, 512, total).astype(np.int32) for _ in range(2))
    gaps = random.gamma(1 / row.cv**2, row.cv**2 / row.rate_rps, total)
    return RequestTable(np.cumsum(gaps), adapter, prompt, output, None, 512, ())


def adapters_of(row: SloraRow) -> AdapterTable:
    share = np.array([0.0] + [1 / row.adapters] * row.adapters)
    return AdapterTable(row.adapters, np.array([0, *row.ranks], dtype=np.int32), share)
