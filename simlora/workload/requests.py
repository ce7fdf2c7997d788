"""A scenario's requests: synthetic or replayed, with prefixes, fitted into the context length.

Every random choice has a stream of its own, so that other lengths, say, leave arrivals and adapters as they were.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simlora.errors import ConfigError
from simlora.scenario.root import Scenario
from simlora.workload import popularity
from simlora.workload.adapters import AdapterTable
from simlora.workload.clipping import fit_context
from simlora.workload.prefix import share_ids
from simlora.workload.replay import replayed
from simlora.workload.request_table import RequestTable
from simlora.workload.rng import rng
from simlora.workload.synthetic import arrival_times, token_counts

__all__ = ["RequestTable", "build_requests"]


def build_requests(scenario: Scenario, adapters: AdapterTable) -> RequestTable:
    """All requests of the scenario in order of arrival, at least one.

    Raises ConfigError for a trace that cannot be read, and when no request arrives or none fits max_model_len.
    """
    table = replayed(scenario, adapters) if scenario.workload.trace else _synthetic(scenario, adapters)
    return fitted(_with_prefix(table, scenario), scenario.engine.max_model_len, scenario.source)


def _synthetic(scenario: Scenario, adapters: AdapterTable) -> RequestTable:
    arrival_s = arrival_times(scenario)
    size = len(arrival_s)
    base, choice = rng(scenario.seed, "base"), rng(scenario.seed, "popularity")
    return RequestTable(
        arrival_s=arrival_s,
        adapter=popularity.sample(base, choice, adapters.probability, size),
        prompt_tokens=token_counts(scenario, "prompt_tokens", size),
        output_tokens=token_counts(scenario, "output_tokens", size),
        prefix=None,
        prefix_block_tokens=scenario.engine.block_size,
        notes=(),
    )


def _with_prefix(table: RequestTable, scenario: Scenario) -> RequestTable:
    config = scenario.workload.prefix
    if config.kind == "trace":
        return table
    if config.kind == "none" or config.fraction is None:
        return replace(table, prefix=None)
    block = scenario.engine.block_size
    ids = share_ids(table.adapter, table.prompt_tokens, config.fraction, block)
    note = f"prefix: {config.fraction:g} of each prompt is common to its adapter, in whole blocks of {block} tokens"
    return replace(table, prefix=ids, prefix_block_tokens=block, notes=(*table.notes, note))


def fitted(table: RequestTable, max_model_len: int, source: str) -> RequestTable:
    """The table without prompts that do not fit, and with outputs that end at the context length; see clipping."""
    keep, output_tokens, notes = fit_context(table.prompt_tokens, table.output_tokens, max_model_len)
    if not keep.any():
        allowed = f"above the shortest prompt, {table.prompt_tokens.min()} tokens: no request fits"
        raise ConfigError(source, "engine.max_model_len", max_model_len, allowed)
    table = replace(table, output_tokens=output_tokens, notes=(*table.notes, *notes))
    return table if keep.all() else _take(table, np.flatnonzero(keep))


def _take(table: RequestTable, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> RequestTable:
    return replace(
        table,
        arrival_s=table.arrival_s[rows],
        adapter=table.adapter[rows],
        prompt_tokens=table.prompt_tokens[rows],
        output_tokens=table.output_tokens[rows],
        prefix=table.prefix and tuple(table.prefix[row] for row in rows.tolist()),
    )
