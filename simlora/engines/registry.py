"""From the kind of an engine to all that is known of it, imported when it is first asked for."""

from __future__ import annotations

from functools import cache

from simlora.engines.spec import EngineSpec
from simlora.scenario.base import found
from simlora.scenario.engines import engine_config


@cache
def engine_spec(kind: str) -> EngineSpec:
    """The spec that the kind's settings name. Raises KeyError for an unknown kind."""
    spec: EngineSpec = found(engine_config(kind).spec)
    return spec
