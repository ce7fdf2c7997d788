"""Numbers as readers see them. The only place in reports that turns seconds into milliseconds."""

from __future__ import annotations

from simlora.results.summary_metric import Unit

MISSING = "–"


def number(value: float | int | None, digits: int = 3) -> str:
    """About `digits` significant digits, thousands separated, never in exponent form above 0.001."""
    if value is None:
        return MISSING
    if value == 0 or isinstance(value, int):
        return f"{value:,.0f}"
    size = abs(value)
    decimals = next((digits - 1 - power for power in range(-3, digits) if size < 10 ** (power + 1)), 0)
    return f"{value:,.{max(decimals, 0)}f}" if size >= 1e-3 else f"{value:.{digits - 1}g}"


def ms(seconds: float | None) -> str:
    """Milliseconds, without the unit."""
    return MISSING if seconds is None else number(float(seconds) * 1e3)


def seconds(value: float | None) -> str:
    """A duration with its unit: ms below a second, s below two hours, h above."""
    if value is None:
        return MISSING
    if 0 < abs(value) < 1:
        return f"{ms(value)} ms"
    return f"{number(float(value))} s" if abs(value) < 7200 else f"{number(value / 3600)} h"


def percent(fraction: float | None) -> str:
    """A fraction in per cent. What is not quite all is never rounded up to 100 %."""
    if fraction is None:
        return MISSING
    value = fraction * 100
    if 99.9 <= value < 100:
        return "> 99.9 %"
    if 0 < value < 0.1:
        return "< 0.1 %"
    return f"{value:.0f} %" if value in (0, 100) else f"{value:.1f} %"


def size(num_bytes: float | int | None) -> str:
    """Bytes with a decimal prefix."""
    if num_bytes is None:
        return MISSING
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(num_bytes) >= factor:
            return f"{number(num_bytes / factor)} {unit}"
    return f"{num_bytes:.0f} B"


def usd(value: float | None) -> str:
    """Dollars; cents, or three digits below a dollar."""
    if value is None:
        return MISSING
    if abs(value) >= 1000:
        return f"${value:,.0f}"
    return f"${value:,.2f}" if abs(value) >= 1 or value == 0 else f"${number(value)}"


def change(fraction: float | None) -> str:
    """A relative change with its sign."""
    if fraction is None:
        return MISSING
    if abs(fraction) >= 10:
        return f"× {number(fraction + 1)}"
    return f"{fraction * 100:+.1f} %" if fraction else "0 %"


_BY_UNIT = {"s": seconds, "fraction": percent, "bytes": size, "usd": usd, "usd/h": usd}


def text(value: float | None, unit: Unit) -> str:
    """A metric's value by its unit."""
    return _BY_UNIT.get(unit, number)(value)
