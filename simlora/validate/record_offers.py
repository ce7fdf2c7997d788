"""What a recording sends: the scenario's requests with model names and prompts.

Prompts are random, so that nothing is shared but what the scenario's prefixes say, and keyed by request, so that one
request's prompt does not depend on another's.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simlora.errors import ConfigError
from simlora.scenario.root import Scenario
from simlora.workload.adapter_table import AdapterTable, build_adapters
from simlora.workload.request_table import RequestTable
from simlora.workload.requests import build_requests

ARGUMENTS = "<arguments>"

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
