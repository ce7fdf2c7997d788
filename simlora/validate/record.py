"""`simlora record`: plays a scenario against a real server, and writes what happened as a recorded run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import aiohttp
import numpy as np

from simlora.errors import ARGUMENTS, ConfigError
from simlora.results.files import Writer, text_writer, write_folder
from simlora.runs import REJECTED, REQUESTS, RUN, STEPS
from simlora.runs.write import REQUEST_COLUMNS, STEP_COLUMNS, describe_run, run_text, write_table
from simlora.scenario.root import Scenario
from simlora.sim.build import initial_adapters
from simlora.validate.record_client import Attempt, Client
from simlora.validate.record_load import Driven, Offers, Progress, PromptKind, adapter_names, drive, make_offers
from simlora.validate.record_server import Sampler, ServerInfo, ask_server, read_metrics

ERRORS = "errors.csv"
"""Beside the files of every recorded run: each request that went wrong. One that was under way when the recording was
cut did not: it is a row of requests.csv without times."""
ERROR_COLUMNS = ("request", "arrival_s", "model", "kind", "status", "at_s", "tokens", "message")
_DECIMALS = 6
_WARM_UP_TOKENS = 8
_KEEP_ALIVE_S = 3.0
"""Below the 5 s of vLLM's server: who closes an idle connection first must not be the one that does not know."""


@dataclass(frozen=True)
class RecordOptions:
    """How to record. Times are seconds."""

    model: str | None = None
    """The base model's name on the server; None: the one it lists."""
    adapters: str | Sequence[str] | None = None
    """Names of adapters 1, 2, ...: a pattern with {id}, a list, or None for those that the server lists."""
    prompts: PromptKind = "token-ids"
    """text: prompts are words, for servers that take no token ids; lengths are then what the server counts."""
    api_key: str | None = None
    timeout_s: float = 600.0
    """Of one request."""
    give_up_s: float = 30.0
    """After no connection for so long, the rest is not sent."""
    sample_s: float = 0.5
    """Interval between two looks at /metrics."""
    warm_up: int = 2
    """Requests to the base model before the recording begins."""
    initial_adapters: Literal["unknown", "none"] = "unknown"
    """none: the server has just started, without adapters in memory. With the scenario's adapters.preload neither: all
    adapters were registered at the start, adapter 1 last."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """More fields of each request's body; null removes one."""


@dataclass(frozen=True)
class Recorded:
    """The outcome of a recording."""

    folder: Path
    offered: int
    completed: int
    rejected: int
    """Refused by the server (status 4xx), e.g. for an adapter that it does not know."""
    unfinished: int
    """All others that did not finish."""
    failures: dict[str, int]
    """Kind of failure -> count; the details stand in errors.csv."""
    server_died_s: float | None
    interrupted: bool
    max_lag_s: float
    """Longest delay between a request's time and its sending; much of it means that the client is too slow."""


def record(
    url: str,
    scenario: Scenario,
    out: str | Path,
    options: RecordOptions | None = None,
    progress: Progress | None = None,
) -> Recorded:
    """Send the scenario's requests to the server at `url` and write the recording to the folder `out`.

    Whatever happens to single requests or to the server is recorded, not raised. An interrupt (Ctrl-C) ends the
    recording and writes what there is.

    Raises:
        ConfigError: no server answers at the start, `out` holds something already, or the scenario needs more adapters
            than there are names. Nothing is written then.
    """
    return asyncio.run(record_async(url, scenario, out, options, progress))


async def record_async(
    url: str,
    scenario: Scenario,
    out: str | Path,
    options: RecordOptions | None = None,
    progress: Progress | None = None,
) -> Recorded:
    """`record` within a running event loop, whose clock is the recording's. Cancelling it is the interrupt."""
    options, target, clock_s = options or RecordOptions(), _new_folder(out), asyncio.get_running_loop().time
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        server = await ask_server(session, url, options.model)
        names = adapter_names(options.adapters, server.adapters, scenario.adapters.count)
        offers = make_offers(scenario, server.base, names, options.prompts)
        await _warm_up(session, url, offers, options)
        before = await read_metrics(session, url)
        start_s = clock_s()

        def now_s() -> float:
            return clock_s() - start_s

        sampler = Sampler(session, url, now_s, options.sample_s, before)
        over = asyncio.Event()
        sampling = asyncio.create_task(sampler.run(over))
        client = Client(session, url, now_s, options.timeout_s, options.extra_body)
        driven = await drive(
            client, offers, now_s, cut_s=_cut_s(scenario), give_up_s=options.give_up_s, progress=progress
        )
        over.set()
        await sampling
    return _write(target, scenario, offers, driven, server, sampler, options)


async def _warm_up(session: aiohttp.ClientSession, url: str, offers: Offers, options: RecordOptions) -> None:
    """A server compiles at its first requests. Those that fail here tell of a wrong address or model in time."""
    now_s = asyncio.get_running_loop().time
    client = Client(session, url, now_s, options.timeout_s, options.extra_body)
    for index in range(options.warm_up):
        prompt = offers.prompt(index % len(offers))[:_WARM_UP_TOKENS] if options.prompts == "token-ids" else "hello"
        attempt = Attempt(index, now_s())
        await client.complete(attempt, client.body(offers.models[0], prompt, _WARM_UP_TOKENS))
        if attempt.failure is not None:
            allowed = f"a server that completes a request for {offers.models[0]} ({attempt.failure.message})"
            raise ConfigError(ARGUMENTS, "--url", url, allowed)


def _cut_s(scenario: Scenario) -> float | None:
    return scenario.workload.duration_s if scenario.workload.end == "cut" else None


def _write(
    target: Path,
    scenario: Scenario,
    offers: Offers,
    driven: Driven,
    server: ServerInfo,
    sampler: Sampler,
    options: RecordOptions,
) -> Recorded:
    attempts, due_s = driven.attempts, offers.requests.arrival_s
    failed = [attempt for attempt in attempts if attempt.failure is not None]
    lag_s = max((attempt.sent_s - float(due_s[attempt.index]) for attempt in attempts), default=0.0)
    done = sum(attempt.done for attempt in attempts)
    engine, caching = scenario.engine, server.flag("enable_prefix_caching")
    description = describe_run(
        scenario,
        engine.kind,
        server.version or engine.version,
        {
            "max_model_len": server.max_model_len or engine.max_model_len,
            "num_gpu_blocks": server.number("num_gpu_blocks") or engine.num_gpu_blocks_override,
            "block_size": server.number("block_size") or engine.block_size,
        },
        prefix_caching=engine.enable_prefix_caching if caching is None else caching,
        endpoint="http",
        initial_adapters=_residents(scenario, options),
        cut_s=_rounded(driven.cut_s),
        wall_s=_rounded(driven.end_s),
        offered=len(attempts),
        completed=done,
        notes={
            "models": list(offers.models),
            "sample_s": options.sample_s if sampler.rows else None,
            "max_lag_s": round(lag_s, _DECIMALS),
            "server_died_s": driven.server_died_s,
            "interrupted": driven.interrupted,
            "prompts": options.prompts,
        },
    )
    columns = (*REQUEST_COLUMNS, "status", "model")
    writers = {
        RUN: text_writer(lambda: run_text(description)),
        REQUESTS: _table(columns, [_request_row(offers, attempt) for attempt in attempts]),
        ERRORS: _table(ERROR_COLUMNS, [_error_row(offers, attempt) for attempt in failed]),
    }
    if sampler.rows:  # the server has metrics
        writers[STEPS] = _table(STEP_COLUMNS, sampler.rows)
    write_folder(target, writers)
    rejected = sum(attempt.failure is not None and attempt.failure.is_refusal for attempt in failed)
    return Recorded(
        folder=target,
        offered=len(attempts),
        completed=done,
        rejected=rejected,
        unfinished=len(attempts) - done - rejected,
        failures=dict(Counter(attempt.failure.kind for attempt in failed if attempt.failure is not None)),
        server_died_s=driven.server_died_s,
        interrupted=driven.interrupted,
        max_lag_s=lag_s,
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Writer:
    return partial(write_table, columns=columns, rows=rows)


def _residents(scenario: Scenario, options: RecordOptions) -> dict[str, Any] | None:
    """run.json's initial_adapters: those that were registered at the start (adapters.preload), none, or unknown."""
    if options.initial_adapters == "unknown" and not scenario.adapters.preload:
        return None
    initial = initial_adapters(scenario)
    return {"gpu": list(initial.gpu), "host": list(initial.host), "gpu_others": 0, "host_others": 0}


def _request_row(offers: Offers, attempt: Attempt) -> list[Any]:
    """Lengths are those that the server counted, where it did."""
    requests, index, stream = offers.requests, attempt.index, attempt.stream
    adapter = int(requests.adapter[index])
    row: list[Any] = [
        _rounded(attempt.sent_s),
        adapter,
        int(offers.adapters.rank[adapter]),
        stream.prompt_tokens or int(requests.prompt_tokens[index]),
        stream.tokens if attempt.done else int(requests.output_tokens[index]),
    ]
    if not attempt.done:
        refused = attempt.failure is not None and attempt.failure.is_refusal
        return [*row, None, None, None, None, REJECTED if refused else "unfinished", offers.model(index)]
    since = np.array(stream.token_s) - attempt.sent_s
    gaps = np.diff(since) if len(since) > 1 else np.zeros(1)
    times = (since[0], since[-1], gaps.max(), np.median(gaps))
    return [*row, *(_rounded(float(time)) for time in times), "completed", offers.model(index)]


def _error_row(offers: Offers, attempt: Attempt) -> list[Any]:
    failure = attempt.failure
    assert failure is not None, "called for attempts that failed"
    return [
        attempt.index,
        _rounded(attempt.sent_s),
        offers.model(attempt.index),
        failure.kind,
        failure.status,
        _rounded(failure.at_s),
        attempt.stream.tokens,
        failure.message,
    ]


def _rounded(time_s: float | None) -> float | None:
    return None if time_s is None else round(time_s, _DECIMALS)


def _new_folder(out: str | Path) -> Path:
    """A recording is not repeatable: it never takes the place of anything, and must not fail when it is written."""
    target = Path(out).expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(ARGUMENTS, "--out", str(out), "a folder that does not exist yet, or is empty")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent):
            pass
    except OSError as error:
        allowed = f"a folder that can be written ({error.strerror or error})"
        raise ConfigError(ARGUMENTS, "--out", str(out), allowed) from None
    return target
