"""What all tests share: generated examples may take their time, so that a busy machine fails nothing."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("any-load", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-load")
