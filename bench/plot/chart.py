# SPDX-License-Identifier: Apache-2.0
"""What the figures are made of: scales, a panel of lines, rows of ranges. Series are labelled where they end."""

import math
import typing

from svg import INK, PALE

# Okabe and Ito's colours, which people with any colour vision tell apart; each series has a dash of its own too.
BLUE, VERMILION, GREEN, GREY = "#0072b2", "#d55e00", "#00795a", "#6e7781"
TITLE_SIZE, SMALL = 15, 11
LABEL_DISTANCE = 12.5  # of the base lines of labels that would else cover each other


class Scale(typing.NamedTuple):
    """From values low..high to pixels first..last."""

    low: float
    high: float
    first: float
    last: float
    logarithmic: bool = False

    def __call__(self, value):
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.first + (value - low) / (high - low) * (self.last - self.first)


class Frame(typing.NamedTuple):
    """The rectangle inside a panel's axes."""

    left: float
    top: float
    right: float
    bottom: float


class Series(typing.NamedTuple):
    name: str
    values: dict  # x -> y
    colour: str
    dash: str = "none"


def round_up(value, step):
    return math.ceil(value / step) * step


def spread(positions, distance=LABEL_DISTANCE):
    """Positions in the same order and with the same mean, at least that far from each other."""
    order = sorted(range(len(positions)), key=positions.__getitem__)
    moved = list(positions)
    for above, below in zip(order, order[1:]):
        moved[below] = max(moved[below], moved[above] + distance)
    excess = sum(moved[i] - positions[i] for i in order) / max(len(order), 1)
    return [position - excess for position in moved]


def heading(drawing, title, subtitle):
    drawing.text(16, 26, title, TITLE_SIZE, font_weight="bold")
    drawing.text(16, 44, subtitle, SMALL, GREY)


def footer(drawing, text):
    drawing.text(16, drawing.height - 10, text, 10, GREY)


def short_length(length):
    return f"{length // 1024}k" if length >= 1024 else str(length)


def axes(drawing, frame, x, y, lengths, y_step):
    for value in range(0, int(y.high) + 1, y_step):
        drawing.line(frame.left, y(value), frame.right, y(value), INK if value == 0 else PALE)
        drawing.text(frame.left - 6, y(value) + 4, str(value), SMALL, GREY, "end")
    for length in lengths:
        drawing.text(x(length), frame.bottom + 16, short_length(length), SMALL, GREY, "middle")


def line_panel(drawing, frame, title, series, highest, y_step):
    """Lines over lengths, each with its name at its right end."""
    lengths = sorted({length for one in series for length in one.values})
    x = Scale(lengths[0], lengths[-1], frame.left + 8, frame.right - 4, logarithmic=True)
    y = Scale(0, highest, frame.bottom, frame.top)
    drawing.text(frame.left, frame.top - 10, title, 12, font_weight="bold")
    axes(drawing, frame, x, y, lengths, y_step)
    for one in series:
        points = [(x(length), y(value)) for length, value in sorted(one.values.items())]
        drawing.path(points, one.colour, stroke_dasharray=one.dash, stroke_linejoin="round")
    ends = [y(one.values[max(one.values)]) for one in series]
    for one, end in zip(series, spread(ends)):
        drawing.text(frame.right + 2, end + 4, one.name, SMALL, one.colour)


class Row(typing.NamedTuple):
    """A range from low to high, which may be one point."""

    title: str
    low: float
    high: float
    label: str
    colour: str


def range_rows(drawing, x, top, rows, height=24):
    """A row for each range: its title left of the scale, its label right of its end. Returns where the rows end."""
    for index, row in enumerate(rows):
        middle = top + (index + 0.5) * height
        drawing.text(x.first - 12, middle + 4, row.title, 12, anchor="end")
        drawing.line(x(row.low), middle, x(row.high), middle, row.colour, 4, stroke_linecap="round")
        for value in dict.fromkeys((row.low, row.high)):
            drawing.circle(x(value), middle, 4.5, row.colour)
        drawing.text(x(row.high) + 10, middle + 4, row.label, SMALL, row.colour)
    return top + len(rows) * height


def vertical_ticks(drawing, x, top, bottom, ticks):
    """ticks: value -> text."""
    for value, text in ticks.items():
        drawing.line(x(value), top, x(value), bottom)
        drawing.text(x(value), bottom + 15, text, SMALL, GREY, "middle")
