"""Episodes of files that keep each in a group, or in datasets, of its own: as `EpisodeBatch`es of many, with one structure.

A reader makes a `Recorded` of each episode, whole or, where its datasets are large, in parts of some rows; `batches` joins
those that follow each other and have one structure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode
from offline_cli.formats.hdf5.safe import Form, Hdf5File
from offline_cli.formats.source import FileSource, Fragments, Origins
from offline_cli.formats.tables.ids import source_hash
from offline_cli.spaces import Space
from offline_cli.trees import Tree, flatten, map_leaves

__all__ = [
    "Recorded",
    "batches",
    "check_rows",
    "fragments_of_files",
    "names_of_some",
    "numbered",
    "row_parts",
    "tree_of_names",
]

TOGETHER: Final = 16 << 20  # bytes of arrays in one batch
MOST: Final = 4096  # episodes in one batch
PART: Final = 32 << 20  # bytes of rows of an episode that is read in parts


@dataclass(frozen=True, slots=True)
class Recorded:
    """One episode, or some steps of it that follow each other."""

    id: str
    number: int  # in its file, for messages
    obs: Tree  # leaves (T + 1, ...)
    actions: Tree  # leaves (T, ...)
    rewards: NDArray[np.float64]  # (T,)
    terminated: bool
    truncated: bool
    t_started: int = 0
    final_missing: bool = False
    extra: Mapping[str, Tree] = field(default_factory=dict)
    infos: Sequence[Mapping[str, Any]] | None = None  # T + 1
    custom_data: Mapping[str, Any] | None = None
    agent_id: str | None = None
    module_id: str | None = None

    @property
    def nbytes(self) -> int:
        """Of observations and actions."""
        return sum(int(leaf.nbytes) for tree in (self.obs, self.actions) for _, leaf in flatten(tree))

    @property
    def structure(self) -> Any:
        """Equal for episodes that can share a batch."""
        trees = (("obs", self.obs), ("actions", self.actions), *(("extra", self.extra[name]) for name in self.extra))
        forms = [(name, path, leaf.dtype, leaf.shape[1:]) for name, tree in trees for path, leaf in flatten(tree)]
        return forms, list(self.extra)


def fragments_of_files(source: FileSource, episodes_of: Callable[[Hdf5File, str], Iterable[Recorded]]) -> Iterator[Fragments]:
    """The episodes of a source's files, in their order. `episodes_of`: those of an open file, given how their ids begin."""
    source.done, start = 0, source_hash(source.files)
    for number, file in enumerate(source.files):
        with source.scope.part() as held:
            opened = held.enter(Hdf5File(file))
            prefix = f"{start}-" if len(source.files) == 1 else f"{start}-{number}-"
            for fragments in batches(episodes_of(opened, prefix), file.url):
                yield fragments
                source.done += fragments.batch.nbytes
    source.done = source.size or source.done


def batches(episodes: Iterable[Recorded], url: str) -> Iterator[Fragments]:
    """Batches of episodes of one structure, in their order; `url`: of their file."""
    held, nbytes, structure = list[Recorded](), 0, None
    for episode in episodes:
        other, size = episode.structure, episode.nbytes
        is_part = episode.t_started > 0 or not (episode.terminated or episode.truncated)
        if held and (is_part or other != structure or nbytes + size > TOGETHER or len(held) >= MOST):
            yield _batch(held, url)
            held, nbytes = [], 0
        if is_part:  # alone, so that episodes keep their order
            yield _batch([episode], url)
            continue
        held.append(episode)
        nbytes, structure = nbytes + size, other
    if held:
        yield _batch(held, url)


def _batch(held: Sequence[Recorded], url: str) -> Fragments:
    def joined(*parts: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate(parts)

    lengths = [len(one.rewards) for one in held]
    empty: Mapping[str, Any] = {}
    infos = None
    if any(one.infos is not None for one in held):
        infos = [info for one in held for info in (one.infos if one.infos is not None else [empty] * (len(one.rewards) + 1))]
    started = np.array([one.t_started for one in held], np.int64)
    missing = np.array([one.final_missing for one in held], np.bool_)
    has_data = any(one.custom_data for one in held)
    batch = EpisodeBatch(
        ids=tuple(one.id for one in held),
        starts=np.cumsum([0, *lengths], dtype=np.int64),
        obs=map_leaves(joined, *(one.obs for one in held)),
        actions=map_leaves(joined, *(one.actions for one in held)),
        rewards=np.concatenate([one.rewards for one in held]),
        terminated=np.array([one.terminated for one in held], np.bool_),
        truncated=np.array([one.truncated for one in held], np.bool_),
        extra={name: map_leaves(joined, *(one.extra[name] for one in held)) for name in held[0].extra},
        infos=infos,
        t_started=started if started.any() else None,
        final_missing=missing if missing.any() else None,
        agent_ids=names_of_some([one.agent_id for one in held]),
        module_ids=names_of_some([one.module_id for one in held]),
        custom_data=tuple(dict(one.custom_data or {}) for one in held) if has_data else None,
    )
    return Fragments(batch, Origins((url,), np.zeros(len(held), np.int64), np.array([one.number for one in held])))


def names_of_some(names: Sequence[str | None]) -> tuple[str | None, ...] | None:
    """None where none has one."""
    return tuple(names) if any(name is not None for name in names) else None


def row_parts(steps: int, forms: Iterable[Form]) -> Iterator[tuple[int, int]]:
    """Steps [first, stop) of the parts in which an episode of these datasets is read: one, unless it is large."""
    step = sum(np.dtype(kind).itemsize * math.prod(shape[1:]) for kind, shape in forms if shape)
    each = max(1, PART // max(1, step))
    yield from ((first, min(steps, first + each)) for first in range(0, max(steps, 1), each))


def tree_of_names(leaves: Mapping[str, NDArray[Any]], space: Space | None, only: str) -> Tree:
    """Arrays by path, `/` between keys, as a tree; in the structure of the space, where it is known.

    `only`: the key of observations without keys, in such a space.
    """
    if space is not None and not isinstance(space, (spaces.Dict, spaces.Tuple)) and list(leaves) == [only]:
        return leaves[only]
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *above, name = path.split("/")
        inner = tree
        for key in above:
            inner = inner.setdefault(key, {})
        inner[name] = leaf
    return _in_structure(tree, space)


def _in_structure(tree: Tree, space: Space | None) -> Tree:
    if isinstance(space, spaces.Tuple) and isinstance(tree, dict) and list(map(str, range(len(space.spaces)))) == sorted(tree):
        return tuple(_in_structure(tree[str(i)], part) for i, part in enumerate(space.spaces))
    if isinstance(space, spaces.Dict) and isinstance(tree, dict) and tree.keys() == space.spaces.keys():
        return {key: _in_structure(tree[key], part) for key, part in space.spaces.items()}
    return tree


def check_rows(forms: Mapping[str, Form], rows: int, where: str) -> None:
    """Raise BadEpisode, naming it, for a dataset that has not so many rows."""
    for name, (_, shape) in forms.items():
        if not shape or shape[0] != rows:
            what = f"{name} has {f'{shape[0]} rows' if shape else 'no rows'}, {rows} are wanted"
            raise BadEpisode(what, where=where, fix="write the episode again, or leave it out with --on-error skip")


def numbered(names: Iterable[str], prefix: str) -> list[str]:
    """Those of the names that are `prefix` and a number, by that number."""
    found = [(int(name[len(prefix) :]), name) for name in names if _is_numbered(name, prefix)]
    return [name for _, name in sorted(found)]


def _is_numbered(name: str, prefix: str) -> bool:
    rest = name[len(prefix) :]
    return name.startswith(prefix) and rest.isascii() and rest.isdigit() and len(rest) < 18
