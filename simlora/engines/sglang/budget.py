"""How many prompt tokens an SGLang prefill may take, and the estimate of what running requests will still need.

Source: sgl-project/sglang, managers/schedule_policy.py `PrefillAdder` and managers/scheduler.py (2026).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from simlora.engines.base import KV, TOKENS
from simlora.engines.request import Request

CLIP_NEW_TOKENS = 4096
"""A request is expected to come out with at most this many tokens. Source: SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION."""
INITIAL_RATIO, FLOOR_FACTOR, DECAY_STEPS = 0.7, 0.14, 600
"""new_token_ratio at the start, its floor as a share of that, and the decode steps between the two. Source:
SGLANG_INIT_NEW_TOKEN_RATIO, SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR, SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS."""
RETRACT_STEPS = 20
"""Decode steps that a retraction plans ahead. Source: SGLANG_RETRACT_DECODE_STEPS."""


class TokenRatio:
    """new_token_ratio: the share of its remaining output that each running request is expected to need KV for.

    It falls linearly with every decode step down to its floor; a retraction sets it to what the batch was then.
    """

    __slots__ = ("_decay", "_floor", "_initial", "_start", "steps")

    def __init__(self, initial: float, floor: float, decay: float) -> None:
        """decay: per decode step."""
        self._initial = self._start = initial
        self._floor, self._decay = floor, decay
        self.steps = 0
        """Decode steps since it was set; evaluated in closed form, so that many at once are as good as one by one."""

    @classmethod
    def of(cls, conservativeness: float) -> TokenRatio:
        """The ratio of a server with this schedule_conservativeness."""
        initial = min(INITIAL_RATIO * conservativeness, 1.0)
        floor = min(initial * FLOOR_FACTOR, 1.0)
        return cls(initial, floor, (initial - floor) / DECAY_STEPS)

    @property
    def value(self) -> float:
        if not self.steps:
            return self._start
        return max(self._start - self.steps * self._decay, self._floor)

    def reset(self) -> None:
        """The server is idle."""
        self._start, self.steps = self._initial, 0

    def retracted(self, kept: Iterable[tuple[int, int]]) -> None:
        """kept: (generated, asked) tokens of the requests that stay. The ratio is what they came to so far and in the
        next RETRACT_STEPS steps."""
        generated = asked = 0
        for own, most in kept:
            generated += own + RETRACT_STEPS
            asked += most
        self._start, self.steps = min(generated / (asked + 1), 1.0), 0


class Share(NamedTuple):
    """What a request gets of a prefill."""

    tokens: int
    """0: nothing."""
    ends: int | None
    """Reason (engines/base.py) for which no other request is looked at in this prefill; None: go on."""


class PrefillBudget:
    """What is left of one prefill's limits. Page size 1."""

    def __init__(self, free: int, expected: float, riding: int, input_tokens: int, chunk_tokens: int) -> None:
        """free: KV tokens. expected: what running requests will need. riding: decodes that take part in the step."""
        self.later = free - riding - expected
        """KV tokens that nobody needs, now or later."""
        self.now = free - riding
        self.input = input_tokens - riding
        self.chunk = chunk_tokens - riding
        self.requests = 0

    def go_on(self, request: Request) -> int:
        """Tokens of the prompt that an earlier prefill left unfinished: it always goes first."""
        left = request.prefill_tokens - request.computed
        most = min(self.chunk, int(self.later))
        if most <= 0:  # it holds memory already, so it is carried on at any rate
            most = max(self.chunk, 1)
        tokens = min(left, most)
        self._take(tokens, request if tokens == left else None)
        return tokens

    def add(self, request: Request) -> Share:
        """The next waiting request."""
        need = request.prefill_tokens
        rest = min(request.output_tokens - request.emitted, CLIP_NEW_TOKENS)
        if need + rest + 1 >= self.later:
            return Share(0, KV)
        if (need >= self.input and self.requests) or (need > self.chunk and self.chunk <= 0):
            return Share(0, TOKENS)
        tokens = min(need, self.chunk)
        self._take(tokens, request if tokens == need else None)
        if self.later <= 0 or self.now <= 0:
            return Share(tokens, KV)
        return Share(tokens, TOKENS if self.input <= 0 or self.chunk <= 0 else None)

    def _take(self, tokens: int, complete: Request | None) -> None:
        self.requests += 1
        self.later -= tokens
        self.now -= tokens
        self.input -= tokens
        self.chunk -= tokens
        if complete is not None:
            self.later -= min(complete.output_tokens, CLIP_NEW_TOKENS)
