"""A page as a browser takes it apart: its elements, its texts, and the JSON that its script reads."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    """Elements as (name, attributes) in order, and the text in each kind of element."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._in = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts[-1] += data
        elif self._in != "style":
            self.text += data

    @property
    def data(self) -> Any:
        """The JSON block."""
        return json.loads(self.scripts[0])

    @property
    def policy(self) -> str:
        """The Content-Security-Policy."""
        return next(str(attrs["content"]) for tag, attrs in self.elements if tag == "meta" and "http-equiv" in attrs)

    def harmful(self) -> list[tuple[str, dict[str, str | None]]]:
        """Elements that none of our pages has: handlers, links out, pictures and frames from elsewhere."""
        return [
            (tag, attrs)
            for tag, attrs in self.elements
            if tag in ("iframe", "object", "embed", "base", "form", "marquee", "b")
            or any(name.startswith("on") for name in attrs)
            or any(
                not str(attrs[name]).startswith(("#", "data:image/")) for name in ("src", "href", "xlink:href") if name in attrs
            )
        ]
