"""A train batch through a learner pipeline, piece by piece; refuses to let a piece fail without its name and the episode's."""

from __future__ import annotations

from collections.abc import Iterator

from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import Batch, Episodes
from offline_cli.connectors.what_it_wants import what_it_wants
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadPiece, OfflineCliError

__all__ = ["stepped", "through"]


def stepped(pipeline: ConnectorPipelineV2, episodes: EpisodeBatch, *, where: str) -> Iterator[tuple[str, Batch, Episodes]]:
    """After each piece its unique name, the batch, and the episodes as later pieces see them.

    Raises BadPiece, with the names of the piece and of the first episode, for whatever a piece raises; our own errors keep
    their class and say the episode too. `where` names the sources.
    """
    place = f"train batch from episode {episodes.ids[0]} of {where}"
    pending = [name for name, _ in pipeline.named()]
    try:
        for step in pipeline.stepwise(episodes=episodes):
            pending.pop(0)
            yield step
    except OfflineCliError as err:
        err.where = f"{err.where}, {place}"
        raise
    except MemoryError:
        raise
    except Exception as err:  # pieces may be the user's own, and raise whatever they like
        name = pending[0] if pending else type(pipeline).__name__
        fix = "`offline-cli apply --trace 1` shows the batch before this piece, --debug where it raised"
        raise BadPiece(f"piece {name} raised {what_it_wants(err)}", where=f"piece {name}, {place}", fix=fix) from err


def through(pipeline: ConnectorPipelineV2, episodes: EpisodeBatch, *, where: str) -> tuple[Batch, dict[str, str]]:
    """The train batch of `episodes`, and which piece put each of its columns in. Raises as `stepped` does."""
    batch: Batch = {}
    added: dict[str, str] = {}
    for name, after, _ in stepped(pipeline, episodes, where=where):
        batch = after
        for column in after:
            added.setdefault(column, name)
    return batch, added
