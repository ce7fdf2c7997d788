"""The `cluster` key: replicas and the router in front of them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simlora.scenario.base import Config


class RouterConfig(Config):
    """How requests are spread over the replicas. A router sees each replica as it was at its last scrape."""

    kind: Literal["round-robin", "least-requests", "lora-affinity"] = Field(
        default="round-robin", description="Routing policy"
    )
    scrape_s: float = Field(default=0.05, ge=0, le=3600, description="Interval between scrapes; 0: always current")
    delay_s: float = Field(default=0.0, ge=0, le=3600, description="Age of a scrape when it arrives at the router")


class ClusterConfig(Config):
    """Equal replicas of the engine."""

    replicas: int = Field(default=1, ge=1, le=10_000, description="Number of replicas")
    router: RouterConfig = Field(default=RouterConfig(), description="Router in front of them")
