"""The life of one request inside an engine. Plain state: the engine that owns it changes it."""

from __future__ import annotations

from fractions import Fraction

NAN = float("nan")
Key = int | Fraction
"""Place in a waiting queue (engines/vllm/waiting.py)."""


class Request:
    """One request and what has happened to it. Times are seconds, NaN until they happen.

    prompt_tokens and output_tokens are what was asked. emitted counts the tokens that came out in earlier residences:
    after a preemption the context to compute again is prompt_tokens + emitted.
    """

    __slots__ = (
        "adapter", "admitted_s", "arrival_s", "base", "cached_tokens", "computed", "emitted", "first_run",
        "first_token_s", "granules", "hits", "index", "interrupted", "key", "last_run", "last_step", "last_token_s",
        "load_s", "load_tier", "output_tokens", "preempted_at_s", "preemptions", "prefill_tokens", "prefix",
        "prompt_tokens", "queued_s", "rank", "recomputed_tokens", "rejected", "replica", "routed_s", "shared_blocks",
        "start_step",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        arrival_s: float,
        adapter: int,
        rank: int,
        prompt_tokens: int,
        output_tokens: int,
        prefix: tuple[int, ...] | None = None,
    ) -> None:
        self.index, self.arrival_s, self.adapter, self.rank = index, arrival_s, adapter, rank
        self.prompt_tokens, self.output_tokens, self.prefix = prompt_tokens, output_tokens, prefix
        self.replica = -1
        self.rejected = False
        self.routed_s = self.admitted_s = self.first_token_s = self.last_token_s = self.preempted_at_s = NAN
        self.queued_s = NAN
        """When it came to the replica that it is on; routed_s is when it came to its first."""
        self.preemptions = self.recomputed_tokens = self.cached_tokens = self.emitted = 0
        self.load_tier, self.load_s = 0, 0.0
        self.first_run = self.last_run = -1
        self.interrupted: tuple[float, ...] = ()
        self.key: Key = 0
        self.prefill_tokens = prompt_tokens
        """Tokens to compute before the next token comes out."""
        self.computed = 0
        """Of those, how many are done; meaningful only while prefilling."""
        self.base = 0
        """While decoding, the context before step n is base + n."""
        self.start_step = self.last_step = -1
        """Steps that emit the first token of this residence and the request's last one."""
        self.shared_blocks = 0
        self.granules: tuple[int, ...] = ()
        """Prefix-cache granules it holds."""
        self.hits = 0
