"""What `apply --show` and `--trace` tell: the spaces around each piece, and what episodes and batch hold after it.

Both follow real episodes through the pipeline, `--show` one of them. Of an environment without recordings it follows two
episodes that are made up from the spaces: values lie within these, and the same spaces give the same ones.

Columns come in every form that pieces leave them in (`connectors/batch_items.py`): `items`, not stacked yet; `array`; `tensor`;
`list`, of infos for instance. Nested columns are named by path, `obs.camera`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from torch import Tensor

from offline_cli.applying.learner_batches import playing, stepped
from offline_cli.applying.pipeline_run import PipelineRun
from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import Items, is_filed
from offline_cli.connectors.connector_v2 import Episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import NoData, OfflineCliError, UnsupportedSpace
from offline_cli.policies.policy import sampled
from offline_cli.spaces import Space, describe, space_to_json
from offline_cli.trees import flatten

__all__ = ["PipelineView", "followed", "made_up_episodes", "space_as_json"]

SPACES: Final = ("input_observation_space", "observation_space", "input_action_space", "action_space")
SHOWN: Final = 8  # values
SHOWN_OF_ONE: Final = 16  # where one row has more
SHOWN_LETTERS: Final = 60  # of a value that is not a number


@dataclass(frozen=True, slots=True)
class PipelineView:
    """What `apply --show` and `--trace` report, as plain values.

    A column, or a leaf of a nested one, has `name`, `held` ("tensor" | "array" | "list" | "items"), `dtype` (of things that are
    not numbers the name of their type), `shape` of one row, `rows` (None: it has no axis of rows) and its `first` values.
    """

    pipeline: str  # the file
    sources: tuple[str, ...]
    spaces_inferred: bool
    action_scale: str  # of the source
    episodes: tuple[str, ...]  # ids of those that were followed
    steps: int
    start: list[dict[str, Any]]  # columns of the episodes before the first piece: observations, actions and rewards
    pieces: list[dict[str, Any]] = field(default_factory=list)
    """By piece: `name`; each space around it as JSON (None where it has no such form), and as text beside it; `columns` of the
    batch; and those of the `episodes`, as later pieces find them."""

    def as_dict(self) -> dict[str, Any]:
        """By the keys of `--json`."""
        return {name: getattr(self, name) for name in self.__slots__} | {"sources": list(self.sources)}


def space_as_json(space: Space | None) -> dict[str, Any] | None:
    """`space` as JSON; None for none, and for one that no episode can have: a piece may lead to such a space."""
    try:
        return None if space is None else space_to_json(space)
    except UnsupportedSpace:
        return None


def followed(run: PipelineRun, recorded: Iterable[EpisodeBatch], *, sources: Iterable[str], inferred: bool) -> PipelineView:
    """The pipeline's view of the `recorded` episodes, as one batch, from which its pieces learn before.

    Raises NoData where none has a step, and what pieces raise; the error's `result` has the view up to that piece.
    """
    given = list(run.prepared(recorded))
    if not given:
        raise NoData("no step in the first episodes", where=run.where, fix="a larger --trace, or recordings that have steps")
    batch = EpisodeBatch.concat(given)
    start = _of_episodes(batch)
    view = PipelineView(run.file.where, tuple(sources), inferred, run.action_scale, batch.ids, batch.num_steps, start)
    pieces = dict(run.pipeline.named())
    try:
        run.learn(lambda: [batch])
        with playing(run.module) as module:
            for name, made, left in stepped(run.pipeline, batch, where=run.where, rl_module=module):
                spaces = {space: getattr(pieces[name], space) for space in SPACES}
                told: dict[str, Any] = {space: space_as_json(one) for space, one in spaces.items()}
                told |= {f"{space}_text": describe(one) for space, one in spaces.items()}
                columns = [one for column, held in made.items() for one in _columns(str(column), held)]
                view.pieces.append({"name": name, **told, "columns": columns, "episodes": _of_episodes(left)})
    except OfflineCliError as err:
        err.result = view.as_dict()
        raise
    return view


def _of_episodes(episodes: Episodes) -> list[dict[str, Any]]:
    """Observations, actions and rewards; of a list, those of its first episode."""
    if isinstance(episodes, EpisodeBatch):
        trees = (episodes.obs, episodes.actions, episodes.rewards)
    else:
        trees = (episodes[0].get_observations(), episodes[0].get_actions(), episodes[0].get_rewards())
    names = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
    return [one for name, tree in zip(names, trees, strict=True) for one in _columns(name, tree)]


def _columns(name: str, held: Any) -> Iterator[dict[str, Any]]:
    """What one column of a batch holds, leaf by leaf; items that are not stacked yet by the first of them."""
    items = [item for entries in held.values() for item in entries] if is_filed(held) else held
    if not isinstance(items, list):
        for path, leaf in flatten(held, name):
            yield _leaf(path, leaf, "tensor" if isinstance(leaf, Tensor) else "array")
    elif not items or (items is held and isinstance(items[0], (str, dict))):
        kind = type(items[0]).__name__ if items else "nothing"
        yield {"name": name, "held": "list", "dtype": kind, "shape": [], "rows": len(items), "first": [*map(_short, items[:2])]}
    else:
        first, rows = items[0], sum(item.count if isinstance(item, Items) else 1 for item in items)
        for path, leaf in flatten(first.tree if isinstance(first, Items) else first, name):
            yield _leaf(path, leaf if isinstance(first, Items) else np.asarray(leaf)[None], "items", rows)


def _leaf(path: str, leaf: Any, held: str, rows: int | None = None) -> dict[str, Any]:
    array = leaf if isinstance(leaf, Tensor) else np.asarray(leaf)
    shape, dtype = list(array.shape[1:]), str(array.dtype).removeprefix("torch.")
    values = array.reshape(-1)[: min(max(SHOWN, math.prod(shape)), SHOWN_OF_ONE)].tolist()
    first = [value if isinstance(value, (bool, int, float)) else _short(value) for value in values]
    rows = rows or (len(array) if array.ndim else None)
    return {"name": path, "held": held, "dtype": dtype, "shape": shape, "rows": rows, "first": first}


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN_LETTERS else f"{text[:SHOWN_LETTERS]}..."


def made_up_episodes(observation_space: Space, action_space: Space) -> EpisodeBatch:
    """Two episodes, of three and of two steps, for a pipeline that is looked at without recordings."""
    return EpisodeBatch(
        ids=("made-up-0", "made-up-1"),
        starts=np.array([0, 3, 5], np.int64),
        obs=sampled(observation_space, 7),
        actions=sampled(action_space, 5),
        rewards=np.ones(5),
        terminated=np.array([True, False]),
        truncated=np.array([False, True]),
        extra={},
        observation_space=observation_space,
        action_space=action_space,
    )
