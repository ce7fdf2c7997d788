"""The life of one request inside an engine that knows its requests as objects. The engine that owns it changes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

NAN = float("nan")


class Request:
    """One request and what has happened to it. Times are seconds, NaN until they happen.

    prompt_tokens and output_tokens are what was asked. emitted counts the tokens that came out in earlier residences:
    after a preemption the context to compute again is prompt_tokens + emitted.
    """

    __slots__ = (
        "adapter", "admitted_s", "arrival_s", "base", "cached_tokens", "computed", "emitted", "first_run",
        "first_token_s", "index", "interrupted", "key", "last_run", "last_step", "last_token_s", "load_s", "load_tier",
        "output_tokens", "preempted_at_s", "preemptions", "prefill_tokens", "prompt_tokens", "rank",
        "recomputed_tokens", "rejected", "replica", "routed_s", "start_step",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        arrival_s: float,
        adapter: int,
        rank: int,
        prompt_tokens: int,
        output_tokens: int,
    ) -> None:
        self.index, self.arrival_s, self.adapter, self.rank = index, arrival_s, adapter, rank
        self.prompt_tokens, self.output_tokens = prompt_tokens, output_tokens
        self.replica = -1
        self.rejected = False
        self.routed_s = self.admitted_s = self.first_token_s = self.last_token_s = self.preempted_at_s = NAN
        self.preemptions = self.recomputed_tokens = self.cached_tokens = self.emitted = 0
        self.load_tier, self.load_s = 0, 0.0
        self.first_run = self.last_run = -1
        self.interrupted: tuple[float, ...] = ()
        self.key = 0
        """Place in a waiting queue that numbers its requests."""
        self.prefill_tokens = prompt_tokens
        """Tokens to compute before the next token comes out."""
        self.computed = 0
        """Of those, how many are done; meaningful only while prefilling."""
        self.base = 0
        """While decoding, the context before step n is base + n."""
        self.start_step = self.last_step = -1
        """Steps that emit the first token of this residence and the request's last one."""


class Requests:
    """All requests of a simulation as objects, in order of arrival. RequestColumns tells the same of columns."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self.arrival_s = [request.arrival_s for request in requests]

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, index: int) -> Request:
        return self._requests[index]

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def reject(self, index: int) -> None:
        """The request gets an error for an answer."""
        self._requests[index].rejected = True

    @property
    def last_token_s(self) -> list[float]:
        """Of each request; NaN where it did not come out."""
        return [request.last_token_s for request in self._requests]
