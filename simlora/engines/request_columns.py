"""The requests of a simulation as columns: one list for each fact, a request is its place in them.

Engines that schedule millions of requests read and write the columns; nothing is made for a single request. What a
request did in an engine that knows it as an object is in engines/request.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

NAN = float("nan")
Prefix = tuple[int, ...]


class RequestColumns:
    """Every list holds one entry a request, in order of arrival. Times are seconds, NaN until they happen; they change
    with the engine that has the request."""

    def __init__(
        self,
        arrival_s: list[float],
        adapter: list[int],
        rank: list[int],
        prompt_tokens: list[int],
        output_tokens: list[int],
        prefix: Sequence[Prefix] | None = None,
    ) -> None:
        """adapter 0 is the base model, whose rank is 0. prefix: ids of the prompts' leading pieces, for a cache."""
        n = len(arrival_s)
        self.arrival_s, self.adapter, self.rank = arrival_s, adapter, rank
        self.prompt_tokens, self.output_tokens, self.prefix = prompt_tokens, output_tokens, prefix
        self.replica = [-1] * n
        self.rejected = [False] * n
        self.routed_s = [NAN] * n
        """When it reached its replica's scheduler."""
        self.admitted_s = [NAN] * n
        self.first_token_s = [NAN] * n
        self.last_token_s = [NAN] * n
        self.load_tier = [0] * n
        self.load_s = [0.0] * n
        self.first_run = [-1] * n
        self.last_run = [-1] * n
        self.cached_tokens = [0] * n
        self.preemptions = [0] * n
        self.recomputed_tokens = [0] * n
        self.emitted = [0] * n
        """Tokens that came out before the last preemption."""
        self.prefill_tokens = list(prompt_tokens)
        """Tokens to compute before the next token comes out: the prompt, and what was emitted before a preemption."""
        self.computed = [0] * n
        """Of those, how many are done; meaningful only while prefilling."""
        self.preempted_at_s: dict[int, float] = {}
        """When the last token before a preemption came out."""
        self.interrupted: dict[int, tuple[float, ...]] = {}
        """Token gaps that span a preemption."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __getitem__(self, index: int) -> RequestRow:
        if not 0 <= index < len(self.arrival_s):
            raise IndexError(index)
        return RequestRow(self, index)

    def __iter__(self) -> Iterator[RequestRow]:
        return (RequestRow(self, index) for index in range(len(self)))

    def reject(self, index: int) -> None:
        """The request gets an error for an answer."""
        self.rejected[index] = True


class RequestRow:
    """One request of RequestColumns, to read: every column is an attribute."""

    __slots__ = ("_columns", "index")

    def __init__(self, columns: RequestColumns, index: int) -> None:
        self._columns, self.index = columns, index

    @property
    def interrupted(self) -> tuple[float, ...]:
        return self._columns.interrupted.get(self.index, ())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._columns, name)[self.index]
