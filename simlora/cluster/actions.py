"""What a router can ask for besides sending requests, and when it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from simlora.engines.view import View


class Migrate(NamedTuple):
    """Cancel the oldest requests of a replica between two of its steps, and send them to another one, which computes
    prompt and generated tokens again."""

    source: int
    target: int
    requests: int
    """At most so many: some may be done by then."""


Action = Migrate


@runtime_checkable
class Ticking(Protocol):
    """A router that looks at its replicas at fixed intervals."""

    tick_s: float

    def tick(self, now_s: float, views: Sequence[View]) -> Sequence[Action]:
        """What to do now."""
