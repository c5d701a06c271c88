"""The sources that a pipeline is applied to: spaces, if possible without reading, and episodes.

Spaces are those that `train-bc` would use with the same options: what the sources declare, or `env`'s where it is given and
the data fits it. Only where nothing says them are they inferred from what is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from offline_cli.applying.learner_batches import check_known_scale, learner_spaces
from offline_cli.columns import Columns
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.pipeline_files import PipelineFile, Setting
from offline_cli.converting.reading import EpisodeStream, read_opened
from offline_cli.environments import Environment, open_environment
from offline_cli.errors import UsageError
from offline_cli.formats.detect import open_sources
from offline_cli.formats.memory import MEMORY_LIMIT, EpisodeLimit
from offline_cli.formats.source import Source
from offline_cli.formats.tables import TableOptions
from offline_cli.options.shared import SOURCE_FORMAT
from offline_cli.progress import OnProgress, no_progress
from offline_cli.scopes import Scope
from offline_cli.spaces import Space, same_space
from offline_cli.storage.locations import Location, Sources, expand

__all__ = ["Ready", "Recordings", "Said"]

NO_EXTRA: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
Spaces = tuple[Space, Space]  # of observations and of actions


@dataclass(frozen=True, slots=True)
class Said:
    """What a caller says of the sources."""

    sources: Sources = ()
    from_: str = SOURCE_FORMAT.default
    env: str | None = None
    action_scale: str | None = None
    tables: TableOptions | None = None
    storage_options: Mapping[str, Any] | None = None
    out: str | None = None  # another place that the storage options are for
    on_progress: OnProgress = no_progress

    def open(self) -> Recordings:
        """Open them, reading no episode. Raises what `open_sources` and `open_environment` raise."""
        beside = () if self.out is None else self.out
        places = expand(self.sources, self.storage_options, beside=beside)
        if not places and self.env is None:
            raise _no_sources()
        environment = None
        if self.env is not None:
            with open_environment(self.env) as environment:  # what is asked of it holds when it is closed, too
                pass
        if not places:
            return Recordings(self, [], [], environment)
        opened = open_sources(places, from_=self.from_, tables=self.tables, storage_options=self.storage_options)
        return Recordings(self, places, opened, environment)


@dataclass(frozen=True, slots=True)
class Recordings:
    """Opened sources; may be none where an environment says the spaces."""

    said: Said
    places: Sequence[Location]
    opened: Sequence[Source]
    environment: Environment | None  # closed

    @property
    def where(self) -> str:
        """The sources, for messages."""
        return ", ".join(source.info.location for source in self.opened) or f"--env {self.said.env}"

    @property
    def inferred(self) -> bool:
        """Whether a dataset calls its spaces a guess."""
        return any(source.info.spaces_inferred for source in self.opened)

    def spaces(self) -> Spaces | None:
        """What is known without reading an episode; None: nothing says it. Raises SpaceMismatch where data does not fit."""
        pairs = [source.info.spaces for source in self.opened]
        if self.environment is not None and (not pairs or any(None in pair for pair in pairs)):
            return self.environment.observation_space, self.environment.action_space
        agreed = _agreed([pair[0] for pair in pairs]), _agreed([pair[1] for pair in pairs])
        if agreed[0] is None or agreed[1] is None:
            return None
        return learner_spaces((agreed[0], agreed[1]), self.environment, inferred=self.inferred, where=self.where)

    def stream(self, *, limit: int | None) -> EpisodeStream:
        """The episodes, to be read once. Raises what `read_opened` raises, and UsageError without any source."""
        if not self.opened:
            raise _no_sources()
        given, memory_limit = self.environment, MEMORY_LIMIT if self.said.tables is None else self.said.tables.memory_limit
        return read_opened(
            self.opened,
            env=self.said.env,
            env_spaces=None if given is None else (given.observation_space, given.action_space),
            action_scale=self.said.action_scale,
            limit=limit,
            memory_limit=memory_limit,
            episode_limit=EpisodeLimit.within(memory_limit),
            on_progress=self.said.on_progress,
        )

    def ready(self, file: PipelineFile, *, limit: int | None) -> Ready:
        """Pipeline and episodes; where spaces are known without, the pipeline is built before an episode is read.

        The caller closes the stream of episodes.
        Raises SpaceMismatch, naming the piece; BadConfig for Box actions of unknown scale; what reading raises.
        """
        known = self.spaces()
        pipeline = None if known is None else file.build(Setting(*known))
        stream = self.stream(limit=limit)
        with Scope() as scope:
            scope.enter(stream)
            check_known_scale(stream)
            spaces = self.spaces_of(stream)
            ready = Ready(stream, *spaces, pipeline or file.build(Setting(*spaces)), self.where)
            scope.moved()  # whoever has the stream closes it
        return ready

    def spaces_of(self, stream: EpisodeStream) -> Spaces:
        """The spaces of a stream of these. Raises SpaceMismatch."""
        said = stream.observation_space, stream.action_space
        return learner_spaces(said, self.environment, inferred=stream.spaces_inferred, where=self.where)

    def extras(self) -> dict[str, tuple[str, tuple[int, ...]]] | None:
        """Dtype and shape of each extra model output by path, from the first manifest; None: only reading would tell."""
        manifests = [source.info.manifest for source in self.opened]
        if None in manifests:
            return None
        first = manifests[0] if manifests else None
        known = {} if first is None else first.statistics["columns"]
        return {
            path: (column["dtype"], tuple(column["shape"]))
            for path, column in known.items()
            if path.partition(".")[0] not in NO_EXTRA
        }


@dataclass(frozen=True, slots=True)
class Ready:
    """A pipeline, and the episodes that it is for."""

    stream: EpisodeStream
    observation_space: Space  # before the pipeline
    action_space: Space
    pipeline: ConnectorPipelineV2
    where: str  # the sources, for messages


def _no_sources() -> UsageError:
    fix = "name recordings, or, to see pieces and spaces alone, --show --env ENV"
    return UsageError("no sources", where="the arguments", fix=fix)


def _agreed(spaces: Sequence[Space | None]) -> Space | None:
    """The space that all say; None where one does not say any, or says another."""
    first = spaces[0] if spaces else None
    return first if all(same_space(first, other) for other in spaces[1:]) else None
