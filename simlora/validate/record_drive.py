"""Sends requests at their times, whatever the server does (open loop), until all have ended or the recording is cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from simlora.validate.record_client import CONNECTION, NOT_SENT, Attempt, Client, Failure
from simlora.validate.record_offers import Offers

Progress = Callable[[int, int, int], None]
"""Called with the numbers of requests sent, finished and failed."""


@dataclass
class Driven:
    """What happened, one attempt per request in the order offered. Times are seconds from the recording's start."""

    attempts: list[Attempt] = field(default_factory=list)
    end_s: float = 0.0
    interrupted: bool = False
    """By the user, before the end."""
    server_died_s: float | None = None
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
    driven, tasks = Driven(), set[asyncio.Task[None]]()
    try:
        await _send_all(client, offers, now_s, driven, tasks, cut_s, give_up_s, progress)
        left_s = None if cut_s is None else max(cut_s - now_s(), 0.0)
        if tasks:
            await asyncio.wait(tasks, timeout=left_s)
    except asyncio.CancelledError:
        driven.interrupted = True
    driven.end_s = now_s()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    driven.server_died_s = _death(driven.attempts)
    _not_sent(driven, offers)
    return driven


async def _send_all(
    client: Client,
    offers: Offers,
    now_s: Callable[[], float],
    driven: Driven,
    tasks: set[asyncio.Task[None]],
    cut_s: float | None,
    give_up_s: float,
    progress: Progress | None,
) -> None:
    finished = failed = 0

    def ended(task: asyncio.Task[None], attempt: Attempt) -> None:
        nonlocal finished, failed
        tasks.discard(task)
        finished, failed = finished + attempt.done, failed + (attempt.failure is not None)
        if progress is not None:
            progress(len(driven.attempts), finished, failed)

    for index, arrival_s in enumerate(offers.requests.arrival_s.tolist()):
        body = client.body(offers.model(index), offers.prompt(index), int(offers.requests.output_tokens[index]))
        await asyncio.sleep(max(arrival_s - now_s(), 0.0))
        if cut_s is not None and now_s() >= cut_s:
            return
        died_s = _death(driven.attempts)
        if died_s is not None and now_s() - died_s > give_up_s:
            return
        attempt = Attempt(index, now_s())
        driven.attempts.append(attempt)
        task = asyncio.create_task(client.complete(attempt, body))
        tasks.add(task)
        task.add_done_callback(lambda task, attempt=attempt: ended(task, attempt))


def _death(attempts: list[Attempt]) -> float | None:
    """When connections began to fail for good; None while the last thing heard of the server was a sign of life."""
    alive_s = max((_last_heard_s(attempt) for attempt in attempts), default=0.0)
    failed = [a.failure.at_s for a in attempts if a.failure is not None and a.failure.kind == CONNECTION]
    return min((at_s for at_s in failed if at_s >= alive_s), default=None)


def _last_heard_s(attempt: Attempt) -> float:
    failure = attempt.failure
    answered = failure is not None and failure.status is not None
    return max(attempt.stream.token_s[-1] if attempt.stream.token_s else 0.0, failure.at_s if answered else 0.0)


def _not_sent(driven: Driven, offers: Offers) -> None:
    """Requests that were never sent are part of the recording, too: at the time at which they were due."""
    for index in range(len(driven.attempts), len(offers)):
        due_s = float(offers.requests.arrival_s[index])
        attempt = Attempt(index, due_s)
        reason = "interrupted" if driven.interrupted else "the server was gone"
        attempt.failure = Failure(NOT_SENT, max(driven.end_s, 0.0), reason)
        driven.attempts.append(attempt)
