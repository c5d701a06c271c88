"""A learner pipeline over recorded episodes, for `apply` with `--show` and `--trace`; and how pieces with a state learn it.

Episodes come to the pipeline as `train-bc` gives them to it: Box actions in the units of networks; episodes without steps, and
extra outputs that are text, left out; the spaces of the environment where one is named. Values are not checked (NaN passes
through, and `validate` finds it), and rows that `loss_mask` marks as False stay.

Pieces get no network, so those for stateful modules do nothing.

Pieces learn in one pass each, before any batch is made, and nothing afterwards. Each piece with a state sees all episodes that
are learned from, once, behind pieces that have learned and are frozen, in a pipeline built for that pass alone. What its
`get_state` gives afterwards goes through bytes and `set_state` to the pipeline that makes the columns, which is frozen, just as
to those that play. So training, `apply`, checks, `evaluate` and exports see the same numbers. Episodes come to a pass in parts
that follow from the episodes alone: a state is the same to the bit in memory and streaming. Pieces that may need all episodes
at once get them all at once.

Pieces of other code that would give other numbers later are refused by name: one that learns although it is frozen, one whose
state cannot be set, and one without a state whose attributes change as the first episodes go through it.
"""

from __future__ import annotations

import copy
import math
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Final

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from offline_cli.applying.learner_batches import in_learner_units, in_parts, learner_spaces, playing, stepped, with_steps
from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import Items, is_filed
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2, learns, state_from_bytes, state_to_bytes
from offline_cli.connectors.env_to_module.observation_preprocessor import SingleAgentObservationPreprocessor
from offline_cli.connectors.learner.added_columns import AddNextObservationsFromEpisodesToTrainBatch
from offline_cli.connectors.learner.returns import GeneralAdvantageEstimation, NStepReturns
from offline_cli.connectors.pipeline_spec import PipelineSpec, Setting
from offline_cli.converting.reading import EpisodeStream
from offline_cli.environments import open_environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, NoData, OfflineCliError, UnsupportedSpace
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.source import ENV_SCALE
from offline_cli.policies.policy import sampled
from offline_cli.spaces import Space, describe, space_to_json
from offline_cli.trees import flatten

__all__ = [
    "PipelineRun",
    "PipelineView",
    "check_streamable",
    "followed",
    "freeze",
    "learn",
    "made_up_episodes",
    "space_as_json",
]


PLACE: Final = "learner pipeline"
DOCUMENTED: Final = 'docs/connectors.md, "A piece that learns"'
NOT_LEARNED: Final = (gym.Space, np.random.Generator, np.random.RandomState, random.Random, torch.Generator)


def learn(
    pipeline: ConnectorPipelineV2,
    build: Callable[[], ConnectorPipelineV2],
    read: Callable[[], Iterable[EpisodeBatch]],
    *,
    where: str,
    rl_module: Any = None,
) -> None:
    """Give the pieces of `pipeline` what they learn from the episodes of `read`, and freeze all. Those that are frozen already
    keep what they have.

    `build` makes such a pipeline anew. `read` gives all episodes that are learned from, each time it is called: once for each
    piece that learns, and once more where there are pieces of other code, through which the first episodes go. `where` names
    the data. Raises BadConfig for pieces whose numbers would change later, BadPiece for what a piece raises and for a state
    that cannot be saved, and what `read` raises.
    """
    pieces = list(pipeline.pieces())
    states: dict[int, Mapping[str, Any]] = {number: piece.get_state() for number, piece in enumerate(pieces) if piece.frozen}

    def anew(learning: int | None = None) -> ConnectorPipelineV2:
        """Of pieces with the states so far, in which piece number `learning` alone learns; None: none that has a state."""
        made = build()
        if any(piece is one for piece in made.pieces() for one in pieces):  # a builder may give the same objects each time
            made = copy.deepcopy(made)
        for number, piece in enumerate(made.pieces()):
            _set_state(piece, states.get(number, {}))
            if learns(piece) if learning is None else number != learning:
                freeze(piece)
        return made

    with playing(rl_module) as module:
        if not all(_is_ours(type(piece)) or number in states for number, piece in enumerate(pieces)):
            made = anew()
            before = [(piece, _content(piece)) for piece in made.pieces() if not _is_ours(type(piece))]
            first = next(iter(in_parts(read())), None)
            with suppress(Exception):  # pieces have not learned yet what later ones may need; told where columns are made
                for _ in stepped(made, first, where=where, rl_module=module) if first is not None else ():
                    pass
            for piece, content in before:
                _check_unchanged(piece, content)
        for number, piece in enumerate(pieces):
            if learns(piece) and number not in states:
                made, parts = anew(number), in_parts(read())
                if not all(_is_by_episode(type(one)) for one in pieces[: number + 1]):
                    whole = list(parts)
                    parts = iter([EpisodeBatch.concat(whole)] if whole else [])
                last = next(name for name, one in pipeline.named() if piece is one or _holds(one, piece))
                for part in parts:
                    for name, *_ in stepped(made, part, where=where, rl_module=module):
                        if name == last:
                            break
                kept = state_from_bytes(_state_bytes(list(made.pieces())[number]), where=PLACE)
                states[number] = copy.deepcopy(kept[type(piece).__name__])  # arrays of bytes cannot be written to
            _set_state(piece, states.get(number, {}))
    pipeline.freeze()


def freeze(piece: ConnectorV2) -> None:
    """Have a piece learn no more."""
    piece.freeze()
    piece.frozen = True


def check_streamable(pieces: Iterable[ConnectorV2]) -> None:
    """Raise BadConfig naming every piece that is not known to do with an episode what follows from that episode, and from what
    it has learned, alone. All of this package do; others have to say so (`ConnectorV2.per_episode`).
    """
    kinds = dict.fromkeys(type(piece) for piece in pieces if not _is_by_episode(type(piece)))
    problems = [f"{kind.__name__} may need all episodes at once, and a stream has a part of them at a time" for kind in kinds]
    if problems:
        fix = "put `per_episode = True` into the class if each episode is changed by itself, or leave out --streaming"
        raise BadConfig.of(problems, where=PLACE, fix=fix)


def _is_ours(kind: type[ConnectorV2]) -> bool:
    return kind.__module__.startswith("offline_cli.")


def _is_by_episode(kind: type[ConnectorV2]) -> bool:
    own_call = kind.__call__ is not SingleAgentObservationPreprocessor.__call__
    preprocessor = issubclass(kind, SingleAgentObservationPreprocessor) and not own_call
    return _is_ours(kind) or preprocessor or bool(vars(kind).get("per_episode", False))


def _holds(one: ConnectorV2, piece: ConnectorV2) -> bool:
    return isinstance(one, ConnectorPipelineV2) and any(piece is inner for inner in one.pieces())


def _set_state(piece: ConnectorV2, state: Mapping[str, Any]) -> None:
    """Raise BadConfig for a class that has a state and does not take it back."""
    if state and type(piece).set_state is ConnectorV2.set_state:
        what = f"{type(piece).__name__} has a state, and no set_state that takes it back"
        raise BadConfig(what, where=PLACE, fix=f"override set_state beside get_state ({DOCUMENTED})")
    if state:
        piece.set_state(state)


def _state_bytes(piece: ConnectorV2) -> bytes:
    return state_to_bytes({type(piece).__name__: piece.get_state()}, where=PLACE)


def _content(piece: ConnectorV2) -> dict[str, bytes]:
    """The state, or else each attribute that has bytes, but for random generators, spaces and cached properties."""
    if learns(piece):
        return {"its state": _state_bytes(piece)}
    held = {}
    for name, value in vars(piece).items():
        if not isinstance(value, NOT_LEARNED) and not isinstance(getattr(type(piece), name, None), cached_property):
            with suppress(Exception):  # pickling may be anybody's code
                held[name] = pickle.dumps(value)
    return held


def _check_unchanged(piece: ConnectorV2, before: Mapping[str, bytes]) -> None:
    """Raise BadConfig where a piece has learned something since, or seems to: see `_content`."""
    after = _content(piece)
    if changed := sorted(name for name in {**before, **after} if before.get(name) != after.get(name)):
        what = (
            f"{type(piece).__name__} changes {', '.join(changed)} as episodes go through it, and is frozen or has no get_state"
        )
        fix = "add get_state and set_state, and learn only while `not self.frozen`; where nothing is learned, as by a cache, "
        raise BadConfig(what, where=PLACE, fix=f"{fix}a get_state that gives {{}} ({DOCUMENTED})")


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
