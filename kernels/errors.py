"""The error every kernel raises for a layout it refuses."""

from __future__ import annotations


class LayoutError(ValueError):
    """A tensor's shape, dtype, device or alignment is one the kernel cannot take. The message names tensor and rule."""


def require(condition: bool, message: str) -> None:
    """Raise LayoutError(message) unless `condition` holds."""
    if not condition:
        raise LayoutError(message)
