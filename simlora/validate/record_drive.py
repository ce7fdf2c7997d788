"""Sends requests at their times, whatever the server does (open loop), until all have ended or the recording is cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simlora.validate.record_client import NOT_SENT, Attempt, Client, Failure
from simlora.validate.record_offers import Offers

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
