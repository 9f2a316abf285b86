"""A curve as text and as a picture. Pure."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 480, 96
LEFT, TOP = 8, 18
MOST_SERIES = 6
Points = Sequence[tuple[float, float]]


def text(series: Mapping[str, Points]) -> str:
    """The last values."""
    lasts = {name: points[-1] for name, points in series.items() if points}
    if not lasts:
        return ""
    step = max(step for step, _ in lasts.values())
    return f"step {step:,.0f}: " + ", ".join(f"{n} {v:.5g}" for n, (_, v) in lasts.items())


def draw(series: Mapping[str, Points]) -> str:
    """An SVG: a row for each series, with its last value, its range and its steps."""
    shown = dict(list(series.items())[:MOST_SERIES])
    rows = [_row(n * HEIGHT, name, points) for n, (name, points) in enumerate(shown.items())]
    height = HEIGHT * len(rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11" '
        f'fill="currentColor" role="img">{"".join(rows)}</svg>'
    )


def _row(y: int, name: str, points: Points) -> str:
    finite = [(step, value) for step, value in points if math.isfinite(value)]
    last = f"{points[-1][1]:.5g}" if points else ""
    head = f'<text x="{LEFT}" y="{y + 12}">{html.escape(name)} {last}</text>'
    if not finite:
        return head
    first, end = finite[0][0], finite[-1][0]
    low, high = min(v for _, v in finite), max(v for _, v in finite)
    width, height = WIDTH - 2 * LEFT, HEIGHT - 2 * TOP

    def place(step: float, value: float) -> str:
        across = (step - first) / (end - first or 1)
        up = (value - low) / (high - low or 1)
        return f"{LEFT + across * width:.1f},{y + TOP + (1 - up) * height:.1f}"

    line = " ".join(place(*point) for point in finite)
    feet = y + HEIGHT - 4
    return (
        f'{head}<text x="{WIDTH - LEFT}" y="{y + 12}" text-anchor="end" opacity=".7">'
        f"{low:.5g} to {high:.5g}</text>"
        f'<polyline points="{line}" fill="none" stroke="#1f77b4" stroke-width="1.5"/>'
        f'<text x="{LEFT}" y="{feet}" opacity=".7">{first:,.0f}</text>'
        f'<text x="{WIDTH - LEFT}" y="{feet}" text-anchor="end" opacity=".7">{end:,.0f}</text>'
    )
