"""Draws predicted against measured times as an SVG file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from ci.latency.estimate import Line

Dot = tuple[Line, str, float, float]  # a model, its predicted and its measured time
COLOURS = ("#0072b2", "#009e73", "#56b4e9", "#d55e00", "#cc79a7")
SIZE, LEFT, TOP, GAP = 360, 60, 30, 70  # pixels; one panel is square
LEAST_MS, MOST_MS = 0.05, 500.0
TICKS = (0.1, 1, 10, 100)
ACROSS, UP = "predicted from other families, ms", "measured, ms"
HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}"'
    ' font-family="sans-serif" font-size="12"><rect width="{0}" height="{1}" fill="white"/>'
)


def draw_plot(dots: Sequence[Dot]) -> str:
    """Return a picture with a panel for each precision, which has the predicted time of each dot on
    one axis and the measured time on the other. Both axes are logarithmic."""
    precisions = list(dict.fromkeys(line.precision for line, *_ in dots))
    devices = list(dict.fromkeys(line.device for line, *_ in dots))
    width = LEFT + len(precisions) * (SIZE + GAP)
    text = [HEAD.format(width, TOP + SIZE + 60 + 18 * len(devices))]
    for place, precision in enumerate(precisions):
        chosen = [dot for dot in dots if dot[0].precision == precision]
        text.append(f'<g transform="translate({LEFT + place * (SIZE + GAP)},{TOP})">')
        text += [*draw_axes(precision), *draw_dots(chosen, devices), "</g>"]
    for number, device in enumerate(devices):
        y = TOP + SIZE + 60 + 18 * number
        text.append(f'<circle cx="{LEFT}" cy="{y - 4}" r="4" fill="{COLOURS[number]}"/>')
        text.append(f'<text x="{LEFT + 10}" y="{y}">{escape(device)}</text>')
    return "\n".join([*text, "</svg>"]) + "\n"


def find_place(ms: float) -> float:
    """Return the distance from the start of an axis in pixels."""
    return SIZE * math.log(ms / LEAST_MS) / math.log(MOST_MS / LEAST_MS)


def draw_axes(precision: str) -> list[str]:
    """Return a panel's frame, its ticks, and lines for equal times and for 20 % more and less."""
    middle = SIZE / 2
    text = [
        f'<text x="{middle}" y="-10" text-anchor="middle" font-weight="bold">{precision}</text>',
        f'<rect width="{SIZE}" height="{SIZE}" fill="none" stroke="#888"/>',
        f'<text x="{middle}" y="{SIZE + 36}" text-anchor="middle">{ACROSS}</text>',
        f'<text transform="translate(-40,{middle}) rotate(-90)" text-anchor="middle">{UP}</text>',
    ]
    for ms in TICKS:
        at = find_place(ms)
        text.append(
            f'<path d="M{at:.1f},0V{SIZE}M0,{SIZE - at:.1f}H{SIZE}" stroke="#ddd"/>'
            f'<text x="{at:.1f}" y="{SIZE + 16}" text-anchor="middle">{ms:g}</text>'
            f'<text x="-6" y="{SIZE - at + 4:.1f}" text-anchor="end">{ms:g}</text>'
        )
    for share, dashes in (
        (1, ""),
        (1.2, ' stroke-dasharray="4"'),
        (1 / 1.2, ' stroke-dasharray="4"'),
    ):
        low, high = max(1.0, 1 / share), min(1.0, 1 / share)  # so that the line stays in the panel
        start, end = LEAST_MS * low, MOST_MS * high
        text.append(
            f'<path d="M{find_place(start):.1f},{SIZE - find_place(start * share):.1f}'
            f'L{find_place(end):.1f},{SIZE - find_place(end * share):.1f}" stroke="#444"{dashes}/>'
        )
    return text


def draw_dots(dots: Sequence[Dot], devices: Sequence[str]) -> list[str]:
    """Return the dots of a panel, with the model as a tooltip."""
    return [
        f'<circle cx="{find_place(predicted):.1f}" cy="{SIZE - find_place(measured):.1f}" r="3"'
        f' fill="{COLOURS[devices.index(line.device)]}" fill-opacity=".7"><title>{escape(model)}'
        f" {predicted:.3g} ms, measured {measured:.3g}</title></circle>"
        for line, model, predicted, measured in dots
    ]
