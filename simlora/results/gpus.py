"""What the GPUs cost and how busy they were: money, and the share of datasheet bandwidth and compute in use.

GPU time is paid from engine start-up to the end of the simulation, idle or not, unless deployments may sleep. The
shares are over the simulated time of all GPUs, idle time included.

Bytes of a step: all weights but the embedding table (of a mixture's experts, the share
1 - (1 - used / experts) ** tokens that the step's tokens are expected to touch), keys and values of every decoding
request's context, those written for new tokens, and each distinct adapter: at the rank that its slot is padded to where
the kernels compute it so, otherwise at the requests' mean rank. Adapters merged into the weights add nothing.
FLOPs, per token: 2 per active parameter outside the embeddings, 4 * q_size per layer and token of context attended to,
2 per element of the adapter at its own rank; and 2 per element of lm_head and emitted token.
Activations and re-reading of a chunked prompt's context are left out, so the shares are lower bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from simlora.engines.registry import engine_spec
from simlora.results.measured import Measured
from simlora.results.metrics import rate
from simlora.scenario.lora_modules import adapter_bytes
from simlora.sim.log import ReplicaLog

HOURS_PER_MONTH = 730
"""365 * 24 / 12."""


def usd_per_month(cost: dict[str, Any]) -> float | None:
    """Dollars a month of a cost block; None without a price."""
    hourly = cost["usd_per_hour"]
    return None if hourly is None else float(hourly) * HOURS_PER_MONTH


def up_s(measured: Measured, replica: ReplicaLog) -> float:
    """Seconds for which the replica's GPUs are paid: start-up, then the simulated time, unless it slept meanwhile."""
    return replica.start_s + measured.log.end_s if replica.paid_s is None else replica.paid_s


def _paid_fraction(measured: Measured, replica: ReplicaLog) -> float:
    """Share of the time in which the replica has its GPUs; 1 unless it may sleep."""
    if replica.paid_s is None or measured.log.end_s <= 0:
        return 1.0
    return replica.paid_s / (replica.start_s + measured.log.end_s)


def gpu_hour_usd(scenario: Any) -> float | None:
    """Price of one GPU-hour: the scenario's, else the list price of its GPU; None when neither is known."""
    price = getattr(getattr(scenario, "cost", None), "gpu_hour_usd", None)
    if price is None:
        price = getattr(getattr(scenario, "gpu_spec", None), "price_hour_usd", None)
    return None if price is None else float(price)


def cost_block(measured: Measured) -> dict[str, Any]:
    """{gpus, gpu_hours, usd, usd_per_1m_tokens, usd_per_1m_output_tokens, gpus_mean, usd_per_hour}.

    gpus counts all deployments, gpus_mean what was paid for at a time, as usd_per_hour does; tokens are those of
    completed requests.
    """
    requests, done = measured.log.requests, measured.completed
    gpu_hours = sum(up_s(measured, replica) * replica.gpus for replica in measured.log.replicas) / 3600
    price = gpu_hour_usd(measured.log.scenario)
    usd = None if price is None else gpu_hours * price
    output = int(np.sum(requests.output_tokens[done]))
    mean = sum(replica.gpus * _paid_fraction(measured, replica) for replica in measured.log.replicas)
    return {
        "gpus": sum(replica.gpus for replica in measured.log.replicas),
        "gpu_hours": gpu_hours,
        "usd": usd,
        "usd_per_1m_tokens": _per_million(usd, output + int(np.sum(requests.prompt_tokens[done]))),
        "usd_per_1m_output_tokens": _per_million(usd, output),
        "gpus_mean": mean,
        "usd_per_hour": None if price is None else mean * price,
    }


def _per_million(usd: float | None, tokens: int) -> float | None:
    return None if usd is None or not tokens else usd / tokens * 1e6


Floats = npt.NDArray[np.float64]


def gpu_block(measured: Measured) -> dict[str, Any]:
    """{busy_fraction, hbm_bandwidth_fraction, flops_fraction}; None where the scenario has no dimensions."""
    end_s, replicas = measured.log.end_s, measured.log.replicas
    gpu_seconds = sum(replica.gpus for replica in replicas) * end_s
    busy = sum(float(np.sum(timeline.gpu_s)) * timeline.replica.gpus for timeline in measured.timelines)
    out: dict[str, Any] = {"busy_fraction": rate(busy, gpu_seconds)}
    scenario = measured.log.scenario
    model, gpu = getattr(scenario, "model_spec", None), getattr(scenario, "gpu_spec", None)
    if model is None or gpu is None:
        return out | {"hbm_bandwidth_fraction": None, "flops_fraction": None}
    read = sum(_bytes(measured, index) for index in range(len(replicas)))
    flops = sum(_flops(measured, index) for index in range(len(replicas)))
    out["hbm_bandwidth_fraction"] = rate(read, gpu_seconds * gpu.hbm_bytes_per_s)
    return out | {"flops_fraction": rate(flops, gpu_seconds * gpu.bf16_flops)}


def step_tokens(scenario: Any, runs: dict[str, Floats]) -> Floats:
    """Tokens computed in one step of each run, draft tokens of speculative decoding included."""
    speculative = getattr(scenario.engine, "speculative", None)
    per_decode = 1 + (speculative.num_speculative_tokens if speculative else 0)
    return runs["decode_count"] * per_decode + runs["prefill_tokens"]


def _context_tokens(runs: dict[str, Floats]) -> Floats:
    """Tokens of context that the decoding requests of all steps of each run attend to."""
    steps = runs["steps"]
    return runs["context_tokens"] * steps + runs["decode_count"] * (steps * (steps - 1) / 2)


def _embedding_elements(model: Any) -> int:
    return int(model.vocab_size * model.hidden_size)


def _lora_elements_per_rank(scenario: Any, modules: tuple[str, ...]) -> float:
    """Elements of A and B of one adapter, per unit of rank."""
    if not engine_spec(scenario.engine.kind).adapters_apart(scenario.engine):
        return 0.0
    return adapter_bytes(scenario.model_spec, 1, modules) / float(scenario.model_spec.dtype_bytes)


def _served_modules(scenario: Any) -> tuple[str, ...]:
    """Modules of an adapter that the engine computes with."""
    own = engine_spec(scenario.engine.kind).modules
    return own if own is not None else scenario.adapter_modules


def _adapter_read_bytes(measured: Measured) -> float:
    """Bytes of one adapter that a step reads."""
    scenario, requests = measured.log.scenario, measured.log.requests
    spec = engine_spec(scenario.engine.kind)
    if spec.pads_ranks(scenario.engine) and spec.profile(scenario.engine).slotted:
        elements = scenario.engine.max_lora_rank * _lora_elements_per_rank(scenario, scenario.slot_modules)
    else:
        ranks = requests.rank[requests.adapter > 0]
        mean = float(ranks.mean()) if len(ranks) else 0.0
        elements = mean * _lora_elements_per_rank(scenario, _served_modules(scenario))
    return float(elements * scenario.model_spec.dtype_bytes)


def _bytes(measured: Measured, replica: int) -> float:
    """Bytes read and written by all steps of a replica, on all its GPUs together."""
    scenario, runs = measured.log.scenario, measured.log.replicas[replica].runs
    model, steps = scenario.model_spec, runs["steps"]
    tokens = step_tokens(scenario, runs)
    # A tied table is read once a step too, as lm_head; only a separate embedding table stays mostly unread.
    unread = 0 if model.tie_word_embeddings else _embedding_elements(model) * model.dtype_bytes
    weights = np.full(len(steps), float(model.weight_bytes - unread))
    if model.num_experts:
        used = model.num_experts_per_tok / model.num_experts
        weights -= _expert_bytes(model) * (1 - used) ** tokens
    kv_tokens = _context_tokens(runs) + tokens * steps
    read = (tokens > 0) * weights + runs["num_adapters"] * _adapter_read_bytes(measured)
    return float(np.sum(steps * read + kv_tokens * model.kv_bytes_per_token))


def _expert_bytes(model: Any) -> float:
    """Experts as stored: in dtype_bytes, or what a quantized checkpoint holds beyond its unquantized rest."""
    if model.quantized_weight_bytes is None:
        return float(model.expert_parameters * model.dtype_bytes)
    return float(model.quantized_weight_bytes - (model.parameters - model.expert_parameters) * model.dtype_bytes)


def _flops(measured: Measured, replica: int) -> float:
    """Useful floating-point operations of one replica."""
    log = measured.log
    scenario, model, runs = log.scenario, log.scenario.model_spec, log.replicas[replica].runs
    embeddings = _embedding_elements(model)
    body = model.active_parameters - embeddings * (1 if model.tie_word_embeddings else 2)
    tokens = float(np.sum(step_tokens(scenario, runs) * runs["steps"]))
    emitted = float(np.sum(runs["decode_count"] * runs["steps"] + runs["prefill_count"]))
    own = (log.requests.replica == replica) & ~np.isnan(log.requests.first_token_s)
    prompt = log.requests.prompt_tokens[own].astype(np.float64)
    cached = log.requests.cached_tokens[own].astype(np.float64)
    attended = float(np.sum(_context_tokens(runs))) + float(np.sum(prompt**2 - cached**2)) / 2
    served = (log.requests.prompt_tokens + log.requests.output_tokens)[own]
    rank = rate(float(np.sum(served * log.requests.rank[own])), float(np.sum(served))) or 0.0
    lora = rank * _lora_elements_per_rank(scenario, _served_modules(scenario))
    attention = 4.0 * model.q_size * model.num_hidden_layers * attended
    return float(2.0 * (body + lora) * tokens + 2.0 * embeddings * emitted + attention)
