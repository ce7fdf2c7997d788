"""StepLatency: what one engine step costs, composed of the calibrated terms.

price() is called once per change of the batch, so everything that does not depend on the context is cached by the
step's composition, and the rest is a few multiplications.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simlora.latency.calibration import Calibration
from simlora.latency.collectives import Collectives
from simlora.latency.cuda_graphs import Regime, padded_tokens
from simlora.latency.host import Host
from simlora.latency.inputs import EngineSettings
from simlora.latency.loads import Copies
from simlora.latency.lora_kernels import LoraKernels
from simlora.latency.operators import Attention, Operators
from simlora.latency.overlap import alternating
from simlora.latency.profile import EngineProfile
from simlora.latency.ranges import StepRanges, largest, static_extrapolations
from simlora.latency.shapes import Linear, lora_linears
from simlora.latency.step import Prefill, StepPlan, StepTiming
from simlora.scenario.gpu import GpuSpec
from simlora.scenario.lora_modules import ALL_LINEAR, supported_modules
from simlora.scenario.model import ModelSpec

_Fixed = tuple[float, float, float, float, float, float, float, tuple[str, ...]]
"""host before, after, launching (0: a graph), of a repetition; base, lora, collective; extrapolated terms."""


class PriceTable(NamedTuple):
    """What prices a step of vLLM from its numbers, for callers that price millions of them: StepLatency.price in parts.

    Seconds. A step takes `fixed`, by (num_tokens, num_requests, num_adapters, lora_tokens, no prompts, batch_changed),
    and attention.
    """

    fixed: dict[tuple[int, int, int, int, bool, bool], _Fixed]
    """Known so far; price_fixed gives the others."""
    price_fixed: Callable[[tuple[int, int, int, int, bool, bool]], _Fixed]
    load_s: Callable[[int, str], float]
    """Of an adapter: (rank, tier)."""
    decode_token_s: float
    """Attention per context token of the decoding requests."""
    request_s: float
    """Attention per decoding request."""
    pair_s: float
    """Attention per pair of prompt tokens."""
    tail_s: float
    skip_s: float
    """Host time per waiting request that is skipped."""
    largest_context: float
    """Context tokens above which attention is extrapolated: the step's terms are then long_context."""
    long_context: tuple[str, ...]
    out_s: float
    """From a token's emission by the engine to its client,"""
    out_request_s: float
    """and more for every running request."""

    def price(self, plan: StepPlan, alternates: bool = False) -> StepTiming:
        """Durations of the plan's first step and how they grow while it repeats. alternates: nothing is in flight while
        a step is prepared."""
        prefills = plan.prefills
        key = (
            plan.num_tokens, plan.num_requests, plan.num_adapters, plan.lora_tokens, not prefills, plan.batch_changed,
        )  # fmt: skip
        fixed = self.fixed.get(key)
        if fixed is None:
            fixed = self.fixed[key] = self.price_fixed(key)
        host_s, sync_s, launch_s, repeat_host_s, base_s, lora_s, collective_s, extrapolated = fixed
        attention_s = plan.decode_context_tokens * self.decode_token_s + plan.decode_count * self.request_s
        slope_s, valid_steps = 0.0, 1
        if prefills:
            pairs = 0.0
            for _, start, new in prefills:
                pairs += new * (start + 0.5 * (new + 1))
            attention_s += pairs * self.pair_s
        else:
            slope_s = plan.decode_count * plan.emitted_per_step * self.decode_token_s
            valid_steps = plan.max_repeat
        load_s = 0.0
        for _, rank, tier in plan.loads:
            load_s += self.load_s(rank, tier)
        if plan.decode_context_tokens > self.largest_context:
            extrapolated = self.long_context
        if plan.skipped:
            skip_s = plan.skipped * self.skip_s
            host_s, repeat_host_s = host_s + skip_s, repeat_host_s + skip_s
        if alternates:
            return alternating(
                (host_s + sync_s - launch_s, repeat_host_s - launch_s, launch_s + self.tail_s), load_s,
                (base_s, attention_s, lora_s, collective_s), slope_s, valid_steps, extrapolated,
            )  # fmt: skip
        tail_s = 0.0
        if launch_s:
            # The GPU starts with the first launch; where it needs longer than launching takes, the rest is the tail.
            tail_s = max(self.tail_s, base_s + attention_s + lora_s + collective_s - launch_s)
        return StepTiming(
            host_s, load_s, base_s, attention_s, lora_s, collective_s, slope_s, launch_s > 0.0, tail_s, valid_steps,
            extrapolated, sync_s, repeat_host_s,
        )  # fmt: skip


class StepLatency:
    """Prices steps of one model on one GPU type under one engine configuration. Not thread-safe (it fills caches)."""

    def __init__(
        self,
        model: ModelSpec,
        gpu: GpuSpec,
        engine: EngineSettings,
        calibration: Calibration,
        profile: EngineProfile,
        step_scale: float = 1.0,
        slot_modules: tuple[str, ...] | None = None,
        adapter_modules: tuple[str, ...] = ALL_LINEAR,
    ) -> None:
        """slot_modules: what the engine wraps (kernels run on all of it); None: everything it can. adapter_modules:
        what an adapter holds (copied by a load). step_scale multiplies every step time."""
        terms, tp = calibration.terms, engine.tensor_parallel_size
        self.model, self.gpu, self.engine, self.calibration = model, gpu, engine, calibration
        self.profile = profile
        self._scale = step_scale
        self.slot_modules = supported_modules(model, True) if slot_modules is None else slot_modules
        self.adapter_modules = adapter_modules
        self.slot_rank = engine.max_lora_rank
        self.operators = Operators(terms.operators.parameters, model, tp, profile.default_penalties)
        self.attention = Attention.of(terms.attention.parameters, model, tp)
        self.lora = self._lora_kernels()
        self.host = Host(
            terms.host.parameters,
            model.num_hidden_layers,
            engine.enable_lora,
            profile.full_decode_graphs,
            engine.max_cpu_loras,
            engine.max_loras,
        )
        link, sharded = gpu.gpu_link_bytes_per_s, engine.fully_sharded_loras
        pcie_only = gpu.host_link.startswith("pcie") and link <= gpu.host_link_bytes_per_s
        sends = None if terms.sends is None else terms.sends.parameters
        self.collectives = Collectives(
            terms.collectives.parameters, model, tp, link, sharded, engine.max_lora_rank, pcie_only, sends
        )
        self.copies = Copies(terms.copies.parameters, model, tp, engine.max_lora_rank, adapter_modules)
        self._pad = padded_tokens(profile.capture_sizes)
        self._largest = len(self._pad) - 1
        self._skip_s = terms.host.parameters.skip_s * step_scale
        self._tail_s = terms.host.parameters.tail_s * step_scale
        self._decode_token_s = self.attention.decode_token_s * step_scale
        self._request_s = self.attention.request_s * step_scale
        self._pair_s = self.attention.prefill_pair_s * step_scale
        self._ranges = StepRanges(calibration)
        self._static = static_extrapolations(calibration, model, engine)
        self._long_context = tuple(dict.fromkeys((*self._static, "attention")))
        self._largest_context = largest(calibration, "attention", "context_tokens")
        self._layers_s: list[float] = []
        self._heads_s: dict[int, float] = {}
        self._loads: dict[tuple[int, str], float] = {}
        self._front = terms.front_end.parameters
        http = self._front.http_s if engine.endpoint == "http" else 0.0
        self.frontend_in_s = self._front.in_s + http
        self._out_s = self._front.out_s + 0.5 * http
        self._out_request_s = self._front.out_request_s
        self._table = PriceTable(
            {}, self._price_fixed, self.load_s, self._decode_token_s, self._request_s, self._pair_s, self._tail_s,
            self._skip_s, self._largest_context, self._long_context, self._out_s, self._out_request_s,
        )  # fmt: skip

    def _lora_kernels(self) -> LoraKernels:
        model, engine, modules = self.model, self.engine, self.slot_modules
        wraps_head = "lm_head" in modules
        return LoraKernels(
            parameters=self.calibration.terms.lora_kernels.parameters,
            linears=lora_linears(model, engine.tensor_parallel_size, modules),
            layers=model.num_hidden_layers,
            head=Linear("lm_head", model.hidden_size, (model.vocab_size,)) if wraps_head else None,
            experts=(model.num_experts, model.num_experts_per_tok),
            max_loras=engine.max_loras,
            specialize=engine.specialize_active_lora,
            columns_sliced=self.profile.expand_columns,
            unused_runs=self.profile.unused_runs,
        )

    def price(self, plan: StepPlan) -> StepTiming:
        """Durations of the plan's first step and how they grow while it repeats."""
        return self._table.price(plan, self.profile.overlap == "alternating")

    def price_table(self) -> PriceTable | None:
        """The parts of `price`, for steps without copies beside them; None where host and GPU alternate."""
        return None if self.profile.overlap == "alternating" else self._table

    @property
    def step_scale(self) -> float:
        """Factor on all step times."""
        return self._scale

    def scaled(self, factor: float) -> StepLatency:
        """The same latency model with all step times (GPU, host, loads; not the front end) multiplied by `factor`."""
        scale = self._scale * factor
        modules = self.slot_modules, self.adapter_modules
        return StepLatency(self.model, self.gpu, self.engine, self.calibration, self.profile, scale, *modules)

    def regime(self, num_tokens: int, decode_only: bool) -> Regime:
        """How vLLM launches a step of that many tokens."""
        if num_tokens > self._largest:
            return "eager"
        return "graph" if decode_only else "piecewise"

    def frontend_out_s(self, running: int) -> float:
        """Seconds from a token's emission by the engine to its client, with that many requests running."""
        return self._out_s + self._out_request_s * running

    def load_s(self, rank: int, tier: str) -> float:
        """Seconds that loading an adapter of `rank` from `tier` blocks a step."""
        key = (rank, tier)
        seconds = self._loads.get(key)
        if seconds is None:
            seconds = self._loads[key] = self.copies.load_s(rank, tier) * self._scale
        return seconds

    @property
    def engine_start_s(self) -> float:
        """Seconds from launching an engine process to its first step."""
        p = self.calibration.terms.engine_start.parameters
        return p.base_s + (p.lora_s + p.slot_s * self.engine.max_loras if self.engine.enable_lora else 0.0)

    def decode_extra_s(self, batch: int, adapters: int, rank: int, other_rank: int) -> float:
        """Extra GPU seconds of a decode step in slots of `rank` instead of `other_rank` (advice on max_lora_rank)."""
        tokens = self._pad[batch] if batch <= self._largest else batch
        times = [self.lora.step_s(tokens, batch, adapters, r, batch) for r in (rank, other_rank)]
        return times[0] - times[1]

    def _loads_s(self, loads: tuple[tuple[int, int, str], ...]) -> float:
        return sum(self.load_s(rank, tier) for _, rank, tier in loads)

    def _prefill_s(self, prefills: tuple[Prefill, ...]) -> float:
        pairs = 0.0
        for _, start, new in prefills:
            pairs += new * (start + 0.5 * (new + 1))
        return pairs * self._pair_s

    def _dense_s(self, tokens: int, rows: int) -> float:
        """Base operators of a step; the layers come from a table over the token counts that the budget allows."""
        if not self._layers_s:
            most = max(self._largest, self.engine.max_num_batched_tokens) + 1
            self._layers_s = (self.operators.layers_s(np.arange(most, dtype=np.float64)) * self._scale).tolist()
        head_s = self._heads_s.get(rows)
        if head_s is None:
            head_s = self._heads_s[rows] = self.operators.head_s(rows) * self._scale
        if tokens < len(self._layers_s):
            return self._layers_s[tokens] + head_s
        return float(self.operators.layers_s(tokens)) * self._scale + head_s

    def _price_fixed(self, key: tuple[int, int, int, int, bool, bool]) -> _Fixed:
        tokens, requests, adapters, lora_tokens, decode_only, changed = key
        regime = self.regime(tokens, decode_only)
        padded = tokens if regime == "eager" else self._pad[tokens]
        host = self.host.cost(regime, tokens, requests, adapters, changed or not decode_only)
        again = self.host.cost(regime, tokens, requests, adapters, changed=False)
        full_graph = regime == "graph" and self.profile.full_decode_graphs
        rows = padded if full_graph else requests
        lora_runs = adapters > 0 or (self.engine.enable_lora and regime != "eager")
        scale = self._scale
        return (
            host.before_s * scale,
            host.after_s * scale,
            0.0 if full_graph else host.launch_s * scale,
            again.before_s * scale,
            self._dense_s(padded, rows),
            self.lora.step_s(padded, lora_tokens, adapters, self.slot_rank, rows) * scale if lora_runs else 0.0,
            self.collectives.step_s(padded, adapters) * scale,
            tuple(dict.fromkeys((*self._static, *self._ranges.outside(tokens, requests, adapters)))),
        )
