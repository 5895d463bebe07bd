"""Durations in human-readable form."""

import re

_UNITS_S = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile("".join(rf"(?:(\d{{1,6}}){unit})?" for unit in _UNITS_S))


def parse_duration(duration: str) -> int:
    """Return the seconds of ``3h50m``, ``90m``, ``1d12h`` or ``30s``.

    Raises ValueError for anything else.
    """
    match = _DURATION.fullmatch(duration)
    total = 0
    if match:
        numbers = zip(match.groups("0"), _UNITS_S.values(), strict=True)
        total = sum(int(number) * unit_s for number, unit_s in numbers)
    if total == 0:
        raise ValueError(f"{duration[:40]!r} is no duration; write it as 3h50m, 90m, 1d12h or 30s")
    return total


def format_duration(seconds: float) -> str:
    """Return a duration in words: ``45 s``, ``12 min``, ``3 h 05 min`` or ``2 d 4 h``."""
    minutes = round(seconds / 60)
    hours = round(seconds / 3600)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if minutes < 100:
        return f"{minutes} min"
    if hours < 48:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{hours // 24} d {hours % 24} h"
