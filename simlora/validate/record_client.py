"""Sends requests to an OpenAI-compatible server and notes when their tokens come."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

DONE = "[DONE]"
_PREFIX = "data:"


class StreamError(Exception):
    """The server sent something that is no part of a completion."""


@dataclass
class Stream:
    """Fed with the lines of a stream of server-sent events. Times are on the caller's clock."""

    token_s: list[float] = field(default_factory=list)
    """When each chunk with new tokens came."""
    tokens: int = 0
    """Tokens that came."""
    prompt_tokens: int | None = None
    """As the server counts; None: it does not say."""
    finished: bool = False
    """It gave a reason for its end."""

    def feed(self, line: str, now_s: float) -> bool:
        """Take one line; False after the last. Raises StreamError."""
        line = line.strip()
        if not line.startswith(_PREFIX):
            return True  # a blank line, a comment or another field
        text = line[len(_PREFIX) :].strip()
        if text == DONE:
            return False
        try:
            data = json.loads(text)
        except ValueError:
            raise StreamError(f"not JSON: {text[:200]}") from None
        if not isinstance(data, dict):
            raise StreamError(f"not an object: {text[:200]}")
        if data.get("error"):
            raise StreamError(_message(data["error"]))
        self._take(data, now_s)
        return True

    def _take(self, data: dict[str, Any], now_s: float) -> None:
        usage = data.get("usage") or {}
        counted = usage.get("completion_tokens")
        self.prompt_tokens = usage.get("prompt_tokens", self.prompt_tokens)
        choices = data.get("choices") or []
        if choices:
            self.finished = self.finished or choices[0].get("finish_reason") is not None
            # Without a running count, a chunk is a token, unless it only says why the stream ends.
            if counted is None and (choices[0].get("text") or choices[0].get("finish_reason") is None):
                counted = self.tokens + 1
            if counted is not None and counted > self.tokens:
                self.token_s.append(now_s)
        if counted is not None:
            self.tokens = max(self.tokens, counted)


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


CONNECTION, TIMEOUT, HTTP, STREAM, NOT_SENT = "connection", "timeout", "http", "stream", "not-sent"
"""Kinds of failures: no connection or a broken one; no end in time; a status other than 200; a stream that is no
completion or stops early; given up because the server was gone."""

_BODY_CHARACTERS = 300


@dataclass(frozen=True)
class Failure:
    """Why a request did not finish. at_s is on the recording's clock."""

    kind: str
    at_s: float
    message: str
    status: int | None = None

    @property
    def is_refusal(self) -> bool:
        """The server turned the request away before it did anything for it: unknown model, too long, too many."""
        return self.kind == HTTP and self.status is not None and 400 <= self.status < 500


@dataclass
class Attempt:
    """One request as it went. Filled while it runs, so that what came before a break is not lost."""

    index: int
    sent_s: float
    stream: Stream = field(default_factory=Stream)
    failure: Failure | None = None
    done: bool = False
    """All of it came."""


@dataclass
class Health:
    """Whether the server is there. Times are on the recording's clock."""

    lost_s: float | None = None
    """First failed connection since the last sign of life."""

    def alive(self) -> None:
        self.lost_s = None

    def lost(self, at_s: float) -> None:
        if self.lost_s is None:
            self.lost_s = at_s


class Client:
    """Speaks to one server. `now_s` is the recording's clock."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        now_s: Callable[[], float],
        timeout_s: float,
        extra_body: Mapping[str, Any],
    ) -> None:
        self._session, self._url, self._now_s = session, url.rstrip("/"), now_s
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._extra = dict(extra_body)
        self.health = Health()

    def body(self, model: str, prompt: list[int] | str, output_tokens: int) -> dict[str, Any]:
        """Asks for exactly output_tokens (ignore_eos, min_tokens: as vLLM and SGLang know them) and a running count."""
        body: dict[str, Any] = {
            "model": model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "min_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        merged = {**body, **self._extra}
        return {key: value for key, value in merged.items() if value is not None}

    async def complete(self, attempt: Attempt, body: Mapping[str, Any]) -> None:
        """Send one request; every way in which it can go wrong ends in attempt.failure."""
        try:
            await self._complete(attempt, body)
        except TimeoutError:
            self._fail(attempt, TIMEOUT, f"no end within {self._timeout.total:g} s")
        except StreamError as error:
            self._fail(attempt, STREAM, str(error))
        except (aiohttp.ClientError, OSError) as error:
            self.health.lost(self._now_s())
            self._fail(attempt, CONNECTION, f"{type(error).__name__}: {error}")
        except ValueError as error:  # a line longer than any completion's
            self._fail(attempt, STREAM, str(error))

    async def _complete(self, attempt: Attempt, body: Mapping[str, Any]) -> None:
        post = self._session.post(f"{self._url}/v1/completions", json=body, timeout=self._timeout)
        async with post as response:
            self.health.alive()
            if response.status != 200:
                text = await response.text(errors="replace")
                self._fail(attempt, HTTP, _error_message(text), response.status)
                return
            async for line in response.content:
                self.health.alive()
                if not attempt.stream.feed(line.decode("utf-8", "replace"), self._now_s()):
                    break
        stream = attempt.stream
        if stream.finished and stream.token_s:
            attempt.done = True
        else:
            self._fail(attempt, STREAM, f"ended after {stream.tokens} tokens without a reason for its end")

    def _fail(self, attempt: Attempt, kind: str, message: str, status: int | None = None) -> None:
        attempt.failure = Failure(kind, self._now_s(), message, status)


def _error_message(text: str) -> str:
    """The message of an OpenAI error object, or the body as it is."""
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    error = data.get("error", data) if isinstance(data, dict) else text
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:_BODY_CHARACTERS]
