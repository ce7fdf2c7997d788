"""Step times out of steps.csv, averaged over steps of the same kind, and what the latency model says about them.

The server's front end writes a row when it has handled a step's tokens. Under asynchronous scheduling the time between
rows i-1 and i is the host's iteration that launches the step of row i+1 while the GPU runs the step of row i.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from truth_runs import Run

from simlora.latency.model import StepLatency
from simlora.latency.step import Prefill, StepPlan

PIECEWISE_TOKENS = 512
MEAN_PROMPT_TOKENS = 250
"""Splits the prompt tokens of a row into chunks, which the log does not tell."""

LOADS_UNTIL_S = 6.5
REQUEST_EDGES = [0, 1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 112, 127, 160, 192, 224, 256]
TOKEN_EDGES = [-1, 0, 128, 256, 384, 512, 768, 1024, 1536, 2048, 1e9]
OLD_TOKEN_EDGES = [-1, 0, 256, 512, 1024, 1536, 2048, 1e9]


GAP_COLUMNS = ("old_requests", "old_prompt", "new_requests", "new_prompt", "context", "adapters", "lora_share")


@dataclass(frozen=True)
class Gap:
    """Mean over `count` gaps of one kind: the step on the GPU (old) and the one being launched (new)."""

    kind: str
    """Two letters, old and new: S same decodes, C changed decodes, P piecewise prefill, E eager prefill."""
    count: int
    gap_s: float
    spread: float
    """Coefficient of variation."""
    old_requests: float
    old_prompt: float
    new_requests: float
    new_prompt: float
    context: float
    adapters: float
    lora_share: float


def read_gaps(run: Run) -> list[Gap]:
    """Gaps of a trace, without those that hold adapter loads or recomputed prompts."""
    rows = _rows(run)
    rows = rows[_without_loads(run, rows)]
    requests = pd.cut(rows.old_requests, REQUEST_EDGES)
    new = pd.cut(np.where(rows.new_prompt > 0, rows.new_prompt + rows.new_requests, 0), TOKEN_EDGES)
    old = pd.cut(np.where(rows.old_prompt > 0, rows.old_prompt + rows.old_requests, 0), OLD_TOKEN_EDGES)
    gaps = []
    for (kind, *_), group in rows.groupby([rows.kind, requests, new, old], observed=True):
        kept = group[group.gap_s < 2.0 * group.gap_s.median() + 0.005]
        mean = kept.mean(numeric_only=True)
        spread = float(kept.gap_s.std() / mean.gap_s) if len(kept) > 1 else 0.3
        gaps.append(Gap(str(kind), len(kept), float(mean.gap_s), spread, *(float(mean[name]) for name in GAP_COLUMNS)))
    return gaps


def _rows(run: Run) -> pd.DataFrame:
    steps, limits = run.tables["steps"], run.meta["resolved"]
    pool_tokens = limits["num_gpu_blocks"] * limits["block_size"]
    rows = pd.DataFrame(
        {
            "gap_s": steps.t_s.diff(),
            "old_requests": steps.generated_tokens,
            "old_prompt": steps.prompt_tokens,
            "new_requests": steps.generated_tokens.shift(-1),
            "new_prompt": steps.prompt_tokens.shift(-1),
            # half a block of every request is empty on average
            "context": (steps.kv_usage * pool_tokens - limits["block_size"] / 2 * steps.running).clip(lower=0),
            "adapters": steps.running_adapters,
            "lora_share": 1.0 - run.meta["workload"].get("base_frac", 0.0) if run.engine.enable_lora else 0.0,
        }
    ).iloc[2:-2]
    usable = (rows.old_requests > 0) & (rows.new_requests > 0)
    rows = rows[usable].copy()
    old, new = _kind(rows.old_prompt, rows.old_requests), _kind(rows.new_prompt, rows.new_requests)
    changed = (new == "S") & ((old != "S") | (rows.old_requests != rows.new_requests).to_numpy())
    rows["kind"] = pd.Series(old, index=rows.index) + pd.Series(np.where(changed, "C", new), index=rows.index)
    return rows


def _without_loads(run: Run, rows: pd.DataFrame) -> pd.Series:
    """Drops the first seconds of a trace that starts without its adapters, and prompts of one that recomputes some."""
    initial = run.meta["initial_adapters"]
    complete = not initial or len(initial["gpu"]) == run.meta["workload"]["n_adapters"]
    keep = pd.Series(True, index=rows.index)
    if not complete and len(initial["host"]) < run.meta["workload"]["n_adapters"]:
        keep &= run.tables["steps"].t_s.reindex(rows.index) > LOADS_UNTIL_S
    if run.tables["steps"].preempted.sum() > 0:
        # recomputed prompts are not in prompt_tokens, so only pure decodes can be told
        keep &= (rows.old_prompt == 0) & (rows.new_prompt == 0) & (rows.gap_s < 0.03)
    return keep


def _kind(prompt: pd.Series, requests: pd.Series) -> np.ndarray:
    return np.where(prompt == 0, "S", np.where(prompt + requests > PIECEWISE_TOKENS, "E", "P"))


def gap_plan(requests: float, prompt: float, gap: Gap, changed: bool) -> StepPlan:
    """A plan with the composition of one side of a gap."""
    emitted, prompt_tokens = round(requests), round(prompt)
    chunks = max(1, round(prompt / MEAN_PROMPT_TOKENS)) if prompt_tokens else 0
    decodes = max(emitted - chunks, 0) if chunks else emitted
    tokens = decodes + prompt_tokens
    lora_tokens = round(tokens * gap.lora_share)
    prefills = tuple(Prefill(0, 0, prompt_tokens // chunks) for _ in range(chunks))
    adapters = min(round(gap.adapters), lora_tokens)
    return StepPlan(
        prefills, decodes, int(gap.context), tokens, decodes + chunks, adapters, lora_tokens, 16, changed, (), 1
    )


def predict_gap_s(latency: StepLatency, gap: Gap) -> float:
    """The host waits for the old step's rest on the GPU or for its own preparation, then does what is left to do."""
    old = latency.price(gap_plan(gap.old_requests, gap.old_prompt, gap, True))
    new = latency.price(gap_plan(gap.new_requests, gap.new_prompt, gap, gap.kind[1] != "S"))
    rest_s = old.tail_s if old.launch_bound else old.gpu_s
    return max(rest_s, new.host_s) + new.sync_s
