"""What figures share: colours, and plotly's JSON documents.

These are plain dicts: plotly's Python classes take a second to load and check what is not in doubt here. Plotly reads tags and
entities in texts, so those of data are escaped.
"""

from __future__ import annotations

import base64
import html
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.printable_text import printable

COLOURS: Final = (
    "#1f83c6", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#777777", "#b8860b", "#003f8c", "#7fbf3f",
    "#a02040",
)  # fmt: skip
Json = dict[str, Any]


def colour(number: int) -> str:
    """Of dataset or run `number`."""
    return COLOURS[number % len(COLOURS)]


def label(text: str) -> str:
    """Text of data as plotly shows it, letter for letter."""
    return html.escape(printable(text), quote=False)


def legend_text(text: str) -> str:
    """Text of data as matplotlib shows it, letter for letter: neither mathematics nor hidden."""
    return text.replace("$", r"\$").lstrip("_")


def packed(values: NDArray[Any]) -> Json:
    """An array as plotly reads it, in four bytes a number."""
    numbers = np.ascontiguousarray(values, np.float32)
    shape = {} if numbers.ndim == 1 else {"shape": ", ".join(map(str, numbers.shape))}
    return {"dtype": "f4", "bdata": base64.b64encode(numbers.tobytes()).decode(), **shape}


def figure(traces: list[Json], x: str, y: str, height: int = 300, **layout: Any) -> Json:
    """A document of plotly's. A legend of more than four names would leave no room; the head of the page has them all."""
    axes = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    return {"data": traces, "layout": {"height": height, "showlegend": 1 < len(traces) < 5, **axes, **layout}}
