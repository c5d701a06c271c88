"""Shows a pipeline without data, or traces a batch of the first episodes through it.

* `show_pipeline`: its pieces, the spaces before and after each, and the columns of the batch. Columns come from a few sample
  episodes. Where a piece of the user's own cannot take those, spaces alone are shown from it on. Only of a source that does not
  declare its spaces one episode is read.
* `trace_pipeline`: what the batch holds after each piece, for the first episodes of the data.
* `invented_episodes`: the sample episodes, made up from spaces. Values lie within the spaces, dtypes and shapes
  are those of recordings. The same spaces give the same ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.applying.learner_batches import grouped, in_learner_units, playing, stepped, with_steps
from offline_cli.applying.recordings import Recordings, Said, Seen, seen_in_batch, seen_in_episodes
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.pipeline_spec import PipelineSpec
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import NoData, OfflineCliError, UnsupportedSpace
from offline_cli.formats.source import ENV_SCALE, UNKNOWN_SCALE
from offline_cli.modules.rl_module import RLModule
from offline_cli.policies.policy import sampled
from offline_cli.spaces import Space, describe, space_to_json
from offline_cli.trees import Tree, flatten

__all__ = ["Extras", "PipelineShown", "PipelineTraced", "invented_episodes", "show_pipeline", "space_as_json", "trace_pipeline"]

SPACES: Final = ("input_observation_space", "observation_space", "input_action_space", "action_space")
FEW: Final = 1  # episode that is read where nothing else declares the spaces

ALL: Final = 1 << 62  # steps: whatever there is, as one batch
LENGTHS: Final = (3, 2)  # steps
Extras = Mapping[str, tuple[str, tuple[int, ...]]]  # dtype and shape of one row, by path
_Setting = tuple[tuple[Space, Space], bool, str, Extras]  # spaces, whether they are inferred, action scale, extra outputs


@dataclass(frozen=True, slots=True)
class PieceShown:
    """One piece: what goes in and what comes out."""

    name: str  # unique in the pipeline
    input_observation_space: Space | None
    observation_space: Space | None
    input_action_space: Space | None
    action_space: Space | None
    columns_before: tuple[Seen, ...] | None  # of the batch; None: not known, see `PipelineShown.note`
    columns: tuple[Seen, ...] | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values: each space as JSON (null where it has no such form), and as text beside it."""
        spaces = {name: space_as_json(getattr(self, name)) for name in SPACES}
        texts = {f"{name}_text": describe(getattr(self, name)) for name in SPACES}
        columns = {name: _kinds(getattr(self, name)) for name in ("columns_before", "columns")}
        return {"name": self.name, **spaces, **texts, **columns}


@dataclass(frozen=True, slots=True)
class PipelineShown:
    """What `apply --show` reports."""

    pipeline: str  # the file
    sources: tuple[str, ...]
    spaces_inferred: bool  # from the first episode alone
    action_scale: str  # of the source
    pieces: tuple[PieceShown, ...]
    note: str | None  # why columns are missing

    def as_dict(self) -> dict[str, Any]:
        """Plain values, by the keys of `--json`."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {**plain, "sources": list(self.sources), "pieces": [piece.as_dict() for piece in self.pieces]}


def show_pipeline(file: PipelineSpec, said: Said) -> PipelineShown:
    """The pieces of `file` for the spaces of the sources, or of the environment where there are none.

    Of a source that does not say its spaces one episode is read. Raises SpaceMismatch, naming the piece that cannot take what
    comes before it, and what opening and reading raise.
    """
    recordings = said.open()
    spaces, inferred, scale, extras = _known(recordings) or _read(recordings)
    pipeline = said.network.pipeline(file, spaces)
    invented = invented_episodes(*spaces, extras)
    episodes = in_learner_units(invented, spaces[1], ENV_SCALE if scale == UNKNOWN_SCALE else scale)
    columns, note = _columns_after(pipeline, episodes, said.network.module)
    return PipelineShown(
        pipeline=file.where,
        sources=tuple(source.info.location for source in recordings.opened),
        spaces_inferred=inferred,
        action_scale=scale,
        pieces=tuple(_shown(pipeline, columns)),
        note=note,
    )


def _known(recordings: Recordings) -> _Setting | None:
    """What manifests and environment declare, if nothing else does."""
    spaces, extras = recordings.spaces(), recordings.extras()
    return None if spaces is None or extras is None else (spaces, recordings.inferred, _scale(recordings), extras)


def _read(recordings: Recordings) -> _Setting:
    """As the first episode says."""
    with recordings.stream(limit=FEW) as stream:
        first = next(map(with_steps, stream))
        return recordings.spaces_of(stream), stream.spaces_inferred, stream.action_scale, _extras_of(first)


def _scale(recordings: Recordings) -> str:
    scales = {source.info.action_scale for source in recordings.opened} - {UNKNOWN_SCALE}
    return recordings.said.action_scale or (next(iter(scales)) if len(scales) == 1 else UNKNOWN_SCALE)


def _extras_of(batch: EpisodeBatch) -> Extras:
    return {
        path: (str(leaf.dtype), tuple(leaf.shape[1:]))
        for name, tree in batch.extra.items()
        for path, leaf in flatten(tree, name)
    }


def _columns_after(
    pipeline: ConnectorPipelineV2, episodes: EpisodeBatch, network: RLModule | None
) -> tuple[list[tuple[Seen, ...]], str | None]:
    """The batch's columns after each piece, as far as the pieces take sample episodes, and why not further."""
    found: list[tuple[Seen, ...]] = []
    try:
        with playing(network) as module:
            for _, batch, _ in stepped(pipeline, episodes, where="invented episodes", rl_module=module):
                found.append(seen_in_batch(batch))
    except OfflineCliError as err:
        name = [name for name, _ in pipeline.named()][min(len(found), len(pipeline) - 1)]
        return found, f"piece {name} fails on sample episodes ({err.what}); --trace 1 uses real ones"
    return found, None


def _shown(pipeline: ConnectorPipelineV2, columns: Sequence[tuple[Seen, ...]]) -> Iterator[PieceShown]:
    before: tuple[Seen, ...] | None = ()
    for number, (name, piece) in enumerate(pipeline.named()):
        after = columns[number] if number < len(columns) else None
        spaces: dict[str, Any] = {space: getattr(piece, space) for space in SPACES}
        yield PieceShown(name, **spaces, columns_before=before, columns=after)
        before = after


def _kinds(columns: tuple[Seen, ...] | None) -> list[dict[str, Any]] | None:
    return None if columns is None else [one.as_dict(values=False) for one in columns]


def space_as_json(space: Space | None) -> dict[str, Any] | None:
    """`space` as JSON; None for none, and for one that no episode can have: a piece may lead to such a space."""
    try:
        return None if space is None else space_to_json(space)
    except UnsupportedSpace:
        return None


@dataclass(frozen=True, slots=True)
class PieceTraced:
    """What there is after one piece."""

    name: str
    columns: tuple[Seen, ...]  # of the batch
    episodes: tuple[Seen, ...]  # observations, actions and rewards, as later pieces find them

    def as_dict(self) -> dict[str, Any]:
        """Plain values by name."""
        seen = {"columns": self.columns, "episodes": self.episodes}
        return {"name": self.name, **{name: [one.as_dict() for one in found] for name, found in seen.items()}}


@dataclass(frozen=True, slots=True)
class PipelineTraced:
    """What `apply --trace` reports."""

    pipeline: str  # the file
    sources: tuple[str, ...]
    episodes: tuple[str, ...]  # ids of those that were followed
    steps: int
    start: tuple[Seen, ...]  # the episodes before the first piece
    pieces: tuple[PieceTraced, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, by the keys of `--json`."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        lists = {"sources": list(self.sources), "episodes": list(self.episodes)}
        return {**plain, **lists, **{name: [one.as_dict() for one in plain[name]] for name in ("start", "pieces")}}


def trace_pipeline(file: PipelineSpec, said: Said, *, episodes: int) -> PipelineTraced:
    """The first `episodes`, those without steps left out, as one train batch, after each piece.

    Raises what `apply` raises; where a piece raises, the error's `result` has the trace up to it.
    """
    ready = said.open().ready(file, limit=episodes)
    with ready.stream:
        learned = next(grouped(ready.episodes(), ALL), None)
    if learned is None:
        fix = "a larger --trace, or recordings that have steps"
        raise NoData("no step in the first episodes", where=ready.where, fix=fix)
    locations, start = tuple(ready.stream.locations), seen_in_episodes(learned)
    pieces: list[PieceTraced] = []

    def traced() -> PipelineTraced:
        return PipelineTraced(file.where, locations, learned.ids, learned.num_steps, start, tuple(pieces))

    try:
        ready.learn(lambda: [learned])
        with playing(ready.network.module) as module:
            for name, batch, left in stepped(ready.pipeline, learned, where=ready.where, rl_module=module):
                pieces.append(PieceTraced(name, seen_in_batch(batch), seen_in_episodes(left)))
    except OfflineCliError as err:
        err.result = traced().as_dict()
        raise
    return traced()


def invented_episodes(observation_space: Space, action_space: Space, extras: Extras) -> EpisodeBatch:
    """Two episodes of the spaces and with such extra model outputs, all zeros."""
    steps = sum(LENGTHS)
    return EpisodeBatch(
        ids=tuple(f"invented-{number}" for number in range(len(LENGTHS))),
        starts=np.array([0, *itertools.accumulate(LENGTHS)], np.int64),
        obs=sampled(observation_space, steps + len(LENGTHS)),
        actions=sampled(action_space, steps),
        rewards=np.ones(steps),
        terminated=np.array([True, False]),
        truncated=np.array([False, True]),
        extra=_nested({path: np.zeros((steps, *shape), dtype) for path, (dtype, shape) in extras.items()}),
        observation_space=observation_space,
        action_space=action_space,
    )


def _nested(leaves: Mapping[str, NDArray[Any]]) -> dict[str, Tree]:
    """Leaves by path (`state.h`) as trees by name."""
    whole: dict[str, Tree] = {}
    for path, leaf in leaves.items():
        *above, name = path.split(".")
        node = whole
        for key in above:
            node = node.setdefault(key, {})
        node[name] = leaf
    return whole
