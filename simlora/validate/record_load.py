"""What a recording sends, and when: the scenario's requests at their times, whatever the server does (open loop).

Prompts are random, so that nothing is shared but what the scenario's prefixes say, and keyed by request, so that one
request's prompt does not depend on another's.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from simlora.errors import ARGUMENTS, ConfigError
from simlora.scenario.root import Scenario
from simlora.validate.record_client import NOT_SENT, Attempt, Client, Failure
from simlora.workload.adapter_table import AdapterTable, build_adapters
from simlora.workload.request_table import RequestTable
from simlora.workload.requests import build_requests

PromptKind = Literal["token-ids", "text"]

FIRST_TOKEN, ORDINARY_SHARE = 10, 0.9
"""Token ids are drawn between these: the ends of a vocabulary hold special tokens."""
WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
    "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company",
    "system", "program", "question", "work", "number", "night", "point", "home", "water", "room", "mother", "area",
    "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue",
    "side", "kind", "head", "house", "service", "friend", "father", "hour",
)  # fmt: skip
"""Common words, one token each in most vocabularies."""


@dataclass(frozen=True)
class Offers:
    """Requests in order of arrival, and how to make each one's body."""

    adapters: AdapterTable
    requests: RequestTable
    models: tuple[str, ...]
    """Name on the server of the base model and of adapter 1, 2, ..."""
    prompts: PromptKind
    vocab_size: int
    seed: int

    def __len__(self) -> int:
        return len(self.requests)

    def model(self, index: int) -> str:
        return self.models[int(self.requests.adapter[index])]

    def prompt(self, index: int) -> list[int] | str:
        """Token ids, or a text of as many words."""
        length = int(self.requests.prompt_tokens[index])
        prefix, block = self.requests.prefix, self.requests.prefix_block_tokens
        drawn: list[int] = []
        for block_id in prefix[index] if prefix else ():
            drawn += self._draw("prefix", block_id, block)
        drawn = drawn[:length]
        drawn += self._draw("prompt", index, length - len(drawn))
        if self.prompts == "token-ids":
            return drawn
        return " ".join(WORDS[value % len(WORDS)] for value in drawn)

    def _draw(self, stream: str, key: int, size: int) -> list[int]:
        entropy = [self.seed, zlib.crc32(stream.encode()), key]
        top = max(int(ORDINARY_SHARE * self.vocab_size), FIRST_TOKEN + 1)
        generator = np.random.default_rng(np.random.SeedSequence(entropy))
        return [int(value) for value in generator.integers(FIRST_TOKEN, top, size)]


def make_offers(scenario: Scenario, base: str, names: Sequence[str], prompts: PromptKind) -> Offers:
    """The scenario's requests.

    Args:
        base: the base model's name on the server.
        names: of adapters 1, 2, ..., at least as many as the scenario has.

    Raises:
        ConfigError: too few names, or a workload that cannot be read.
    """
    adapters = build_adapters(scenario)
    if len(names) < adapters.count:
        allowed = f"{adapters.count} names, one for each adapter of the scenario (adapters.count)"
        raise ConfigError(ARGUMENTS, "--adapters", list(names), allowed)
    return Offers(
        adapters=adapters,
        requests=build_requests(scenario, adapters),
        models=(base, *names[: adapters.count]),
        prompts=prompts,
        vocab_size=scenario.model_spec.vocab_size,
        seed=scenario.seed,
    )


def adapter_names(given: str | Sequence[str] | None, served: Sequence[str], count: int) -> list[str]:
    """Names of adapters 1 .. count on the server.

    Args:
        given: a pattern with {id}, such as "adapter-{id}"; a list of names; None: those that the server lists, in its
            order.

    Raises:
        ConfigError: a pattern without {id}.
    """
    if given is None:
        return list(served)
    if not isinstance(given, str):
        return list(given)
    if "{id}" not in given:
        raise ConfigError(
            ARGUMENTS, "--adapters", given, "a pattern with {id}, such as adapter-{id}, or a list of names"
        )
    return [given.replace("{id}", str(adapter)) for adapter in range(1, count + 1)]


Progress = Callable[[int, int, int], None]
"""Called with the numbers of requests sent, finished and failed."""


@dataclass(frozen=True)
class Driven:
    """What happened, one attempt per request in the order offered. Times are seconds from the recording's start."""

    attempts: list[Attempt]
    end_s: float
    interrupted: bool
    """By the user, before the end."""
    server_died_s: float | None
    """First failed connection after the last sign of life, if the server never came back."""

    @property
    def cut_s(self) -> float | None:
        """When the recording ended for requests that had not; None: all finished."""
        if all(attempt.done for attempt in self.attempts):
            return None
        return self.end_s if self.server_died_s is None else self.server_died_s


async def drive(
    client: Client,
    offers: Offers,
    now_s: Callable[[], float],
    *,
    cut_s: float | None = None,
    give_up_s: float = 30.0,
    progress: Progress | None = None,
) -> Driven:
    """Send every request.

    Args:
        now_s: the recording's clock, 0 at its start.
        cut_s: end then, finished or not; None: wait for every request.
        give_up_s: once no connection has succeeded for so long, the rest is not sent.

    Cancelling it (the user's interrupt) ends the recording as it is: the result says so.
    """
    sender, interrupted = _Sender(client, offers, now_s, progress), False
    try:
        await sender.send_all(cut_s, give_up_s)
        if sender.tasks:
            await asyncio.wait(sender.tasks, timeout=None if cut_s is None else max(cut_s - now_s(), 0.0))
    except asyncio.CancelledError:
        interrupted = True
    end_s = now_s()
    for task in list(sender.tasks):
        task.cancel()
    await asyncio.gather(*sender.tasks, return_exceptions=True)
    reason = "interrupted" if interrupted else "the recording had ended, or the server was gone"
    attempts = [*sender.attempts, *_not_sent(offers, len(sender.attempts), end_s, reason)]
    return Driven(attempts, end_s, interrupted, client.health.lost_s)


class _Sender:
    """Sends the requests, and keeps count."""

    def __init__(self, client: Client, offers: Offers, now_s: Callable[[], float], progress: Progress | None) -> None:
        self._client, self._offers, self._now_s, self._progress = client, offers, now_s, progress
        self._finished = self._failed = 0
        self.attempts: list[Attempt] = []
        self.tasks: set[asyncio.Task[None]] = set()

    async def send_all(self, cut_s: float | None, give_up_s: float) -> None:
        """Each request at its time, until the cut, or until the server has been gone for give_up_s."""
        offers = self._offers
        for index, arrival_s in enumerate(offers.requests.arrival_s.tolist()):
            output_tokens = int(offers.requests.output_tokens[index])
            body = self._client.body(offers.model(index), offers.prompt(index), output_tokens)
            await asyncio.sleep(max(arrival_s - self._now_s(), 0.0))
            now_s, lost_s = self._now_s(), self._client.health.lost_s
            if (cut_s is not None and now_s >= cut_s) or (lost_s is not None and now_s - lost_s > give_up_s):
                return
            attempt = Attempt(index, now_s)
            self.attempts.append(attempt)
            task = asyncio.create_task(self._send(attempt, body))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _send(self, attempt: Attempt, body: dict[str, Any]) -> None:
        await self._client.complete(attempt, body)
        self._finished += attempt.done
        self._failed += attempt.failure is not None
        if self._progress is not None:
            self._progress(len(self.attempts), self._finished, self._failed)


def _not_sent(offers: Offers, first: int, end_s: float, reason: str) -> list[Attempt]:
    """Requests that were never sent are part of the recording, too: at the time at which they were due."""
    due_s = offers.requests.arrival_s
    return [
        Attempt(index, float(due_s[index]), failure=Failure(NOT_SENT, end_s, reason))
        for index in range(first, len(offers))
    ]
