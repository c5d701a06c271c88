"""Meanings of a dataset's numbers, where the source declares them: element names, category labels, units.

Vectors of one shape may hold different quantities, and two `Discrete(3)` different choices, which spaces cannot tell. So
meanings are stored in the manifest and compared wherever episodes of two sources are combined.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import zip_longest
from typing import Annotated, Any, ClassVar, Final

from annotated_types import MinLen

from offline_cli.columns import Columns
from offline_cli.errors import BadConfig

FIX: Final = (
    "convert one of them again, with its columns in the order of the other; if they mean the same, use the same [names] and"
    " [units] in its mapping, or write_dataset(..., meanings=...) in Python"
)
Text = Annotated[str, MinLen(1)]


@dataclass(frozen=True, slots=True)
class Element:
    """The meaning of one number of a value; None: unknown."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    name: Text | None = None
    categories: Annotated[tuple[str, ...], MinLen(1)] | None = None  # labels of the choices, numbered from 0
    unit: Text | None = None

    def as_json(self) -> dict[str, Any]:
        """The known fields, as plain JSON values."""
        known = {"name": self.name, "categories": self.categories and list(self.categories), "unit": self.unit}
        return {kind: value for kind, value in known.items() if value is not None}


KINDS: Final = tuple(one.name for one in fields(Element))


@dataclass(frozen=True, slots=True)
class Meanings:
    """Elements by column, a dotted path (`obs`, `obs.arm`, `actions`, `rewards`; the unit of `t` is the time of a step).

    A column has one element for each number of its values, in C order, or a single element for the whole value.
    """

    by_path: Mapping[str, tuple[Element, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Mapping[str, Any], where: str) -> Meanings:
        """Parse the JSON form (schemas/meanings.v1.json). Raises BadConfig, naming all mistakes."""
        from pydantic import ValidationError

        try:
            return cls(_form().validate_python(document)) if document != {} else NO_MEANINGS
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, one['loc'])) or 'meanings'}: {one['msg']}" for one in error.errors()]
            fix = 'such as {"obs": [{"name": "speed", "unit": "m/s"}]}'
            raise BadConfig.of(wrong, where=where, fix=fix) from error

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {path: [one.as_json() for one in elements] for path, elements in self.by_path.items()}

    def named(self, path: str, at: Sequence[int], shape: Sequence[int]) -> str:
        """The name of the element at index `at` of a column whose values have `shape`; `obs[1]` if it has none."""
        known = self.by_path.get(path, ())
        name = known[at[0]].name if len(at) == 1 and tuple(shape) == (len(known),) else None
        return name or (f"{path}[{', '.join(map(str, at))}]" if at else path)

    def column(self, path: str, at: Sequence[int], shape: Sequence[int]) -> str:
        """`, column joint_a` for the element at a path as messages spell it, `observations.arm`; empty if it has no name."""
        ours = re.sub(r"^observations\b", Columns.OBS, path)
        name = self.named(ours, at, shape)
        return "" if not at or name.startswith(f"{ours}[") else f", column {name}"

    def difference(self, other: Meanings) -> tuple[str, int, str, str] | None:
        """The first contradiction between two meanings: column, element index, and both descriptions."""
        for path, ours in self.by_path.items():
            theirs = other.by_path.get(path, ())
            for index, (mine, its) in enumerate(zip(ours, theirs, strict=True) if len(ours) == len(theirs) else ()):
                for kind in KINDS:
                    both = getattr(mine, kind), getattr(its, kind)
                    if None not in both and both[0] != both[1]:
                        return path, index, *_in_words(kind, *both)
        return None

    def of_columns(self, *columns: str) -> Meanings:
        """The meanings of these columns and of their parts."""
        return Meanings({path: one for path, one in self.by_path.items() if path.partition(".")[0] in columns})

    def with_missing(self, other: Meanings) -> Meanings:
        """These meanings, completed from `other`; elements of a column replace a single element for the whole value."""
        found = dict(self.by_path)
        for path, theirs in other.by_path.items():
            ours = found.get(path, ())
            if len(ours) == len(theirs):
                found[path] = tuple(_both(*pair) for pair in zip(ours, theirs, strict=True))
            elif len(theirs) > len(ours):
                found[path] = theirs
        return Meanings(found)


NO_MEANINGS: Final = Meanings()


@cache
def _form() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(dict[str, Annotated[tuple[Element, ...], MinLen(1)]])


def _both(one: Element, other: Element) -> Element:
    return Element(*(getattr(other if getattr(one, kind) is None else one, kind) for kind in KINDS))


def _in_words(kind: str, one: Any, other: Any) -> tuple[str, str]:
    """Describe two different names or units, or the first category that differs."""
    if kind == "categories":
        pairs = zip_longest(one, other, fillvalue="(none)")
        at, (one, other) = next((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])
        kind = f"category {at}"
    return f"{kind} {one}", f"{kind} {other}"


def joined(said: Sequence[tuple[str, Meanings]], columns: Collection[str] | None = None) -> tuple[Meanings, int]:
    """Combine the meanings of sources (place, meanings); also count the columns that take a meaning from another source.

    `columns`: the columns of the episodes; None: all. Raises BadConfig with both places at the first contradiction.
    """
    known = NO_MEANINGS
    for number, (place, one) in enumerate(said):
        for before, had in said[:number] if known.difference(one) else ():
            if found := had.difference(one):
                column, index, *both = found
                what = f"{column}[{index}] means two things: {both[0]} in {before}, {both[1]} in {place}"
                details = {"column": column, "index": index, "said": both, "sources": [before, place]}
                raise BadConfig(what, where=f"{before} and {place}", fix=FIX, details=details)
        known = known.with_missing(one)
    if columns is not None:
        known = Meanings({path: elements for path, elements in known.by_path.items() if path in columns})
    return known, sum(one.by_path.get(path) != elements for _, one in said for path, elements in known.by_path.items())
