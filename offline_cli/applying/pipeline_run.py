"""PipelineRun: a learner pipeline over recorded episodes, for `apply`, `--show` and `--trace`; and learning of piece states.

The pipeline gets episodes as in `train-bc`: Box actions in network units, without empty episodes and string outputs, with the
environment's spaces if one is named. Values are not checked (NaN passes through; use `validate`), and rows with `loss_mask`
False stay. Pieces get no network, so those for stateful modules do nothing.

Pieces learn in one pass each, before the first batch, and are then frozen. In its pass a piece sees all training episodes once,
after earlier pieces that are trained and frozen, in a pipeline built for that pass only. Its `get_state` is serialized and
passed to `set_state` of the frozen pipeline that makes the columns, and of those that play. So training, `apply`, checks,
`evaluate` and exports see the same numbers. Parts of a pass do not depend on how episodes are read, so states are equal bit for
bit in memory and streaming. Pieces that may need all episodes at once get them in one call.

Pieces of other code that would return other numbers later are refused by name: a piece that learns while frozen, one whose
state cannot be set, and one without state whose attributes change on the first episodes.
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
DOCUMENTED: Final = 'see "A piece of your own" in the documentation'
NOT_LEARNED: Final = (gym.Space, np.random.Generator, np.random.RandomState, random.Random, torch.Generator)


def learn(
    pipeline: ConnectorPipelineV2,
    build: Callable[[], ConnectorPipelineV2],
    read: Callable[[], Iterable[EpisodeBatch]],
    *,
    where: str,
    rl_module: Any = None,
) -> None:
    """Learn the state of each piece of `pipeline` from the episodes of `read`, then freeze all pieces. Pieces that are already
    frozen keep their state.

    `build` makes a new copy of the pipeline. `read` returns all training episodes: it is called once for each piece that
    learns, and once more to test pieces of other code on the first episodes. `where` names the data. Raises BadConfig for
    pieces whose results would change later, BadPiece if a piece raises or its state cannot be saved, and what `read` raises.
    """
    pieces = list(pipeline.pieces())
    states: dict[int, Mapping[str, Any]] = {number: piece.get_state() for number, piece in enumerate(pieces) if piece.frozen}

    def anew(learning: int | None = None) -> ConnectorPipelineV2:
        """A new pipeline with the states so far, in which only piece number `learning` learns; None: no piece does."""
        made = build()
        if any(piece is one for piece in made.pieces() for one in pieces):  # a builder may return the same objects
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
            with suppress(Exception):  # earlier pieces are not trained yet; real errors are raised when columns are made
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
                states[number] = copy.deepcopy(kept[type(piece).__name__])  # deserialized arrays are read-only
            _set_state(piece, states.get(number, {}))
    pipeline.freeze()


def freeze(piece: ConnectorV2) -> None:
    """Freeze a piece, also if its class overrides `freeze`."""
    piece.freeze()
    piece.frozen = True


def check_streamable(pieces: Iterable[ConnectorV2]) -> None:
    """Raise BadConfig, naming every piece that may need all episodes at once. The pieces of this package do not; others must
    set `ConnectorV2.per_episode`.
    """
    kinds = dict.fromkeys(type(piece) for piece in pieces if not _is_by_episode(type(piece)))
    problems = [f"{kind.__name__} may need all episodes at once, which --streaming cannot give it" for kind in kinds]
    if problems:
        fix = "set `per_episode = True` in the class if it handles episodes independently, or leave out --streaming"
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
    """Set a non-empty state. Raises BadConfig for a class without `set_state`."""
    if state and type(piece).set_state is ConnectorV2.set_state:
        what = f"{type(piece).__name__} has a state, but no set_state"
        raise BadConfig(what, where=PLACE, fix=f"override set_state too ({DOCUMENTED})")
    if state:
        piece.set_state(state)


def _state_bytes(piece: ConnectorV2) -> bytes:
    return state_to_bytes({type(piece).__name__: piece.get_state()}, where=PLACE)


def _content(piece: ConnectorV2) -> dict[str, bytes]:
    """The serialized state, or else each picklable attribute except random generators, spaces and cached properties."""
    if learns(piece):
        return {"its state": _state_bytes(piece)}
    held = {}
    for name, value in vars(piece).items():
        if not isinstance(value, NOT_LEARNED) and not isinstance(getattr(type(piece), name, None), cached_property):
            with suppress(Exception):  # pickling may run user code
                held[name] = pickle.dumps(value)
    return held


def _check_unchanged(piece: ConnectorV2, before: Mapping[str, bytes]) -> None:
    """Raise BadConfig if a piece's `_content` has changed, that is, it has learned something."""
    after = _content(piece)
    if changed := sorted(name for name in {**before, **after} if before.get(name) != after.get(name)):
        what = f"{type(piece).__name__} changes {', '.join(changed)} when called, although it is frozen or has no get_state"
        fix = "add get_state and set_state, and learn only while `not self.frozen`; memory of an episode: compute it "
        fix += f"from the episode, because environments interleave; a cache: return {{}} from get_state ({DOCUMENTED})"
        raise BadConfig(what, where=PLACE, fix=fix)


OF_NEXT: Final = (AddNextObservationsFromEpisodesToTrainBatch, GeneralAdvantageEstimation, NStepReturns)
"""Pieces that use next observations or their values: steps without a recorded next observation are left out for them."""
SPACES: Final = ("input_observation_space", "observation_space", "input_action_space", "action_space")
SHOWN, SHOWN_OF_ONE = 8, 16  # values shown per column; maximum if one row has more
SHOWN_LETTERS: Final = 60  # characters shown of a value that is not a number


class PipelineRun:
    """A learner pipeline built for the spaces of its episodes."""

    def __init__(
        self,
        file: PipelineSpec,
        env: AskedEnvironment | None,
        stream: EpisodeStream | None,
        *,
        keep_invented: bool,
    ) -> None:
        """`stream`: the episodes; None: only the environment's spaces. `keep_invented`: keep last steps without a recorded next
        observation.

        Raises BadConfig for Box actions of unknown scale; SpaceMismatch, naming the piece that cannot take the spaces.
        """
        self.file = file
        self.where = ", ".join(stream.locations) if stream else f"--env {env and env.id}"  # for messages
        self.action_scale = stream.action_scale if stream else ENV_SCALE  # of the recorded actions
        self.steps_left_out = 0  # by the last call of `prepared`
        environment = None
        if env is not None:
            asked: Any = stream.environment if stream else env.among(())
            with open_environment(asked.id, asked.kwargs, asked.wrappers) as environment:
                spaces = environment.observation_space, environment.action_space  # valid after closing
        self.spaces: tuple[Space, Space] = (
            spaces if stream is None else learner_spaces(stream, environment)
        )  # before the pipeline
        self.pipeline = file.build(Setting(*self.spaces))
        self._observed_ends = not keep_invented and any(isinstance(piece, OF_NEXT) for piece in self.pipeline.pieces())
        observations, actions = self.pipeline.observation_space, self.pipeline.action_space
        self.announced = {Columns.OBS: observations, Columns.NEXT_OBS: observations, Columns.ACTIONS: actions}

    def prepared(self, recorded: Iterable[EpisodeBatch]) -> Iterator[EpisodeBatch]:
        """The non-empty episodes, in the learner's units."""
        self.steps_left_out = 0
        for batch in recorded:
            observed = batch.without_invented() if self._observed_ends else batch
            self.steps_left_out += batch.num_steps - observed.num_steps
            moving = with_steps(observed)
            if len(moving):
                yield in_learner_units(moving, self.spaces[1], self.action_scale)

    def learn(self, read: Callable[[], Iterable[EpisodeBatch]]) -> None:
        """Learn the states of the pieces from the prepared episodes of each `read()`. Raises like `learn`."""
        setting = Setting(*self.spaces)
        learn(self.pipeline, lambda: self.file.build(setting), read, where=self.where)


# ---- --show and --trace ----


@dataclass(frozen=True, slots=True)
class PipelineView:
    """The report of `apply --show` and `--trace`, as JSON values.

    A column, or a leaf of a nested one by path (`obs.camera`), has `name`, `held` ("tensor" | "array" | "list" | "items", not
    yet stacked), `dtype` (or the type's name), `shape` of one row, `rows` (None without a row axis) and its `first` values.
    """

    pipeline: str  # the file
    sources: list[str]
    spaces_inferred: bool
    action_scale: str  # of the source
    episodes: list[str]  # ids of the followed episodes
    steps: int
    start: list[dict[str, Any]]  # observations, actions and rewards of the episodes before the first piece
    pieces: list[dict[str, Any]] = field(default_factory=list)
    """By piece: `name`; each input and output space as JSON (None if impossible) and as text; `columns` of the batch; and those
    of the `episodes` for later pieces."""

    def as_dict(self) -> dict[str, Any]:
        """The values of `--json`."""
        return asdict(self)


def space_as_json(space: Space | None) -> dict[str, Any] | None:
    """`space` as JSON; None without a space, or for an unsupported one, which a piece may produce."""
    try:
        return None if space is None else space_to_json(space)
    except UnsupportedSpace:
        return None


def followed(run: PipelineRun, recorded: Iterable[EpisodeBatch], *, sources: Iterable[str], inferred: bool) -> PipelineView:
    """Run the `recorded` episodes through the pipeline as one batch, after learning the pieces' states from them.

    Raises NoData if no episode has steps, and what pieces raise; the error's `result` has the view up to that piece.
    """
    given = list(run.prepared(recorded))
    if not given:
        fix = "use a larger --trace, or recordings with steps"
        raise NoData("the first episodes have no steps", where=run.where, fix=fix)
    batch, pieces = EpisodeBatch.concat(given), dict(run.pipeline.named())
    of = run.file.where, list(sources), inferred, run.action_scale, list(batch.ids), batch.num_steps
    view = PipelineView(*of, _of_episodes(batch))
    try:
        run.learn(lambda: [batch])
        for name, made, left in stepped(run.pipeline, batch, where=run.where):
            spaces = {space: getattr(pieces[name], space) for space in SPACES}
            shown: dict[str, Any] = {space: space_as_json(one) for space, one in spaces.items()}
            shown |= {f"{space}_text": describe(one) for space, one in spaces.items()}
            columns = [one for column, held in made.items() for one in _columns(str(column), held)]
            view.pieces.append({"name": name, **shown, "columns": columns, "episodes": _of_episodes(left)})
    except OfflineCliError as err:
        err.result = view.as_dict()
        raise
    return view


def _of_episodes(episodes: Any) -> list[dict[str, Any]]:
    """Observations, actions and rewards of a batch, or of the first episode of a list."""
    if isinstance(episodes, EpisodeBatch):
        trees = episodes.obs, episodes.actions, episodes.rewards
    else:
        trees = episodes[0].get_observations(), episodes[0].get_actions(), episodes[0].get_rewards()
    names = Columns.OBS, Columns.ACTIONS, Columns.REWARDS
    return [one for name, tree in zip(names, trees, strict=True) for one in _columns(name, tree)]


def _columns(name: str, held: Any) -> Iterator[dict[str, Any]]:
    """Describe one column of a batch, leaf by leaf; unstacked items by the first of them."""
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
    """Two made-up episodes, of three and two steps, to show a pipeline without recordings."""
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
