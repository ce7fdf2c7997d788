"""Least-squares fits of the latency terms to recorded runs. Called by fit_first_calibration.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from replay_vllm import NEVER, advance
from scipy.optimize import least_squares, nnls
from step_gaps import Gap, predict_gap_s, read_gaps
from truth_runs import Run

from simlora.latency.calibration import Calibration
from simlora.latency.lora_kernels import LoraKernels
from simlora.latency.model import StepLatency
from simlora.latency.scaling import scale_host
from simlora.latency.shapes import lora_linears
from simlora.latency.step import Prefill, StepPlan
from simlora.scenario.lora_modules import ALL_LINEAR
from simlora.scenario.model_catalog import builtin_model

Key = tuple[str, str]
"""Term and parameter."""

KERNELS = (
    "launch_s", "dead_shrink_s", "dead_expand_s", "shrink_s", "shrink_wide_s", "expand_s", "expand_wide_s",
)  # fmt: skip

STEP_PRIORS: dict[Key, tuple[float, float]] = {
    # weights stream at 88 % of the datasheet's 4.8 TB/s in small-batch GEMMs; what is left over is per layer
    ("operators", "weight_bytes_per_s"): (4.2e12, 0.02),
    ("operators", "activation_bytes_per_s"): (2.5e12, 0.2),
    ("operators", "gemm_flops"): (6.8e14, 0.2),
    ("operators", "layer_s"): (42e-6, 0.5),
    ("attention", "kv_bytes_per_s"): (4.05e12, 0.01),
    ("attention", "request_tokens"): (70.0, 0.5),
    ("attention", "prefill_flops"): (4.2e14, 0.5),
    ("lora_kernels", "zero_s"): (1.0e-6, 0.5),
    ("host", "prepare_s"): (1.5e-3, 0.3),
    ("host", "prepare_request_s"): (40e-6, 0.3),
    ("host", "change_s"): (0.8e-3, 0.5),
    ("host", "metadata_s"): (3e-3, 0.5),
    ("host", "launch_s"): (1.5e-3, 0.5),
    ("host", "piecewise_layer_s"): (2.5e-4, 1.0),
    ("host", "eager_layer_s"): (7.5e-4, 1.0),
    ("host", "eager_lora_unused_layer_s"): (4e-4, 1.0),
    ("host", "eager_lora_layer_s"): (1.6e-3, 1.0),
    ("host", "tail_s"): (1e-3, 0.3),
    # request processing, serialisation and wake-ups of three processes in a row, without load
    ("front_end", "in_s"): (1.3e-3, 0.3),
    ("front_end", "out_s"): (0.7e-3, 0.3),
}
"""Parameter -> (expected value, relative width). The widths are wide where the runs can tell."""

DECODE_ERROR, PREFILL_ERROR, GAP_ERROR, HOST_SPREAD = 0.02, 0.04, 0.05, 0.1


def with_parameters(calibration: Calibration, values: dict[Key, float]) -> Calibration:
    """The calibration with some parameters replaced."""
    data = calibration.model_dump(mode="json", by_alias=True)
    for (term, name), value in values.items():
        data["terms"][term]["parameters"][name] = float(value)
    return Calibration.model_validate(data)


def process_of(run: Run) -> str:
    """Runs of one engine process share its start-up time."""
    return f"{run.machine}-{run.meta['start_s']}"


# --- LoRA kernels --------------------------------------------------------------------------------------------------


def fit_kernels(calibration: Calibration, rows: list[dict[str, Any]]) -> tuple[dict[Key, float], Any]:
    """Non-negative least squares on relative errors; the model is linear in its parameters. Returns residuals too."""
    model = builtin_model("llama-3.1-8b")
    assert model is not None
    template = calibration.terms.lora_kernels.parameters

    def step_s(row: dict[str, Any], values: dict[str, float]) -> float:
        zeroes = dict.fromkeys(KERNELS, 0.0)
        parameters = template.model_copy(update=zeroes | values)
        kernels = LoraKernels(parameters, lora_linears(model, 1, ALL_LINEAR), 32, None, (0, 0), row["slots"], False)
        return kernels.step_s(row["tokens"], row["tokens"], row["distinct"], row["max_rank"], row["tokens"])

    matrix = np.array([[step_s(row, {name: 1.0}) for name in KERNELS] for row in rows])
    measured = np.array([row["vllm"] for row in rows])
    found, _ = nnls(matrix / measured[:, None], np.ones(len(rows)))
    return {("lora_kernels", name): float(v) for name, v in zip(KERNELS, found, strict=True)}, (matrix, measured)


# --- steps ---------------------------------------------------------------------------------------------------------


def decode_itl_s(latency: StepLatency, row: Any) -> float:
    """Steady decoding: the GPU or the host, whichever takes longer."""
    batch, adapters = int(row.batch), int(row.distinct_adapters)
    context = batch * (int(row.prompt_tokens) + 24)
    lora = batch if adapters else 0
    timing = latency.price(StepPlan((), batch, context, batch, batch, adapters, lora, int(row.rank), False, (), 1))
    return max(timing.gpu_s, timing.host_s)


def lone_ttft_s(latency: StepLatency, prompt: int, adapter: bool, load: tuple[int, str] | None, tokens: int) -> float:
    """TTFT of a request alone: its chunks, and with tokens > 1 the decode step that is launched before it comes out."""
    now, end = 0.0, NEVER
    start, budget = 0, latency.engine.max_num_batched_tokens
    plans = []
    while start < prompt:
        new = min(prompt - start, budget)
        loads = ((1, *load),) if load and start == 0 else ()
        lora = (1, new, 16) if adapter else (0, 0, 0)
        plans.append(StepPlan((Prefill(0, start, new),), 0, 0, new, 1, *lora, True, loads, 1))
        start += new
    if tokens > 1:
        plans.append(StepPlan((), 1, prompt, 1, 1, *((1, 1, 16) if adapter else (0, 0, 0)), True, (), 1))
    for plan in plans:
        now, end = advance(latency.price(plan), now, end)
    return latency.frontend_in_s + (now if tokens > 1 else end) + latency.frontend_out_s(1)


def prefill_rows(run: Run) -> Any:
    """Median TTFT per prompt length and rank, the first repeat dropped (it can hold a load or a compilation)."""
    table = run.tables["prefill"]
    return table[table.repeat > 0].groupby(["prompt_tokens", "rank"], as_index=False).ttft_s.median()


class StepFit:
    """Operators, attention and host terms to micro runs and step times, with one host factor per engine process."""

    def __init__(self, base: Calibration, micro: list[Run], traces: list[Run]) -> None:
        self.base, self.micro, self.traces = base, micro, traces
        self.gaps: dict[str, list[Gap]] = {run.name: read_gaps(run) for run in traces}
        self.prefill = {run.name: prefill_rows(run) for run in micro}
        self.processes = sorted({process_of(run) for run in micro + traces})
        self.keys = list(STEP_PRIORS)

    def solve(self) -> tuple[dict[Key, float], dict[str, float]]:
        """Parameters for a host of factor 1 (the mean over machine A's runs), and the factor of each process."""
        start = [math.log(STEP_PRIORS[key][0]) for key in self.keys] + [0.0] * len(self.processes)
        solution = least_squares(self._residuals, start, loss="soft_l1", max_nfev=15).x
        values, factors = self._unpack(solution)
        runs = [run for run in self.micro + self.traces if run.machine == "A"]
        mean = math.exp(np.mean([math.log(factors[process_of(run)]) for run in runs]))
        for key in self.keys:
            if key[0] in ("host", "front_end") and key[1] != "tail_s":
                values[key] *= mean
        return values, {name: factor / mean for name, factor in factors.items()}

    def _unpack(self, x: Any) -> tuple[dict[Key, float], dict[str, float]]:
        count = len(self.keys)
        values = dict(zip(self.keys, np.exp(x[:count]).tolist(), strict=True))
        return values, dict(zip(self.processes, np.exp(x[count:]).tolist(), strict=True))

    def _residuals(self, x: Any) -> Any:
        values, factors = self._unpack(x)
        calibration = with_parameters(self.base, values)
        scaled = {name: scale_host(calibration, factor) for name, factor in factors.items()}
        out: list[float] = []
        for run in self.micro:
            latency = run.latency(scaled[process_of(run)])
            for row in run.tables["decode"].itertuples():
                out.append(math.log(decode_itl_s(latency, row) / row.itl_p50_s) / DECODE_ERROR)
            for row in self.prefill[run.name].itertuples():
                ttft = lone_ttft_s(latency, row.prompt_tokens, row.rank > 0, None, 1)
                out.append(math.log(ttft / row.ttft_s) / PREFILL_ERROR)
        for run in self.traces:
            latency = run.latency(scaled[process_of(run)])
            for gap in self.gaps[run.name]:
                width = math.hypot(GAP_ERROR, max(gap.spread, 0.15) / math.sqrt(gap.count))
                out.append(math.log(predict_gap_s(latency, gap) / gap.gap_s) / width)
        out += [math.log(factor) / HOST_SPREAD for factor in factors.values()]
        out += [math.log(values[key] / mean) / width for key, (mean, width) in STEP_PRIORS.items()]
        return np.array(out)
