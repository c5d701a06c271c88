"""Escape untrusted text for a terminal: one line, in stored order, with control characters spelled out.

Ids, names, infos and paths may be hostile: a line break fakes a line of our output, an escape sequence moves the cursor, and
U+202E displays `exe.mp3` as `3pm.exe`.
"""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """`text` with every non-printable character escaped (`\\n`, `\\x1b`, `\\u202e`).

    Escaped are control characters, line breaks, direction and format marks, lone surrogates, and unassigned code points.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(letter: str) -> str:
    is_shown = letter.isprintable() or unicodedata.category(letter) == "Zs"  # spaces of any width
    return letter if is_shown else letter.encode("unicode_escape").decode("ascii")
