"""The `cluster` key: replicas and the router in front of them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import BeforeValidator, Field, SerializeAsAny

from simlora.scenario.base import Config, by_kind, found

ROUTERS = {
    "round-robin": "simlora.cluster.router:RoundRobin",
    "least-requests": "simlora.cluster.router:LeastRequests",
    "lora-affinity": "simlora.cluster.router:LoraAffinity",
    "punica": "simlora.cluster.punica:PunicaPlacement",
}
"""Name -> class: the one place where a router is registered. The class says the rest (see RouterClass), and is imported
when a scenario names it."""


class RouterConfig(Config):
    """What every router is told. This much is all for one that always sees its replicas as they are."""

    kind: str = Field(default="round-robin", description="Routing policy")

    @property
    def view_age_s(self) -> tuple[float, float]:
        """(interval between scrapes, age of a scrape on arrival) of what the router knows of its replicas."""
        return 0.0, 0.0


class ScrapingConfig(RouterConfig):
    """A router that sees each replica as it was at its last scrape."""

    scrape_s: float = Field(default=0.05, ge=0, le=3600, description="Interval between scrapes; 0: always current")
    delay_s: float = Field(default=0.0, ge=0, le=3600, description="Age of a scrape when it arrives at the router")

    @property
    def view_age_s(self) -> tuple[float, float]:
        """See RouterConfig.view_age_s."""
        return self.scrape_s, self.delay_s


class RouterClass(Protocol):
    """What a router's class says of itself. The first paragraph of its docstring is the help."""

    Options: ClassVar[type[RouterConfig]]
    """The keys of `cluster.router`."""
    engines: ClassVar[tuple[str, ...]]
    """Kinds of engines that it suits; empty: any."""
    elsewhere: ClassVar[str]
    """What other engines cannot do, for the message that refuses them."""


def router_class(kind: str) -> Any:
    """The RouterClass of that name. Raises KeyError."""
    return found(ROUTERS[kind])


def _options(kind: str) -> type[RouterConfig]:
    described: RouterClass = router_class(kind)
    return described.Options


def _given(data: Any) -> Any:
    """Without keys that are null: earlier versions wrote those of every router."""
    return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


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
    router: Annotated[
        SerializeAsAny[RouterConfig], by_kind(ROUTERS, _options, "round-robin"), BeforeValidator(_given)
    ] = Field(default=ScrapingConfig(), description="Router in front of them (shared)")
    dedicated: DedicatedConfig = Field(default=DedicatedConfig(), description="Deployments (dedicated)")
