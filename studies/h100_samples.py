"""Measured steps of vLLM 0.8.5 on a 64 GB H100 that scenarios/calibrations/nvidia-h100.json is fitted to, and which of
the published runs are.

Source: logs of digital_twin_dynamic/estimators in FerranAgulloLopez/GPULLMAdapterOptimization, commit bae36e2d
(2025-11-14), Apache-2.0: 4,096 requests or more at once, so that the batch is always full. Mean TPOT as its client
reports it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from agullo_rows import AgulloRow, read_rows

LLAMA, QWEN = "llama-3.1-8b", "qwen2.5-7b"


@dataclass(frozen=True)
class DecodeSample:
    """A full batch, each request with one of `adapters` at random (0: LoRA off); prompts of `prompt_tokens`."""

    model: str
    slots: int
    rank: int
    batch: int
    adapters: int
    output_tokens: int
    tpot_s: float
    prompt_tokens: int = 5

    @property
    def distinct(self) -> int:
        """Expected distinct adapters in a step."""
        n = self.adapters
        return round(n * (1.0 - (1.0 - 1.0 / n) ** self.batch)) if n else 0


DECODES = tuple(
    DecodeSample(model, slots, rank, batch, adapters, output, 1e-3 * tpot_ms)
    for model, slots, rank, batch, adapters, output, tpot_ms in (
        (LLAMA, 0, 0, 50, 0, 200, 13.66),
        (LLAMA, 0, 0, 400, 0, 200, 24.38),
        (QWEN, 0, 0, 50, 0, 200, 13.61),
        (QWEN, 0, 0, 100, 0, 200, 15.14),
        (QWEN, 0, 0, 200, 0, 200, 18.49),
        (QWEN, 0, 0, 250, 0, 200, 20.11),
        (QWEN, 0, 0, 400, 0, 200, 26.20),
        (QWEN, 0, 0, 600, 0, 200, 37.91),
        (QWEN, 0, 0, 800, 0, 200, 44.71),
        (QWEN, 0, 0, 400, 0, 400, 27.35),
        (QWEN, 0, 0, 1000, 0, 400, 55.37),
        (LLAMA, 100, 16, 32, 1, 200, 17.08),
        (LLAMA, 100, 16, 32, 32, 200, 24.56),
        (LLAMA, 100, 16, 64, 1, 200, 19.01),
        (LLAMA, 100, 16, 64, 64, 200, 34.05),
        (LLAMA, 100, 16, 96, 1, 200, 22.54),
        (LLAMA, 100, 16, 96, 32, 200, 33.94),
        (LLAMA, 100, 16, 96, 96, 200, 46.15),
        (LLAMA, 100, 32, 64, 1, 200, 21.43),
        (LLAMA, 100, 32, 64, 64, 200, 42.75),
        (LLAMA, 100, 8, 64, 1, 200, 19.02),
        (QWEN, 300, 8, 250, 1, 200, 35.77),
        (QWEN, 300, 8, 250, 256, 200, 87.01),
    )
)
"""predictor_default_latency/*/output (LoRA off) and predictor_latency_overhead/*/overhead*/output."""

PREFILL_TOKENS, PREFILL_RPS = 407, 83.78
"""Llama, LoRA off: prompts of that length and one output token, served per second with 2,048 tokens in a step
(predictor_default_latency/llama-3.1-8b-instruct/input/_400__200_1)."""


@dataclass(frozen=True)
class SaturatedSample:
    """A step of a run whose batch never drains: `batch` decodes, the rest of the tokens prompts, every slot in use."""

    slots: int
    rank: int
    registered: int
    batch: int
    tokens: int
    step_s: float


FULL_STEPS = (
    ("rank_16_rates_1.6_0.8_0.4", "_32_64_16_"),
    ("rank_16_rates_1.6_0.8_0.4", "_64_64_16_"),
    ("rank_16_rates_1.6_0.8_0.4", "_128_128_16_"),
    ("rank_16_rates_1.6_0.8_0.4", "_192_192_16_"),
    ("rank_32_rates_1.6_0.8_0.4", "_32_64_32_"),
    ("rank_32_rates_1.6_0.8_0.4", "_64_64_32_"),
    ("rank_32_rates_1.6_0.8_0.4", "_128_128_32_"),
    ("rank_16_rates_0.1_0.05_0.025", "_256_320_16_"),
    ("rank_16_rates_0.1_0.05_0.025", "_256_384_16_"),
)
"""Rows of real_results/qwen* where tokens per second times ITL come to the token budget."""
MIDDLE = (
    ("rank_16_rates_0.1_0.05_0.025", ("_32_32_16_", "_64_64_16_", "_32_64_16_", "_64_128_16_", "_128_128_16_")),
    ("rank_16_rates_0.1_0.05_0.025", ("_128_192_16_", "_128_256_16_")),
    ("rank_32_rates_0.1_0.05_0.025", ("_16_16_32_", "_32_64_32_", "_64_128_32_", "_128_128_32_", "_128_192_32_")),
    ("rank_32_rates_0.1_0.05_0.025", ("_192_192_32_", "_128_256_32_")),
    ("rank_16_rates_1.6_0.8_0.4", ("_8_8_16_", "_16_16_16_", "_32_32_16_")),
    ("rank_32_rates_1.6_0.8_0.4", ("_8_8_32_", "_16_16_32_", "_32_32_32_")),
)
"""Rows that finish what is offered: their TPOT is that of a server that is neither idle nor saturated."""


def _find(rows: list[AgulloRow], folder: str, name: str) -> AgulloRow:
    found = [row for row in rows if row.fitted and folder in row.path and row.path.endswith(name)]
    if len(found) != 1:
        raise SystemExit(f"{folder}/{name}: {len(found)} rows, not one")
    return found[0]


def middle_rows(path: Path) -> list[AgulloRow]:
    rows, _ = read_rows(path)
    return [_find(rows, folder, name) for folder, names in MIDDLE for name in names]


def saturated_samples(path: Path) -> list[SaturatedSample]:
    rows, _ = read_rows(path)
    samples = []
    for folder, name in FULL_STEPS:
        row = _find(rows, folder, name)
        rps, step_s = row.measured["throughput_rps"], row.measured["itl_s"]
        batch = round(rps * step_s * row.output_tokens)
        tokens = min(batch + math.ceil(rps * step_s * row.prompt_tokens), 2048)
        samples.append(SaturatedSample(row.max_loras, row.max_lora_rank, row.max_cpu_loras, batch, tokens, step_s))
    return samples
