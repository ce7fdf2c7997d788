"""One deployment per tenant: requests go by tenant, and a deployment may sleep while its tenant is silent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simlora.cluster.router import Decision, Hold, Request, Send
from simlora.engines.view import View

NEVER_S = float("inf")


@dataclass
class _Deployment:
    """Whether it has GPUs, and for how long it had them before."""

    since_s: float
    """When it last asked for GPUs; NEVER_S while it has none."""
    ready_s: float
    paid_s: float = 0.0
    starts: int = 0


class Dedicated:
    """Sends a request to its tenant's own deployment, after a cold start where that sleeps.

    A deployment whose last request has been out for scale_to_zero_s gives its GPUs back; it asks for them again when a
    request arrives, and serves cold_start_s later. With scale_to_zero_s of infinity all run from the start.
    """

    needs_views = True
    oblivious = False

    def __init__(
        self, deployment_of: Sequence[int], deployments: int, scale_to_zero_s: float, cold_start_s: float
    ) -> None:
        """deployment_of: request number -> deployment."""
        self._deployment_of, self._idle_limit_s, self._cold_start_s = deployment_of, scale_to_zero_s, cold_start_s
        asleep = scale_to_zero_s < NEVER_S
        since_s, ready_s = (NEVER_S, NEVER_S) if asleep else (-cold_start_s, 0.0)
        self._deployments = [_Deployment(since_s, ready_s) for _ in range(deployments)]

    def choose(self, request: Request, views: Sequence[View], now_s: float) -> Decision:
        index = self._deployment_of[request.index]
        deployment = self._deployments[index]
        if now_s < deployment.ready_s < NEVER_S:
            return Hold(deployment.ready_s)
        idle_s = views[index].idle_s
        if deployment.ready_s < NEVER_S:
            idle_s = min(idle_s, now_s - deployment.ready_s)
            if idle_s <= self._idle_limit_s:
                return Send(index)
            deployment.paid_s += now_s - idle_s + self._idle_limit_s - deployment.since_s
        deployment.since_s, deployment.ready_s = now_s, now_s + self._cold_start_s
        deployment.starts += 1
        return Hold(deployment.ready_s) if self._cold_start_s else Send(index)

    def paid_s(self, index: int, idle_s: float, end_s: float) -> float:
        """GPU time of a deployment until end_s, start-ups included; idle_s: how long it has been idle by then."""
        deployment = self._deployments[index]
        if deployment.since_s == NEVER_S:
            return deployment.paid_s
        idle_s = min(idle_s, max(end_s - deployment.ready_s, 0.0))
        asleep_s = max(idle_s - self._idle_limit_s, 0.0)
        return deployment.paid_s + end_s - asleep_s - deployment.since_s

    def starts(self, index: int) -> int:
        """Cold starts of a deployment."""
        return self._deployments[index].starts
