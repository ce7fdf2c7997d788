"""A scenario's requests: synthetic or replayed, with prefixes, fitted into the context length.

Every random choice has a stream of its own, so that other lengths, say, leave arrivals and adapters as they were.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from simlora.errors import ConfigError
from simlora.scenario.root import Scenario
from simlora.scenario.workload import EmpiricalLengths, FixedLengths, Lengths, LognormalLengths, UniformLengths
from simlora.workload.adapter_table import AdapterTable, sample
from simlora.workload.arrivals import arrival_times
from simlora.workload.request_table import MAX_TOKENS, Ints, RequestTable, fit_context, share_ids
from simlora.workload.rng import rng


def build_requests(scenario: Scenario, adapters: AdapterTable) -> RequestTable:
    """All requests of the scenario in order of arrival, at least one.

    Raises ConfigError for a trace that cannot be read, and when no request arrives or none fits max_model_len.
    """
    if scenario.workload.trace:
        from simlora.workload.traces.replay import replayed  # only a run of a trace needs the readers

        table = replayed(scenario, adapters)
    else:
        table = _synthetic(scenario, adapters)
    return fitted(_with_prefix(table, scenario), scenario.engine.max_model_len, scenario.source)


def _synthetic(scenario: Scenario, adapters: AdapterTable) -> RequestTable:
    arrival_s = arrival_times(scenario)
    size = len(arrival_s)
    base, choice = rng(scenario.seed, "base"), rng(scenario.seed, "popularity")
    return RequestTable(
        arrival_s=arrival_s,
        adapter=sample(base, choice, adapters.probability, size),
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
    """The table without prompts that do not fit, and with outputs that end at the context length; see fit_context.

    Raises:
        ConfigError: no prompt fits.
    """
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


def token_counts(scenario: Scenario, key: str, size: int) -> Ints:
    """[size], at least 1: lengths of that many requests; `key` is "prompt_tokens" or "output_tokens" and names the
    stream, too."""
    kind: Lengths | None = getattr(scenario.workload, key)
    stream = rng(scenario.seed, key)
    if isinstance(kind, LognormalLengths):
        return lognormal(stream, size, kind.median, kind.sigma, kind.min, kind.max)
    if isinstance(kind, UniformLengths):
        return uniform(stream, size, kind.min, kind.max)
    if isinstance(kind, FixedLengths):
        return fixed(size, kind.value)
    assert isinstance(kind, EmpiricalLengths)
    return empirical(stream, size, _observed(scenario, kind))


def _observed(scenario: Scenario, lengths: EmpiricalLengths) -> Ints:
    """All values of one column of a CSV file: whole numbers of at least 1, or ConfigError."""
    from simlora.workload.traces.columns import CsvTable
    from simlora.workload.traces.text_file import file_name, read_text, resolved

    path = resolved(scenario, lengths.path)
    columns = CsvTable(read_text(path), file_name(path))
    return columns.tokens(columns.require(lengths.column), 1)


def lognormal(
    generator: np.random.Generator, size: int, median: float, sigma: float, minimum: int = 1, maximum: int | None = None
) -> Ints:
    """exp(Normal(ln median, sigma)), rounded, then clamped to [minimum, maximum].

    Clamping keeps the median but gathers the tail's mass at the bounds, so the mean lies below the unbounded
    median * exp(sigma^2 / 2).
    """
    values = np.exp(math.log(median) + sigma * generator.standard_normal(size))
    return np.clip(np.rint(values), minimum, MAX_TOKENS if maximum is None else maximum).astype(np.int32)


def uniform(generator: np.random.Generator, size: int, minimum: int, maximum: int) -> Ints:
    """[size], whole numbers from minimum to maximum, both included."""
    return generator.integers(minimum, maximum, size, dtype=np.int32, endpoint=True)


def fixed(size: int, tokens: int) -> Ints:
    """[size], the same length for all."""
    return np.full(size, tokens, dtype=np.int32)


def empirical(generator: np.random.Generator, size: int, observed: Ints) -> Ints:
    """[size], observed lengths, resampled with replacement."""
    return observed[generator.integers(0, len(observed), size)]
