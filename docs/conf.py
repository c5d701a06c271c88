"""Sphinx configuration of the site: `make docs` builds it into docs/_build/html."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from make_pictures import make_pictures  # noqa: E402  found by the line above
from write_reference import write_pages  # noqa: E402

import offline_cli  # noqa: E402

project = "offline-cli"
author = "The offline-cli authors"
release = version = offline_cli.__version__
language = "en"
smartquotes = False  # two dashes are an option, not a dash
html_show_copyright = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.typer", "sphinx_copybutton"]
include_patterns = [
    *("index.md", "install.md", "tutorial*.md", "glossary.md", "changelog.md", "architecture.md", "benchmarks.md"),
    *("howto/**", "explanation/**", "reference/**"),
]
exclude_patterns = ["_build", "howto/*.txt"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

default_role = "code"  # docstrings write names in single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
toc_object_entries = False
autodoc_default_options = {"members": True, "show-inheritance": True}
python_maximum_signature_line_length = 90
maximum_signature_line_length = 90
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = "offline-cli"
html_static_path = ["_static"]
html_css_files = ["site.css"]


def plain_stars(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape stars of docstrings: a shape such as (T, *obs_shape) is no emphasis."""
    lines[:] = [re.sub(r"(?<![`*])\*(?=\w)", r"\\*", line) for line in lines]


def named_functions(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str, str | None] | None:
    """Name a function that is a default, whose repr is no Python and would cost the signature its form."""
    return (re.sub(r"<function (\w+)[^>]*>", r"\1", signature), returned) if signature else None


def setup(app: Any) -> None:
    """Write the generated pages and the pictures before Sphinx looks for them."""
    write_pages(HERE / "reference")
    make_pictures(HERE / "pictures")
    app.connect("autodoc-process-docstring", plain_stars, priority=400)
    app.connect("autodoc-process-signature", named_functions)
