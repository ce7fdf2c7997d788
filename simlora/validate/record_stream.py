"""One streamed completion: when its tokens came, and how it ended. Knows the format, not the network."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

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
