"""A learner pipeline over recorded episodes, for the batches of `apply` and for what `--show` and `--trace` tell of it.

Episodes come to the pipeline as `train-bc` gives them to it: Box actions in the units of networks; episodes without steps, and
extra outputs that are text, left out; the spaces of the environment where one is named. Values are not checked (NaN passes
through, and `validate` finds it), and rows that `loss_mask` marks as False stay.

Pieces get no network, so those for stateful modules do nothing. Pieces that learn see all episodes, once for each of them,
before the first batch is made, and are frozen then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
from torch import Tensor

from offline_cli.applying.learned_pieces import learn
from offline_cli.applying.learner_batches import in_learner_units, learner_spaces, stepped, with_steps
from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import Items, is_filed
from offline_cli.connectors.learner.added_columns import AddNextObservationsFromEpisodesToTrainBatch
from offline_cli.connectors.learner.returns import GeneralAdvantageEstimation, NStepReturns
from offline_cli.connectors.pipeline_spec import PipelineSpec, Setting
from offline_cli.converting.reading import EpisodeStream
from offline_cli.environments import open_environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import NoData, OfflineCliError, UnsupportedSpace
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.source import ENV_SCALE
from offline_cli.policies.policy import sampled
from offline_cli.spaces import Space, describe, space_to_json
from offline_cli.trees import flatten

__all__ = ["PipelineRun", "PipelineView", "followed", "made_up_episodes", "space_as_json"]

OF_NEXT: Final = (AddNextObservationsFromEpisodesToTrainBatch, GeneralAdvantageEstimation, NStepReturns)
"""Pieces that take next observations, or their values: they get none that nobody recorded."""
SPACES: Final = ("input_observation_space", "observation_space", "input_action_space", "action_space")
SHOWN, SHOWN_OF_ONE = 8, 16  # values of a column; where one row has more
SHOWN_LETTERS: Final = 60  # of a value that is not a number


class PipelineRun:
    """A pipeline that is built for the spaces of the episodes it gets."""

    def __init__(
        self,
        file: PipelineSpec,
        env: AskedEnvironment | None,
        stream: EpisodeStream | None,
        *,
        keep_invented: bool,
    ) -> None:
        """For the episodes of `stream`; None: of the environment alone. `keep_invented`: also the last steps whose
        next observation nobody recorded.

        Raises BadConfig for Box actions of unknown scale; SpaceMismatch, naming the piece that cannot take the spaces.
        """
        self.file = file
        self.where = ", ".join(stream.locations) if stream else f"--env {env and env.id}"  # for messages
        self.action_scale = stream.action_scale if stream else ENV_SCALE  # of the recorded actions
        self.steps_left_out = 0  # of the latest reading
        environment = None
        if env is not None:
            asked: Any = stream.environment if stream else env.among(())
            with open_environment(asked.id, asked.kwargs, asked.wrappers) as environment:
                spaces = environment.observation_space, environment.action_space  # they hold when it is closed, too
        self.spaces: tuple[Space, Space] = spaces if stream is None else learner_spaces(stream, environment)  # before it
        self.pipeline = file.build(Setting(*self.spaces))
        self._observed_ends = not keep_invented and any(isinstance(piece, OF_NEXT) for piece in self.pipeline.pieces())
        observations, actions = self.pipeline.observation_space, self.pipeline.action_space
        self.announced = {Columns.OBS: observations, Columns.NEXT_OBS: observations, Columns.ACTIONS: actions}

    def prepared(self, recorded: Iterable[EpisodeBatch]) -> Iterator[EpisodeBatch]:
        """The episodes that have a step, as a learner gets them."""
        self.steps_left_out = 0
        for batch in recorded:
            observed = batch.without_invented() if self._observed_ends else batch
            self.steps_left_out += batch.num_steps - observed.num_steps
            moving = with_steps(observed)
            if len(moving):
                yield in_learner_units(moving, self.spaces[1], self.action_scale)

    def learn(self, read: Callable[[], Iterable[EpisodeBatch]]) -> None:
        """Have the pieces learn from the prepared episodes of each `read()`. Raises what `learned_pieces.learn` raises."""
        setting = Setting(*self.spaces)
        learn(self.pipeline, lambda: self.file.build(setting), read, where=self.where)


# ---- what is shown ----


@dataclass(frozen=True, slots=True)
class PipelineView:
    """What `apply --show` and `--trace` report, as plain values.

    A column, or a leaf of a nested one by path (`obs.camera`), has `name`, `held` ("tensor" | "array" | "list" | "items", which
    are not stacked yet), `dtype` (of things that are not numbers the name of their type), `shape` of one row, `rows` (None: it
    has no axis of rows) and its `first` values.
    """

    pipeline: str  # the file
    sources: list[str]
    spaces_inferred: bool
    action_scale: str  # of the source
    episodes: list[str]  # ids of those that were followed
    steps: int
    start: list[dict[str, Any]]  # columns of the episodes before the first piece: observations, actions and rewards
    pieces: list[dict[str, Any]] = field(default_factory=list)
    """By piece: `name`; each space around it as JSON (None where it has no such form), and as text beside it; `columns` of the
    batch; and those of the `episodes`, as later pieces find them."""

    def as_dict(self) -> dict[str, Any]:
        """By the keys of `--json`."""
        return asdict(self)


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
    batch, pieces = EpisodeBatch.concat(given), dict(run.pipeline.named())
    of = run.file.where, list(sources), inferred, run.action_scale, list(batch.ids), batch.num_steps
    view = PipelineView(*of, _of_episodes(batch))
    try:
        run.learn(lambda: [batch])
        for name, made, left in stepped(run.pipeline, batch, where=run.where):
            spaces = {space: getattr(pieces[name], space) for space in SPACES}
            told: dict[str, Any] = {space: space_as_json(one) for space, one in spaces.items()}
            told |= {f"{space}_text": describe(one) for space, one in spaces.items()}
            columns = [one for column, held in made.items() for one in _columns(str(column), held)]
            view.pieces.append({"name": name, **told, "columns": columns, "episodes": _of_episodes(left)})
    except OfflineCliError as err:
        err.result = view.as_dict()
        raise
    return view


def _of_episodes(episodes: Any) -> list[dict[str, Any]]:
    """Observations, actions and rewards; of a list, those of its first episode."""
    if isinstance(episodes, EpisodeBatch):
        trees = episodes.obs, episodes.actions, episodes.rewards
    else:
        trees = episodes[0].get_observations(), episodes[0].get_actions(), episodes[0].get_rewards()
    names = Columns.OBS, Columns.ACTIONS, Columns.REWARDS
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
            yield _leaf(path, leaf if isinstance(first, Items) else np.asarray(leaf)[None], "items") | {"rows": rows}


def _leaf(path: str, leaf: Any, held: str) -> dict[str, Any]:
    array = leaf if isinstance(leaf, Tensor) else np.asarray(leaf)
    shape, dtype = list(array.shape[1:]), str(array.dtype).removeprefix("torch.")
    values = array.reshape(-1)[: min(max(SHOWN, math.prod(shape)), SHOWN_OF_ONE)].tolist()
    first = [value if isinstance(value, (bool, int, float)) else _short(value) for value in values]
    return {
        "name": path,
        "held": held,
        "dtype": dtype,
        "shape": shape,
        "rows": len(array) if array.ndim else None,
        "first": first,
    }


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
