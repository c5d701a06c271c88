"""What the numbers of a dataset mean, where a source says so: names of elements, texts of categories, units.

Two vectors of one shape may hold different quantities, and two `Discrete(3)` different choices: spaces do not show it. So
meanings are compared wherever episodes of two sources meet, and a dataset keeps them in its manifest.
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
    "convert one of them again, with its columns in the order of the other; where they mean the same, say so under [names] and"
    " [units] of its mapping, or in Python: write_dataset(..., meanings=...)"
)
Text = Annotated[str, MinLen(1)]


@dataclass(frozen=True, slots=True)
class Element:
    """What is known of one number of a value; None: nothing."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    name: Text | None = None
    categories: Annotated[tuple[str, ...], MinLen(1)] | None = None  # texts of the choices, numbered from 0
    unit: Text | None = None

    def as_json(self) -> dict[str, Any]:
        """What is known, as plain values."""
        known = {"name": self.name, "categories": self.categories and list(self.categories), "unit": self.unit}
        return {kind: value for kind, value in known.items() if value is not None}


KINDS: Final = tuple(one.name for one in fields(Element))


@dataclass(frozen=True, slots=True)
class Meanings:
    """Elements by column, a dotted path (`obs`, `obs.arm`, `actions`, `rewards`; `t`: its unit is the time of a step).

    A column has an element for each number of its values, in C order; or a single one, for a value as a whole.
    """

    by_path: Mapping[str, tuple[Element, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Mapping[str, Any], where: str) -> Meanings:
        """From the form of `as_json` (schemas/meanings.v1.json). Raises BadConfig, naming all mistakes."""
        from pydantic import ValidationError

        try:
            return cls(_form().validate_python(document)) if document != {} else NO_MEANINGS
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, one['loc'])) or 'meanings'}: {one['msg']}" for one in error.errors()]
            fix = 'such as {"obs": [{"name": "speed", "unit": "m/s"}]} (docs/reference/on-disk-format.md)'
            raise BadConfig.of(wrong, where=where, fix=fix) from error

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {path: [one.as_json() for one in elements] for path, elements in self.by_path.items()}

    def named(self, path: str, at: Sequence[int], shape: Sequence[int]) -> str:
        """The element at index `at` of a column whose values have `shape`: its name, else `obs[1]`."""
        known = self.by_path.get(path, ())
        name = known[at[0]].name if len(at) == 1 and tuple(shape) == (len(known),) else None
        return name or (f"{path}[{', '.join(map(str, at))}]" if at else path)

    def column(self, path: str, at: Sequence[int], shape: Sequence[int]) -> str:
        """`, column joint_a`: of an element at a path in words, `observations.arm`; empty where it has no name."""
        ours = re.sub(r"^observations\b", Columns.OBS, path)
        name = self.named(ours, at, shape)
        return "" if not at or name.startswith(f"{ours}[") else f", column {name}"

    def difference(self, other: Meanings) -> tuple[str, int, str, str] | None:
        """The first thing that both say, and differently: column, number of the element, and both in words."""
        for path, ours in self.by_path.items():
            theirs = other.by_path.get(path, ())
            for index, (mine, its) in enumerate(zip(ours, theirs, strict=True) if len(ours) == len(theirs) else ()):
                for kind in KINDS:
                    said = getattr(mine, kind), getattr(its, kind)
                    if None not in said and said[0] != said[1]:
                        return path, index, *_in_words(kind, *said)
        return None

    def of_columns(self, *columns: str) -> Meanings:
        """Those of these columns, and of parts of them."""
        return Meanings({path: one for path, one in self.by_path.items() if path.partition(".")[0] in columns})

    def with_missing(self, other: Meanings) -> Meanings:
        """This one, with what only `other` says; where one says a column as a whole and the other its elements, the latter."""
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
    """Two different names or units; of categories the first that differ."""
    if kind == "categories":
        pairs = zip_longest(one, other, fillvalue="(none)")
        at, (one, other) = next((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])
        kind = f"category {at}"
    return f"{kind} {one}", f"{kind} {other}"


def joined(said: Sequence[tuple[str, Meanings]], columns: Collection[str] | None = None) -> tuple[Meanings, int]:
    """What sources say together, each with its place; and how many columns of a source take what only others say.

    `columns`: those that the episodes have; None: all. Raises BadConfig, naming both places and the first difference.
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
