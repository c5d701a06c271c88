"""Text from outside as a terminal may show it: one line, in the order it is stored, with control characters spelled out.

Ids, names, infos and paths are what somebody else made them. A line break in one begins a line that looks like our own, an
escape sequence moves the cursor, and U+202E shows `3pm.exe` where `exe.mp3` is stored.
"""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """`text` with whatever is no sign and no space spelled out (`\\n`, `\\x1b`, `\\u202e`).

    These are controls, line breaks, marks of direction and format, halves of letters, and what Unicode has not assigned.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(letter: str) -> str:
    is_shown = letter.isprintable() or unicodedata.category(letter) == "Zs"  # spaces of any width
    return letter if is_shown else letter.encode("unicode_escape").decode("ascii")
