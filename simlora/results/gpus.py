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

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from simlora.engines.registry import engine_spec
from simlora.results.measured import Measured
from simlora.results.metrics import rate
from simlora.results.summary_metric import LOWER, NEUTRAL, Metric
from simlora.scenario.lora_modules import adapter_bytes
from simlora.sim.log import ReplicaLog

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

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


def _gpus(measured: Measured) -> int:
    return sum(replica.gpus for replica in measured.log.replicas)


def _gpus_mean(measured: Measured) -> float:
    return sum(replica.gpus * _paid_fraction(measured, replica) for replica in measured.log.replicas)


def _gpu_hours(measured: Measured) -> float:
    return sum(up_s(measured, replica) * replica.gpus for replica in measured.log.replicas) / 3600


def _usd(measured: Measured) -> float | None:
    price = gpu_hour_usd(measured.log.scenario)
    return None if price is None else _gpu_hours(measured) * price


def _usd_per_hour(measured: Measured) -> float | None:
    price = gpu_hour_usd(measured.log.scenario)
    return None if price is None else _gpus_mean(measured) * price


def _usd_per_million(measured: Measured, *tokens: Ints) -> float | None:
    """Of the tokens of completed requests."""
    usd, count = _usd(measured), sum(int(np.sum(column[measured.completed])) for column in tokens)
    return None if usd is None or not count else usd / count * 1e6


def _busy_fraction(measured: Measured) -> float | None:
    busy = sum(float(np.sum(timeline.gpu_s)) * timeline.replica.gpus for timeline in measured.timelines)
    return rate(busy, _gpus(measured) * measured.log.end_s)


def _datasheet_fraction(
    measured: Measured, of_replica: Callable[[Measured, int], float], attribute: str
) -> float | None:
    """What the steps of all replicas took of a datasheet rate; None where the scenario has no dimensions."""
    scenario = measured.log.scenario
    model, gpu = getattr(scenario, "model_spec", None), getattr(scenario, "gpu_spec", None)
    if model is None or gpu is None:
        return None
    amount = sum(of_replica(measured, index) for index in range(len(measured.log.replicas)))
    return rate(amount, _gpus(measured) * measured.log.end_s * getattr(gpu, attribute))


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


METRICS = (
    Metric("gpu.busy_fraction", "fraction", _busy_fraction, "time that GPUs compute", "GPU busy", NEUTRAL),
    Metric(
        "gpu.hbm_bandwidth_fraction",
        "fraction",
        lambda m: _datasheet_fraction(m, _bytes, "hbm_bytes_per_s"),
        "of the datasheet's memory bandwidth, at least",
    ),
    Metric(
        "gpu.flops_fraction",
        "fraction",
        lambda m: _datasheet_fraction(m, _flops, "bf16_flops"),
        "of the datasheet's dense BF16 rate, at least",
    ),
    Metric("cost.gpus", "count", _gpus, "of all replicas or deployments", "GPUs", LOWER),
    Metric("cost.gpu_hours", "count", _gpu_hours, "paid, start-up included"),
    Metric("cost.usd", "usd", _usd, "of the run", "cost", LOWER),
    Metric(
        "cost.usd_per_1m_tokens",
        "usd",
        lambda m: _usd_per_million(m, m.log.requests.output_tokens, m.log.requests.prompt_tokens),
        "prompts and outputs of completed requests",
        "per 1M tokens",
        LOWER,
    ),
    Metric(
        "cost.usd_per_1m_output_tokens",
        "usd",
        lambda m: _usd_per_million(m, m.log.requests.output_tokens),
        "outputs of completed requests",
        "per 1M output",
        listed="Cost",
    ),
    Metric("cost.gpus_mean", "count", _gpus_mean, "paid for at a time: fewer where deployments sleep"),
    Metric("cost.usd_per_hour", "usd/h", _usd_per_hour, "of the GPUs paid for at a time"),
)
