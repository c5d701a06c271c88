"""Names of flat columns: `state.x` is the part `x` of the struct `state`, or a column of that very name; refuses nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

__all__ = ["holding", "wholes"]


def wholes(name: str) -> Iterator[str]:
    """The column itself, and the structs that it may be a part of."""
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def holding(names: Iterable[str], flat: Collection[str] | None) -> list[str]:
    """Those of `names`, in their order, that hold any of the columns `flat`; all where that is None."""
    if flat is None:
        return list(names)
    wanted = {whole for name in flat for whole in wholes(name)}
    return [name for name in names if name in wanted]
