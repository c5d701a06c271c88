"""A mapping as far as it is guessed, and its TOML: every column once, in a role or in a comment that says why it has none."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.formats.tables.column_looks import Look
from offline_cli.formats.tables.mapping import AS_USUAL, CsvForm

__all__ = ["Draft", "array", "key", "part_names", "string", "written"]

FILLABLE: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS)  # roles
VECTOR_PARTS: Final = ("state", "numbers")  # what numbers beside images are called, the first that no image is


@dataclass(slots=True)
class Draft:
    """Roles of columns so far."""

    looks: Mapping[str, Look]
    roles: dict[str, list[str]] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)  # by role: what its values show
    times: list[str] = field(default_factory=list)  # columns that are called like a time or a counter
    extra: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    maybe: dict[str, str] = field(default_factory=dict)  # roles of columns among these that may have one

    def take(self, role: str, name: str, why: str = "") -> None:
        """Name a column for a role; `why`: what its values show."""
        self.roles.setdefault(role, []).append(name)
        if why:
            self.why[role] = why

    def one(self, role: str) -> NDArray[Any] | None:
        """(N,) the values of the column of a role."""
        found = self.roles.get(role)
        codes = self.looks[found[0]].codes if found else np.zeros(0)
        return codes if len(codes) else None

    def episodes(self) -> NDArray[Any] | None:
        """(N,) a number for each episode of each agent; None where no column of ids is known."""
        ids, agents = self.one(Columns.EPS_ID), self.one(Columns.AGENT_ID)
        if ids is None or agents is None:
            return ids
        return np.asarray(np.unique(np.stack([ids, agents]), axis=1, return_inverse=True)[1].reshape(-1), np.float64)

    def images(self, names: Collection[str]) -> list[str]:
        """Those of `names` that are images."""
        return [name for name in names if name in self.looks and self.looks[name].image]


def written(draft: Draft, categories: Mapping[str, Sequence[str]], bound: str, form: CsvForm) -> str:
    """The TOML. `bound`: of which rows `categories` has the texts; `form`: of a CSV file, as far as it has to be said."""
    scale = 'action_scale = "env"  # or "normalized": train-bc wants to know it'
    lines = [scale, "", "[columns]"]
    for ours, names in _parts(draft):
        why = f"  # {draft.why[ours]}" if ours in draft.why else ""
        lines.append(f"{key(ours)} = {_names(names)}{why}")
    for name, why in draft.left_out.items():
        role = draft.maybe.get(name)
        is_offered = role is not None and role not in draft.roles
        lines.append(f"# {role} = {string(name)}  # {why}" if is_offered else f"# left out: {string(name)}: {why}")
    if draft.extra:
        lines += ["", "[extra]", *(f"action_logp = {string(name)}" for name in draft.extra[:1])]
    if categories:
        numbered = (f"{key(name)} = {array(texts)}" for name, texts in categories.items())
        lines += ["", f"[categories]  # all texts{bound}", *numbered]
    images = draft.images([name for names in draft.roles.values() for name in names])
    if images:
        kinds = (f"{key(name)} = {string(draft.looks[name].image)}" for name in images)
        lines += ["", "[images]  # decoding needs pip install 'offline-cli[images]'", *kinds]
    lines += _gaps(draft)
    comma = next((look.comma for look in draft.looks.values() if look.comma), "")
    decimal = f'decimal = ","  # as in {string(comma)}'
    said = []
    if form.delimiter is not None:
        said.append(f"delimiter = {string(form.delimiter)}  # the file's first line is one name otherwise")
    if form.encoding != AS_USUAL.encoding:
        said.append(f"encoding = {string(form.encoding)}  # perhaps: the names are not UTF-8")
    if said:
        lines += ["", "[csv]", *said, *([decimal] if comma else ())]
    elif comma:
        lines.insert(1, f"csv.{decimal}")
    return "\n".join(lines) + "\n"


def _gaps(draft: Draft) -> Iterator[str]:
    """What to do about cells without a value, for people to choose."""
    names = [name for role in FILLABLE for name in draft.roles.get(role, ())]
    gaps = {name: draft.looks[name].gaps for name in names if name in draft.looks}
    if any(gaps.values()):
        remedy = "# An empty cell costs its episode, unless it is filled, or split_at_gaps = true stands above [columns]:"
        yield from ("", remedy, "# [fill]")
    for name in filter(gaps.get, gaps):
        look = draft.looks[name]
        others = ', or "mean"' * (look.kind == "number" and not look.is_whole)
        others += ", or a number" * (look.kind in ("number", "flag"))
        yield f'# {key(name)} = "previous"  # the value before{others}; {gaps[name]:,} of the cells seen are empty'


def part_names(draft: Draft, role: str) -> set[str]:
    """What the parts of a role are called; an empty name: it is one array."""
    return {ours.partition(".")[2] for ours, _ in _parts(draft) if ours.partition(".")[0] == role}


def _parts(draft: Draft) -> Iterator[tuple[str, list[str]]]:
    """Our names, each with theirs: observations in parts where images are among them, which are not stacked into vectors."""
    for role in _in_order(draft.roles):
        names = draft.roles[role]
        images = draft.images(names)
        if not images or len(names) == 1:
            yield role, names
            continue
        called = _names_of_parts(images)
        yield from ((f"{role}.{called[name]}", [name]) for name in images)
        numbers = [name for name in names if name not in called]
        vector = next(name for name in (*VECTOR_PARTS, "".join(called.values())) if name not in called.values())
        yield from ((f"{role}.{vector}", numbers) for _ in numbers[:1])


def _names_of_parts(images: Sequence[str]) -> dict[str, str]:
    """What images are called as parts of observations: `cam` for `next_cam` and `state.cam.bytes` too, if that is one alone."""
    last = {name: name.removesuffix(".bytes").rpartition(".")[2] for name in images}
    last = {name: short.removeprefix("next_").removeprefix("new_") or short for name, short in last.items()}
    if len(set(last.values())) == len(images):
        return last
    return {name: name.replace(".", "_") for name in images}


def _in_order(roles: Collection[str]) -> list[str]:
    first = [Columns.EPS_ID, Columns.AGENT_ID, Columns.T, Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS]
    return [name for name in first if name in roles] + sorted(set(roles) - set(first))


def _names(names: Sequence[str]) -> str:
    return string(names[0]) if len(names) == 1 else array(names)


def array(texts: Sequence[str]) -> str:
    """An array of strings."""
    return f"[{', '.join(map(string, texts))}]"


def key(name: str) -> str:
    """A key, in quotes where it needs them."""
    return name if name.isidentifier() and name.isascii() else string(name)


def string(text: str) -> str:
    """JSON's strings are TOML's too; a character that a terminal would not show is written as a TOML escape."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in quoted)


def _escape(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"
