"""Samples of a machine whose true parameters are known: what the fits must find again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from simlora.calibrate.grid import model_named

from simlora.latency.calibration import (
    AttentionParameters,
    CollectiveParameters,
    CopyParameters,
    LoraKernelParameters,
    OperatorParameters,
)
from simlora.latency.collectives import ALL_REDUCES_PER_LAYER, Collectives
from simlora.latency.loads import Copies
from simlora.latency.lora_kernels import LoraKernels
from simlora.latency.operators import Attention, Operators
from simlora.latency.shapes import Linear, attention_linears, lora_linears, mlp_linears
from simlora.latency.step import DISK, HOST
from simlora.latency.store import load_calibration
from simlora.scenario.lora_modules import ALL_LINEAR

MODELS = {name: model_named(name) for name in ("llama-3.1-8b", "llama-3.1-70b")}
LINK = 450e9
Row = dict[str, Any]

BASE = load_calibration("nvidia-h200")


def _true(parameters: Any, values: Mapping[str, float]) -> Any:
    return parameters.model_copy(update=dict(values))


OPERATORS: OperatorParameters = _true(
    BASE.terms.operators.parameters,
    {
        "weight_bytes_per_s": 3.1e12,
        "gemm_flops": 5.2e14,
        "blend": 2.6,
        "layer_s": 33e-6,
        "activation_bytes_per_s": 2.2e12,
    },
)
GEMM_S, ELEMENTWISE_S = 4e-6, 2e-6
ATTENTION: AttentionParameters = _true(
    BASE.terms.attention.parameters, {"kv_bytes_per_s": 2.7e12, "request_tokens": 55.0, "prefill_flops": 4.4e14}
)
DECODE_S, PREFILL_S = 9e-6, 14e-6
LORA: LoraKernelParameters = _true(
    BASE.terms.lora_kernels.parameters,
    {
        "launch_s": 3e-6, "zero_s": 1.2e-6, "dead_shrink_s": 6e-10, "dead_expand_s": 9e-10, "shrink_s": 7e-9,
        "shrink_wide_s": 2e-9, "expand_s": 1.3e-8, "expand_wide_s": 2.4e-8, "surplus_factor": 2.0,
        "row_bytes_per_s": 2e12,
    },
)  # fmt: skip
COPIES: CopyParameters = _true(
    BASE.terms.copies.parameters,
    {
        "bytes_per_s": 2.1e10, "module_s": 41e-6, "mismatch_module_s": 9e-6, "disk_module_s": 1.7e-4,
        "disk_bytes_per_s": 1.4e9,
    },
)  # fmt: skip
BLOCK_S = 12e-6
COLLECTIVES: CollectiveParameters = _true(
    BASE.terms.collectives.parameters, {"latency_s": 11e-6, "link_fraction": 0.62}
)


def finish(rows: Iterable[Row], noise: float = 0.0, seed: int = 3) -> list[Row]:
    """Rows with seconds `s` become samples, with a relative error of `noise`."""
    generator, found = np.random.default_rng(seed), []
    for number, row in enumerate(rows):
        seconds = row.pop("s") * float(np.exp(noise * generator.standard_normal()))
        times = {"p20": 0.99 * seconds, "p50": seconds, "p80": 1.02 * seconds}
        found.append({**row, "unit": "s", **times, "n": 20, "item": f"item{number}", "provenance": "synthetic"})
    return found


def operator_rows(tokens: Iterable[int] = (1, 8, 32, 64, 128, 256, 512, 1024, 2048)) -> list[Row]:
    rows: list[Row] = []
    for name, sizes in (("llama-3.1-8b", (1, 2, 4)), ("llama-3.1-70b", (4, 8))):
        for tp in sizes:
            for count in tokens:
                rows += _dense(name, tp, count)
    for count in (1, 64, 512, 4096):
        moved = count * 4096 * 8
        rows.append({"op": "norm", "bytes": moved, "s": ELEMENTWISE_S + moved / OPERATORS.activation_bytes_per_s})
    return rows


def _dense(name: str, tp: int, tokens: int) -> list[Row]:
    sampled, layers = (tokens if tokens <= 512 else 8), 8
    model = replace(MODELS[name], num_hidden_layers=layers)
    whole = Operators(OPERATORS, model, tp).dense_s(tokens, sampled)
    shape = {"regime": "graph", "model": name, "tp": tp, "tokens": tokens}
    rows: list[Row] = [{"op": "dense_step", **shape, "layers": layers, "rows": sampled, "s": whole}]
    for linear in (*attention_linears(model, tp), *mlp_linears(model, tp)):
        rows.append({"op": "gemm", **shape, "linear": linear.name, **_gemm(linear, tokens)})
    return rows


def _gemm(linear: Linear, tokens: int) -> Row:
    p = OPERATORS
    memory_s, compute_s = linear.elements * 2 / p.weight_bytes_per_s, 2.0 * linear.elements * tokens / p.gemm_flops
    limit_s = (memory_s**p.blend + compute_s**p.blend) ** (1.0 / p.blend)
    return {"inputs": linear.inputs, "outputs": sum(linear.outputs), "s": GEMM_S + limit_s}


def attention_rows() -> list[Row]:
    rows: list[Row] = []
    for name, tp in (("llama-3.1-8b", 1), ("llama-3.1-70b", 4)):
        attention = Attention.of(ATTENTION, replace(MODELS[name], num_hidden_layers=1), tp)
        where = {"model": name, "tp": tp, "kernel": "synthetic"}
        for requests in (1, 8, 32, 128):
            for context in (128, 1024, 8192):
                priced = DECODE_S + requests * (context * attention.decode_token_s + attention.request_s)
                rows.append({"op": "attention_decode", **where, "requests": requests, "context": context, "s": priced})
        for start in (0, 8192):
            for new in (128, 1024, 8192):
                priced = PREFILL_S + attention.chunk_s(start, new)
                rows.append({"op": "attention_prefill", **where, "start": start, "new": new, "s": priced})
    return rows


def lora_rows(family: str = "vllm") -> list[Row]:
    """Whole steps; those of `padded` hold the zeroing of the shrink buffers."""
    rows: list[Row] = []
    for slots, rank in ((8, 16), (32, 16), (32, 64), (128, 16)):
        for tokens, adapters in ((1, 1), (8, 8), (32, 1), (32, 8), (64, 4), (128, 8), (256, 8), (512, 4), (2048, 8)):
            sizes = {
                "family": family, "model": "llama-3.1-8b", "tp": 1, "layers": 32, "slots": slots, "slot_rank": rank,
                "tokens": tokens, "lora_tokens": tokens, "adapters": adapters, "sum_of_ranks": rank * adapters,
                "sum_of_token_ranks": rank * tokens,
            }  # fmt: skip
            parameters = LORA if family == "padded" else LORA.model_copy(update={"zero_s": 0.0})
            linears = lora_linears(MODELS["llama-3.1-8b"], 1, ALL_LINEAR)
            kernels = LoraKernels(parameters, linears, 32, None, (0, 0), slots, False)
            rows.append({"op": "lora_step", **sizes, "s": kernels.step_s(tokens, tokens, adapters, rank, 0)})
            rows.append({"op": "lora_zero", **sizes, "s": LORA.zero_s * 32 * 4})
    return rows


def copy_rows() -> list[Row]:
    rows: list[Row] = []
    for size in (2**12, 2**20, 2**22, 2**24, 2**26, 2**28):
        block = {"op": "h2d", "memory": "pinned", "streams": 1, "bytes": size}
        rows.append({**block, "s": BLOCK_S + size / COPIES.bytes_per_s})
    for rank, slot_rank in ((8, 16), (16, 16), (8, 64), (32, 64), (64, 64), (128, 128)):
        copies = Copies(COPIES, MODELS["llama-3.1-8b"], 1, slot_rank, ALL_LINEAR)
        sizes = {"model": "llama-3.1-8b", "tp": 1, "rank": rank, "bytes": rank * 5_242_880}
        load = {"op": "adapter_load", "layout": "modules", "memory": "pinned", "slot_rank": slot_rank}
        rows.append({**load, **sizes, "s": copies.load_s(rank, HOST)})
        read_s = copies.load_s(rank, DISK) - copies.load_s(rank, HOST)
        rows.append({"op": "adapter_from_disk", "cache": "page", **sizes, "s": read_s})
    return rows


def collective_rows() -> list[Row]:
    one = replace(MODELS["llama-3.1-8b"], hidden_size=1, dtype_bytes=1, num_hidden_layers=1)
    return [
        {
            "op": "all_reduce", "regime": "graph", "world": world, "bytes": size,
            "s": Collectives(COLLECTIVES, one, world, LINK, False, 0).step_s(size, 0) / ALL_REDUCES_PER_LAYER,
        }
        for world in (2, 4)
        for size in (2**10, 2**14, 2**18, 2**22, 2**26)
    ]  # fmt: skip
