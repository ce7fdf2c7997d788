"""The `cluster` key: replicas and the router in front of them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simlora.scenario.base import Config


class RouterConfig(Config):
    """How requests are spread over the replicas. A router sees each replica as it was at its last scrape."""

    kind: Literal["round-robin", "least-requests", "lora-affinity", "punica"] = Field(
        default="round-robin",
        description="Routing policy. punica: that engine's own scheduler, which fills the busiest GPU that has room",
    )
    scrape_s: float = Field(
        default=0.05, ge=0, le=3600, description="Interval between scrapes; 0: always current, as it is for punica"
    )
    delay_s: float = Field(default=0.0, ge=0, le=3600, description="Age of a scrape when it arrives at the router")
    consolidate_s: float | None = Field(
        default=None, gt=0, le=3600, description="punica: interval at which the least busy GPU is emptied; null: never"
    )

    @property
    def view_age_s(self) -> tuple[float, float]:
        """(interval, delay) of what the router knows. Punica's scheduler places every request itself, so it knows."""
        return (0.0, 0.0) if self.kind == "punica" else (self.scrape_s, self.delay_s)


class DedicatedConfig(Config):
    """One deployment per tenant."""

    scale_to_zero_s: float | None = Field(
        default=None, ge=0, description="Idle time after which a deployment gives its GPUs back; null: never"
    )
    cold_start_s: float | None = Field(
        default=None, ge=0, description="From asking for GPUs to serving; null: the calibrated engine start"
    )


class ClusterConfig(Config):
    """Equal replicas of the engine, or one deployment per tenant."""

    topology: Literal["shared", "dedicated"] = Field(
        default="shared",
        description="shared: replicas that all serve every adapter. dedicated: for each adapter a deployment of its "
        "own, the adapter merged into its weights and LoRA off",
    )
    replicas: int = Field(default=1, ge=1, le=10_000, description="Number of replicas (shared)")
    router: RouterConfig = Field(default=RouterConfig(), description="Router in front of them (shared)")
    dedicated: DedicatedConfig = Field(default=DedicatedConfig(), description="Deployments (dedicated)")
