"""Shows the layers of a red case: in a terminal as one line of blocks, on a page as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ci.report.schema import LayerFigures
from ci.report.text import count, show_decibels

BLOCKS = "▁▂▃▄▅▆▇█"
MOST_BLOCKS = 60  # a line of a terminal has 80 columns
FULL_DB = 60.0  # of a bar, if no layer is predicted to have more
CHART_HEIGHT = 100


@dataclass(frozen=True)
class LayerBar:
    """A layer as a bar, in percent of the chart: its left edge and width, the height of what was
    measured, and that of the prediction, None if it is unknown. ``tone`` is a CSS class."""

    start: float
    width: float
    height: float
    predicted: float | None
    tone: str
    hint: str
    in_part: bool


@dataclass(frozen=True)
class LayerChart:
    """The layers of a program, in order, on one scale in dB."""

    layers: Sequence[LayerFigures]

    @cached_property
    def top_db(self) -> float:
        """The end of the scale."""
        predictions = [layer.predicted_db for layer in self.layers if layer.predicted_db]
        return max([FULL_DB, *predictions])

    @cached_property
    def first(self) -> LayerFigures | None:
        """The first wrong layer, or None if it is unknown."""
        return next((layer for layer in self.layers if layer.is_first), None)

    @cached_property
    def bars(self) -> list[LayerBar]:
        """The bars, from left to right. From the first wrong layer on, they have another tone."""
        width, bars, tone = 100 / max(len(self.layers), 1), [], "value"
        for index, layer in enumerate(self.layers):
            tone = "bad" if layer.is_first else tone
            predicted_db = layer.predicted_db
            bars.append(
                LayerBar(
                    start=round(index * width, 3),
                    # A gap would make 300 bars on a phone invisible.
                    width=round(width * (0.8 if len(self.layers) <= MOST_BLOCKS else 1), 3),
                    height=self.place(layer.sqnr_db),
                    predicted=None if predicted_db is None else self.place(predicted_db),
                    tone=tone,
                    hint=describe_layer(layer),
                    in_part=layer.in_part,
                )
            )
        return bars

    def place(self, decibels: float | None) -> float:
        """Return a height in percent; that of what is below 0 dB or unknown is 1, to be seen."""
        share = (decibels or 0.0) / self.top_db
        return round(max(min(share, 1.0) * CHART_HEIGHT, 1.0), 1)

    @property
    def caption(self) -> str:
        """What the chart shows, in a sentence."""
        text = count(len(self.layers), "layer")
        if self.first:
            text += f"; the first wrong one is {describe_layer(self.first)}"
        part = [layer.label for layer in self.layers if layer.in_part]
        return f"{text}; the smallest part that is wrong by itself is marked" if part else text


def describe_layer(layer: LayerFigures) -> str:
    """Return a layer with its figures, such as ``add [net.py:3]: 12.0 dB, 60.1 dB predicted``."""
    predicted = layer.predicted_db
    expected = "" if predicted is None else f", {show_decibels(predicted)} dB predicted"
    return f"{layer.label}: {show_decibels(layer.sqnr_db)} dB{expected}"


def show_blocks(layers: Sequence[LayerFigures]) -> str:
    """Return the layers as one line of blocks: the higher, the more of the predicted SQNR is
    reached. The first wrong one is between brackets. Of more than MOST_BLOCKS layers, each block
    is the worst of several."""
    stride = -(-len(layers) // MOST_BLOCKS)
    blocks = []
    for start in range(0, len(layers), max(stride, 1)):
        group = layers[start : start + stride]
        block = BLOCKS[min(map(find_height, group))]
        blocks.append(f"[{block}]" if any(layer.is_first for layer in group) else block)
    return "".join(blocks)


def find_height(layer: LayerFigures) -> int:
    """Return the index of a layer's block."""
    if layer.sqnr_db is None:
        return 0
    expected_db = layer.predicted_db or FULL_DB
    share = layer.sqnr_db / expected_db if expected_db > 0 else 1.0
    return round(max(0.0, min(share, 1.0)) * (len(BLOCKS) - 1))
