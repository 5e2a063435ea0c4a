# SPDX-License-Identifier: Apache-2.0
"""A drawing as the text of an SVG file: the few shapes that the figures need. Equal calls give equal bytes."""

from xml.sax.saxutils import escape, quoteattr

INK = "#1f2328"
PALE = "#d8dee4"
FONT = "sans-serif"  # whatever the reader has: a figure carries no font


def attribute(value):
    """One decimal is a tenth of a pixel: enough, and the same on every machine."""
    return quoteattr(f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value))


class Drawing:
    """Coordinates are pixels, from the upper left corner. title and description are what a screen reader says."""

    def __init__(self, width, height, title, description):
        self.width, self.height = width, height
        self.lines = [f"<title>{escape(title)}</title>", f"<desc>{escape(description)}</desc>"]
        self.rectangle(0, 0, width, height, "white")  # readable on a page of any colour

    def add(self, tag, content=None, **attributes):
        shown = "".join(f" {name.replace('_', '-')}={attribute(value)}" for name, value in attributes.items())
        self.lines.append(f"<{tag}{shown}/>" if content is None else f"<{tag}{shown}>{escape(content)}</{tag}>")

    def rectangle(self, x, y, width, height, fill):
        self.add("rect", x=x, y=y, width=width, height=height, fill=fill)

    def circle(self, x, y, radius, fill):
        self.add("circle", cx=x, cy=y, r=radius, fill=fill)

    def line(self, x1, y1, x2, y2, stroke=PALE, width=1, **style):
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, stroke_width=width, **style)

    def path(self, points, stroke, width=2, **style):
        shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.add("polyline", points=shown, fill="none", stroke=stroke, stroke_width=width, **style)

    def text(self, x, y, content, size=12, fill=INK, anchor="start", **style):
        self.add("text", content, x=x, y=y, font_size=size, fill=fill, text_anchor=anchor, **style)

    def render(self):
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" font-family="{FONT}" role="img">'
        )
        return "\n".join([head, *self.lines, "</svg>"]) + "\n"
