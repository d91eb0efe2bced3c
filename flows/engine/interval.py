"""A number with its interval, for people: as text, and as a small drawing against the threshold that decides the claim.

Works on the rows of the scorecard (`ours`, `interval`, `relation`, `threshold`, ...). Null stands for a number that is not
there, or for an open end of an interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

WIDTH, HEIGHT = 320, 54
LEFT, RIGHT, AXIS = 8, WIDTH - 8, 22


def number(value: float | None) -> str:
    """Four significant digits; a dash for what is not there."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.4g}"


def ends(row: Mapping[str, Any]) -> str:
    """The interval in brackets, or words where there is none."""
    if row.get("ours") is None:
        return ""
    lo, hi = _pair(row.get("interval"))
    if lo is None and hi is None:
        return "no interval: one run"
    if lo == hi:
        return "exact"
    return f"[{'−∞' if lo is None else number(lo)}, {'∞' if hi is None else number(hi)}]"


def text(row: Mapping[str, Any]) -> str:
    """The number and its interval: `0.912 [0.901, 0.923]`."""
    if row.get("ours") is None:
        return "–"
    shown = ends(row)
    return number(row["ours"]) + (f" {shown}" if shown.startswith("[") else f" ({shown})")


def drawing(row: Mapping[str, Any]) -> str:
    """The interval as inline SVG, the side of the threshold on which the claim holds shaded; empty where there is nothing to draw."""
    ours, limit = row.get("ours"), row.get("threshold")
    if not _finite(ours) or not _finite(limit):
        return ""
    assert ours is not None
    assert limit is not None
    lo, hi = _pair(row.get("interval"))
    limit_lo, limit_hi = (limit if end is None else end for end in _pair(row.get("threshold_interval")))
    known = [v for v in (ours, lo, hi, limit, limit_lo, limit_hi) if v is not None]
    start, span = _window(known)

    def x(value: float) -> float:
        return round(LEFT + (value - start) / span * (RIGHT - LEFT), 1)

    upward = row.get("relation") == ">="
    left, right = LEFT if lo is None else x(lo), RIGHT if hi is None else x(hi)
    near = x(limit_hi if upward else limit_lo)
    shade = (near, RIGHT - near) if upward else (LEFT, near - LEFT)
    said = f"{text(row)}, threshold {number(limit)}, the claim holds {'above' if upward else 'below'} it"
    parts = [
        f'<svg class="interval" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(said)}">',
        f'<rect class="holds" x="{shade[0]}" y="4" width="{max(0.0, round(shade[1], 1))}" height="34"/>',
        f'<line class="axis" x1="{LEFT}" x2="{RIGHT}" y1="{AXIS}" y2="{AXIS}"/>',
    ]
    if limit_hi > limit_lo:
        width = round(x(limit_hi) - x(limit_lo), 1)
        parts.append(f'<rect class="limit-band" x="{x(limit_lo)}" y="4" width="{width}" height="34"/>')
    parts.append(f'<line class="limit" x1="{x(limit)}" x2="{x(limit)}" y1="4" y2="38"/>')
    parts.append(f'<line class="spread{" open" if lo is None or hi is None else ""}" x1="{left}" x2="{right}" y1="{AXIS}" y2="{AXIS}"/>')
    parts += [f'<line class="cap" x1="{x(v)}" x2="{x(v)}" y1="{AXIS - 6}" y2="{AXIS + 6}"/>' for v in (lo, hi) if v is not None]
    parts.append(f'<circle class="ours" cx="{x(ours)}" cy="{AXIS}" r="4.5"/>')
    parts.append(_label(x(limit), f"{'≥' if upward else '≤'} {number(limit)}"))
    return "".join([*parts, "</svg>"])


def _label(at: float, words: str) -> str:
    anchor = "start" if at < 50 else "end" if at > WIDTH - 50 else "middle"
    return f'<text class="limit-label" x="{at}" y="{HEIGHT - 4}" text-anchor="{anchor}">{escape(words)}</text>'


def _window(values: list[float]) -> tuple[float, float]:
    """Start and length of the axis: all values, with room at both ends."""
    low, high = min(values), max(values)
    room = 0.15 * (high - low) or 0.1 * abs(low) or 1.0
    return low - room, high - low + 2 * room


def _pair(interval: Any) -> tuple[float | None, float | None]:
    if not interval:
        return None, None
    lo, hi = interval
    return (lo if _finite(lo) else None), (hi if _finite(hi) else None)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
