"""How does a figure grow? Points and a fitted line in panels beside each other, as one SVG file.

Nothing is needed to see it but a browser: no script, no font, no other file. Colours follow the reader's
light or dark scheme, on a ground of their own.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

STYLE = """\
 .bg{fill:#fbfaf7}.ink{fill:#1d1d1f}.dim{fill:#5d5b57}.axis{stroke:#8a8780}.grid{stroke:#e4e1da}
 .fit{stroke:#2f6f5a;stroke-width:2}.point{fill:#2f6f5a;stroke:#fbfaf7;stroke-width:1.5}
 .limit{stroke:#b4452a;stroke-width:1.5;stroke-dasharray:6 4}.bad{fill:#a83a1f}
 @media (prefers-color-scheme: dark){.bg{fill:#16171a}.ink{fill:#ececea}.dim{fill:#a9a7a2}
 .axis{stroke:#77757a}.grid{stroke:#2b2d31}.fit{stroke:#6fc1a3}.point{fill:#6fc1a3;stroke:#16171a}
 .limit{stroke:#ec8b6d}.bad{fill:#f2957a}}"""
FONT = "ui-sans-serif, system-ui, Segoe UI, Helvetica, Arial, sans-serif"
WIDTH, HEIGHT = 460, 380
"""Of a panel."""
LEFT, RIGHT, TOP, BOTTOM = 78, 26, 72, 62
"""Between its edges and the field with the points."""


class Axis(NamedTuple):
    """A direction; `ticks` are values with what is written at them."""

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    is_logarithmic: bool = False

    def share(self, value: float) -> float:
        """Where a value lies between both ends, 0 to 1."""
        if self.is_logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


class Panel(NamedTuple):
    """One figure against another."""

    title: str
    subtitle: str
    x: Axis
    y: Axis
    points: Sequence[tuple[float, float]]
    line: Sequence[tuple[float, float]] = ()
    """The corners of a fitted line."""
    limit: tuple[float, str] | None = None
    """A height that is not to be passed, and its name."""


def logarithmic(label: str, values: Sequence[float], names: Sequence[tuple[float, str]] = ()) -> Axis:
    """An axis over whole powers of ten that holds all values, named or as they are."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    known = dict(names)
    ticks = [(10.0**power, known.get(10.0**power, f"{10.0**power:g}")) for power in range(low, high + 1)]
    if low == high:
        high, ticks = high + 1, [*ticks, (10.0 ** (high + 1), known.get(10.0 ** (high + 1), ""))]
    return Axis(label, 10.0**low, 10.0**high, ticks, is_logarithmic=True)


def svg(title: str, description: str, panels: Sequence[Panel]) -> str:
    """The panels as a file."""
    width = WIDTH * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" '
        f'height="{HEIGHT}" role="img" aria-labelledby="t d" font-family="{FONT}">',
        f'<title id="t">{html.escape(title)}</title>',
        f'<desc id="d">{html.escape(description)}</desc>',
        f"<style>\n{STYLE}\n</style>",
        f'<rect class="bg" width="{width}" height="{HEIGHT}" rx="10"/>',
    ]
    for place, panel in enumerate(panels):
        parts += [f'<g transform="translate({place * WIDTH} 0)">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        across, up = panel.x.share(x), panel.y.share(y)
        return round(LEFT + across * (right - LEFT), 1), round(bottom - up * (bottom - TOP), 1)

    parts = [
        _text(LEFT, 32, panel.title, "ink", size=17, more=' font-weight="600"'),
        _text(LEFT, 53, panel.subtitle, "dim", size=14),
    ]
    for value, name in panel.y.ticks:
        _, height = at(panel.x.low, value)
        parts.append(f'<path class="grid" d="M{LEFT} {height}H{right}"/>')
        parts.append(_text(LEFT - 8, height + 5, name, "dim", anchor="end"))
    for value, name in panel.x.ticks:
        across, _ = at(value, panel.y.low)
        parts.append(f'<path class="axis" d="M{across} {bottom}v6"/>')
        parts.append(_text(across, bottom + 22, name, "dim", anchor="middle"))
    parts.append(f'<path class="axis" fill="none" d="M{LEFT} {TOP}V{bottom}H{right}"/>')
    parts.append(_text((LEFT + right) / 2, HEIGHT - 16, panel.x.label, "ink", anchor="middle"))
    middle = (TOP + bottom) / 2
    turned = f' transform="rotate(-90 20 {middle})"'
    parts.append(_text(20, middle, panel.y.label, "ink", anchor="middle", more=turned))
    if panel.limit is not None:
        height, name = panel.limit
        _, up = at(panel.x.low, height)
        parts.append(f'<path class="limit" d="M{LEFT} {up}H{right}"/>')
        parts.append(_text(right, up - 8, name, "bad", anchor="end"))
    if panel.line:
        corners = "L".join("{} {}".format(*at(x, y)) for x, y in panel.line)
        parts.append(f'<path class="fit" fill="none" d="M{corners}"/>')
    for x, y in panel.points:
        across, up = at(x, y)
        parts.append(f'<circle class="point" cx="{across}" cy="{up}" r="5"/>')
    return parts


def _text(
    x: float, y: float, text: str, kind: str, *, size: int = 14, anchor: str = "start", more: str = ""
) -> str:
    where = f'x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {where}{more}>{html.escape(text)}</text>'
