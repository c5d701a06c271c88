"""Text from outside as a terminal may show it: one line, in the order it is stored, with control characters spelled out.

Ids, names, infos and paths are what somebody else made them. A line break in one begins a line that looks like our own, an
escape sequence moves the cursor, and U+202E shows `3pm.exe` where `exe.mp3` is stored.
"""

from __future__ import annotations

import unicodedata
from typing import Final

__all__ = ["printable"]

SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def printable(text: str) -> str:
    """`text` with whatever is no sign and no space spelled out (`\\n`, `\\x1b`, `\\u202e`).

    These are controls, line breaks, marks of direction and format, halves of letters, and what Unicode has not assigned.
    """
    if text.isprintable():
        return text
    return "".join(letter if _is_shown(letter) else _spelled(letter) for letter in text)


def _is_shown(letter: str) -> bool:
    return letter.isprintable() or unicodedata.category(letter) == "Zs"  # spaces of any width, which Python's repr spells out


def _spelled(letter: str) -> str:
    code = ord(letter)
    return SHORT.get(letter) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
