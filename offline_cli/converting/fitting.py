"""Match data with spaces: declared ones, those of an environment, and those of a policy.

* `declared`: the spaces of data, by precedence: the source's declaration, then `env`, then inference from all the data. Sources
  that declare different spaces are an error, unless `env` is given; an environment's space replaces one that a manifest marks
  as inferred. Leaves then get the spaces' dtypes (`episodes/fit.py`), so no later stage sees int32 actions in an int64 space.
* `check_fits`, `Extremes`: check data against its spaces, and infer spaces from data.
* `misfits`: whether a policy learned from data can play in an environment. Bounds are not compared.
* `ExtraOutputs`: which extra model outputs of several sources are kept. It is applied before structures are compared: outputs
  that an algorithm does not use must not prevent combining sources for training.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.episode_spaces import category_bounds
from offline_cli.errors import PROBLEM, BadEpisode, BadMapping, SpaceMismatch
from offline_cli.formats.source import THE_POLICY, THE_SOURCE, Fragments, Source, SourceInfo
from offline_cli.formats.step_rows import as_shape
from offline_cli.meanings import NO_MEANINGS, Meanings
from offline_cli.spaces import Space, describe, infer_space, leaf_spaces, same_space
from offline_cli.tally import OnError, Rejects, Tally
from offline_cli.trees import Tree, flatten, map_leaves

NUMBERS = "iuf"  # dtype kinds with a common dtype
TWO_DATASETS = "convert the two kinds of recordings into separate datasets"
OTHER_EXTRAS = f"convert or merge them with --extras common, which keeps the shared outputs; or {TWO_DATASETS}"
MOST_CHOICES: Final = 1 << 16  # maximum number of distinct values that are tracked
FEWEST_ACTIONS: Final = 64  # smaller spaces are not reported for unused values
SANE_ACTIONS: Final = 1 << 31  # maximum size of an inferred action space

_log = logging.getLogger(__name__)


# ---- a policy in an environment ----


def misfits(data: Space, environment: Space, *, inferred: bool, what: str) -> list[str]:
    """Why a policy for `data` cannot play in `environment`, as text; empty if it can.

    Bounds may differ (recorders store them in various ways); structure, shapes, types and numbers of choices must match. An
    inferred space contains only observed choices, so the environment may have more.
    """
    ours, theirs = leaf_spaces(data, what), leaf_spaces(environment, what)
    if list(ours) != list(theirs):
        return [f"{what}: the data has {describe(data)}, the environment {describe(environment)}"]
    return [
        f"{path}: the data has {describe(ours[path])}, the environment {describe(theirs[path])}"
        for path in ours
        if not _fits(ours[path], theirs[path], inferred)
    ]


def _fits(data: Space, environment: Space, inferred: bool) -> bool:
    if isinstance(data, spaces.Box) and isinstance(environment, spaces.Box):
        return data.shape == environment.shape
    if inferred and isinstance(data, spaces.Discrete) and isinstance(environment, spaces.Discrete):
        return int(data.n) <= int(environment.start) + int(environment.n)
    if inferred and isinstance(data, spaces.MultiDiscrete) and isinstance(environment, spaces.MultiDiscrete):
        return data.shape == environment.shape and bool(np.all(data.nvec <= environment.start + environment.nvec))
    counted = isinstance(environment, spaces.Box) and isinstance(data, spaces.Discrete | spaces.MultiDiscrete)
    if inferred and (counted or isinstance(environment, spaces.MultiBinary)):
        return data.shape == environment.shape  # integers were inferred as Discrete
    if isinstance(data, spaces.Discrete) and isinstance(environment, spaces.Discrete):
        return bool((data.n, data.start) == (environment.n, environment.start))
    return bool(data == environment)


# ---- spaces of data ----


@dataclass(slots=True)
class Extremes:
    """Minimum, maximum and dtype of each leaf over many batches, for space inference."""

    extra_dtypes: dict[str, np.dtype[Any]] = field(default_factory=dict)  # of extra model outputs, by dotted path of the leaf
    choices: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Distinct values (K,) of obs and actions that are single integers; no longer updated beyond MOST_CHOICES."""
    _obs: list[Tree] = field(default_factory=list)
    _actions: list[Tree] = field(default_factory=list)

    def see(self, batch: EpisodeBatch) -> None:
        """Add a batch."""
        if not batch.num_steps:
            return
        for name, tree, seen in ((Columns.OBS, batch.obs, self._obs), (Columns.ACTIONS, batch.actions, self._actions)):
            seen.append(map_leaves(_extremes, tree))
            if isinstance(tree, np.ndarray) and tree.shape[1:] in ((), (1,)) and tree.dtype.kind in "iu":
                known = self.choices.setdefault(name, tree[:0])
                if len(known) <= MOST_CHOICES:
                    self.choices[name] = np.union1d(known, tree[~np.isin(tree, known)])  # mostly none are new
        self.see_extra(batch)

    def see_extra(self, batch: EpisodeBatch) -> None:
        """Add only the dtypes of extra model outputs; different numeric dtypes are widened to a common one."""
        for path, dtype in extra_dtypes(batch).items():
            known = self.extra_dtypes.get(path, dtype)
            both_numbers = known.kind in NUMBERS and dtype.kind in NUMBERS
            self.extra_dtypes[path] = np.result_type(known, dtype) if both_numbers else known

    def spaces(self) -> tuple[Space, Space]:
        """Infer observation and action space: integers become Discrete, integer vectors MultiDiscrete only in actions."""
        obs, actions = (map_leaves(lambda *parts: np.concatenate(parts), *seen) for seen in (self._obs, self._actions))
        # integer vectors of observations stay Box: pixels and counters are not categories
        return infer_space(obs, discrete=True, vectors=False), infer_space(actions, discrete=True)


def _extremes(leaf: NDArray[Any]) -> NDArray[Any]:
    if leaf.dtype.kind not in "iu":
        return leaf[:1].copy()  # a view would keep the whole leaf alive
    return np.stack([leaf.min(axis=0), leaf.max(axis=0)])


def unused_choices(space: Space, choices: NDArray[Any] | None, sources: Sequence[SourceInfo], ours: str) -> int:
    """The number of unused values of a table's inferred space; 0 unless at least three of four are unused, as in ids.

    `choices`: (K,) values that occur; `ours`: obs or actions. Raises BadMapping for more actions than a policy can output.
    """
    said, where = next(((source.columns, source.location) for source in sources if source.columns is not None), (None, ""))
    if said is None or choices is None or not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return 0
    count = int(space.n if isinstance(space, spaces.Discrete) else space.nvec.max())
    if count < FEWEST_ACTIONS or 4 * len(choices) > count:
        return 0
    what = f"column {said.get(ours, ours)}: only {len(choices):,} of the {count:,} values from 0 to {count - 1} occur"
    fix = "number them in the mapping ([categories]), or declare their space ([spaces])"
    if count > SANE_ACTIONS and ours == Columns.ACTIONS:
        raise BadMapping(what, where=where, fix=fix)
    _log.warning("note: %s; if they are ids, %s", what, fix)
    return 0 if len(choices) > MOST_CHOICES else count - len(choices)


# ---- episodes of one dataset ----


def check_same_shapes(first: EpisodeBatch, other: EpisodeBatch) -> None:
    """Raise BadEpisode, naming both first episodes, if no dataset can hold both; numeric dtypes may differ."""
    if found := difference(shapes(first), shapes(other)):
        raise _two_kinds(found, first, other, TWO_DATASETS)
    check_same_extra(first, other)


def check_same_extra(first: EpisodeBatch, other: EpisodeBatch) -> None:
    """Raise BadEpisode if extra model outputs differ in names or shapes, or have no common dtype."""
    if found := difference(extra_kinds(first), extra_kinds(other)):
        raise _two_kinds(found, first, other, OTHER_EXTRAS)


def _two_kinds(what: str, first: EpisodeBatch, other: EpisodeBatch, fix: str) -> BadEpisode:
    where = f"episodes {first.ids[0]} and {other.ids[0]}"
    return BadEpisode(f"two kinds of episodes: {what}", where=where, fix=fix)


def difference(mine: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Describe the first difference between two structures; empty if there is none."""
    path = next((path for path in {**mine, **theirs} if mine.get(path) != theirs.get(path)), None)
    return "" if path is None else f"{path} is {mine.get(path, 'missing')} and {theirs.get(path, 'missing')}"


def shapes(batch: EpisodeBatch) -> dict[str, str]:
    """Shapes of observations and actions, as text, by path."""
    trees = ((Columns.OBS, batch.obs), (Columns.ACTIONS, batch.actions))
    return {path: f"of shape {leaf.shape[1:]}" for name, tree in trees for path, leaf in flatten(tree, name)}


def extra_kinds(batch: EpisodeBatch) -> dict[str, str]:
    """Kinds and shapes of extra model outputs, as text, by path; equal text means that they can share a column."""
    leaves = [(path, leaf) for name, tree in batch.extra.items() for path, leaf in flatten(tree, f"extra {name}")]
    kinds = {path: "number" if leaf.dtype.kind in NUMBERS else str(leaf.dtype) for path, leaf in leaves}
    return {path: f"{kinds[path]} of shape {leaf.shape[1:]}" for path, leaf in leaves}


def extra_dtypes(batch: EpisodeBatch) -> dict[str, np.dtype[Any]]:
    """Dtypes of the extra model outputs, by dotted leaf path."""
    return {path: leaf.dtype for name, tree in batch.extra.items() for path, leaf in flatten(tree, name)}


def in_words(tree: Tree) -> str:
    """Describe structure, dtypes and shapes of one step."""
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{key}: {in_words(part)}" for key, part in tree.items()) + "}"
    if isinstance(tree, tuple):
        return "(" + ", ".join(in_words(part) for part in tree) + ")"
    return f"{tree.dtype} of shape {tree.shape[1:]}"


# ---- converting data to its spaces ----


def as_space(tree: Tree, space: Space) -> Tree:
    """Convert `tree` to the structure of `space`; leaves with one number per step get the shape () or (1,) of their space.

    Dicts become tuples where the space is a Tuple: tables name a tuple's parts '0', '1', ...
    """
    if isinstance(space, spaces.Dict) and isinstance(tree, dict) and tree.keys() == space.spaces.keys():
        return {key: as_space(tree[key], part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple) and isinstance(tree, dict) and set(tree) == set(map(str, range(len(tree)))):
        tree = tuple(tree[str(at)] for at in range(len(tree)))
    if isinstance(space, spaces.Tuple) and isinstance(tree, tuple) and len(tree) == len(space.spaces):
        return tuple(as_space(part, sub) for part, sub in zip(tree, space.spaces, strict=True))
    if isinstance(tree, np.ndarray) and space.shape is not None:
        return as_shape(tree, space.shape)
    return tree


def check_fits(
    tree: Tree,
    space: Space,
    *,
    name: str,
    said_by: str,
    where: Callable[[int | None], str],
    meanings: Meanings = NO_MEANINGS,
) -> None:
    """Raise SpaceMismatch, with both forms, unless `tree` (leaves (N, *shape)) fits `space`.

    Box values may exceed the bounds (recorders store raw module outputs); a nonexistent category is a mismatch. `where` gets
    the row of the misfit, or None if it applies to all rows; `meanings`: names for messages.
    """
    problems = list(_problems(tree, space, name, meanings))
    if problems:
        what, row = problems[0]
        if said_by == THE_POLICY:
            fix = "use a policy for the environment that was recorded, or a recording of the policy's environment"
        else:
            other = "remove --env to infer spaces" if said_by.startswith("--env ") else "correct its declaration"
            fix = f"name the recorded environment with --env, or {other}"
        raise SpaceMismatch(
            f"{what}; {said_by} declares {describe(space)}, the data is {in_words(tree)}",
            where=where(row),
            fix=fix,
            details={"problems": [what for what, _ in problems]},
        )


def _problems(tree: Tree, space: Space, name: str, meanings: Meanings) -> Iterator[tuple[str, int | None]]:
    """Describe misfits, each with the row of the first bad value; None: it applies to all rows."""
    leaves, parts = dict(flatten(tree, name)), leaf_spaces(space, name)
    if leaves.keys() != parts.keys():
        yield f"{name} has different parts", None
        return
    for path, part in parts.items():
        leaf = leaves[path]
        if leaf.shape[1:] != tuple(part.shape or ()):
            yield f"{path} has values of shape {leaf.shape[1:]}, not {tuple(part.shape or ())}", None
        elif isinstance(part, spaces.Box):
            continue
        elif leaf.dtype.kind not in "biuf":
            yield f"{path} holds {leaf.dtype} values, not integers", None
        else:
            low, high = category_bounds(part)
            bad = (leaf < low) | (leaf > high)
            if leaf.dtype.kind == "f":
                bad |= leaf != np.floor(leaf)  # also for NaN
            if bad.any():
                row, *at = place = tuple(int(index) for index in np.unravel_index(int(np.argmax(bad)), bad.shape))
                column = meanings.column(path, at, leaf.shape[1:])
                yield f"{path} holds {leaf[place]}, which is not a category{column}", row


# ---- declared spaces ----


class Declared(NamedTuple):
    """Declared observation and action space; None: undeclared."""

    spaces: tuple[Space | None, Space | None]
    said_by: tuple[str, str]  # the origin of each declaration
    by_env: bool  # whether one comes from the environment instead of the sources


def declared(
    sources: Sequence[SourceInfo],
    first: EpisodeBatch | None,
    env: str,
    env_spaces: tuple[Space, Space] | None,
    added_to: SourceInfo | None = None,
) -> Declared:
    """The spaces declared by `sources`, their `first` episodes (None: not read), `env` (as messages name it), and the dataset
    to append to.

    The environment's space is used if there is no other declaration, or others differ. Raises SpaceMismatch.
    """
    alone = env_spaces is None and added_to is None
    certain = [one for one in sources if alone or not one.spaces_inferred]
    pairs = [(one.said_by, one.location, one.spaces) for one in (certain if added_to is None else [added_to, *certain])]
    if first is not None and not sources[0].spaces_inferred:
        pairs.append((THE_SOURCE, sources[0].location, (first.observation_space, first.action_space)))
    chosen, said_by, by_env = list[Space | None](), list[str](), False
    for part, name in enumerate(("observation", "action")):
        known = [(by, where, pair[part]) for by, where, pair in pairs if pair[part] is not None]
        unlike = next((one for one in known if not same_space(one[2], known[0][2])), None)
        if unlike is not None and env_spaces is None:
            raise two_spaces(name, known[0][1:], unlike[1:])
        if env_spaces is not None and (not known or unlike is not None or known[0][2] is env_spaces[part]):
            known, by_env = [(env, "", env_spaces[part])], True  # a reader may have got them from us
        chosen.append(known[0][2] if known else None)
        said_by.append(known[0][0] if known else THE_SOURCE)
    return Declared((chosen[0], chosen[1]), (said_by[0], said_by[1]), by_env)


def two_spaces(name: str, one: tuple[str, Space | None], other: tuple[str, Space | None]) -> SpaceMismatch:
    """The error for two sources that declare different spaces."""
    return SpaceMismatch(
        f"two {name} spaces: {describe(one[1])} and {describe(other[1])}",
        where=f"{one[0]} and {other[0]}",
        fix="name the environment with --env if it is the same, or convert the sources into separate datasets",
    )


# ---- extra model outputs of several sources ----


@dataclass(slots=True, eq=False)
class ExtraOutputs:
    """The names of kept extra model outputs; reusable for repeated readings of the same sources."""

    names: Collection[str]
    left_out: Mapping[str, str] = field(default_factory=dict)  # by name: its form in each source
    fix: str = "remove the source, or train with connector pieces that do not use this output"  # if only some sources have one
    _first: tuple[str, frozenset[str]] | None = None  # the first source, and the `names` it has

    @classmethod
    def shared(cls, sources: Sequence[Source]) -> ExtraOutputs:
        """Keep outputs that all `sources` have in the same form. Reads the first batch of each. Raises as reading does."""
        forms: dict[str, dict[str, str]] = {}  # by source: structure, dtypes and shapes by name
        for source in sources:
            batch = first_batch(source)
            extra = {} if batch is None else batch.extra
            forms[source.info.location] = {name: in_words(tree) for name, tree in extra.items()}
        names = dict.fromkeys(name for known in forms.values() for name in known)
        left_out = {
            name: ", ".join(f"{known.get(name, 'none')} in {place}" for place, known in forms.items())
            for name in names
            if len({known.get(name) for known in forms.values()}) > 1
        }
        return cls([name for name in names if name not in left_out], left_out)

    def of(self, batch: EpisodeBatch, location: str) -> EpisodeBatch:
        """Reduce `batch`, from the source `location`, to the kept outputs. Raises BadEpisode if it lacks one."""
        kept = {name: tree for name, tree in batch.extra.items() if name in self.names}
        first, known = self._first = self._first or (location, frozenset(kept))
        if location != first and known != kept.keys():
            name = min(known ^ kept.keys())
            has, lacks = (first, location) if name in known else (location, first)
            what = f"the extra model output {name!r} is used, but only some sources have it: {has} has, {lacks} does not"
            raise BadEpisode(what, where=lacks, fix=self.fix, details={PROBLEM: "mixed-structures"})
        return batch if len(kept) == len(batch.extra) else replace(batch, extra=kept)


Extras = Callable[[Sequence[Source]], ExtraOutputs | None] | None
CHOSEN: Final[Mapping[str, Extras]] = {"union": None, "common": ExtraOutputs.shared, "drop": lambda _: ExtraOutputs(())}
"""Functions that choose the outputs to keep, by the value of `--extras`; None: keep all, which must be equal in all sources."""


def first_batch(source: Source, on_error: OnError = OnError.FAIL) -> EpisodeBatch | None:
    """The first batch of a source, or None. Raises as reading does."""
    with closing(source), closing(cast(Any, source.fragments(Tally(), Rejects(on_error)))) as fragments:
        first: Fragments | None = next(fragments, None)
    return None if first is None else first.batch
