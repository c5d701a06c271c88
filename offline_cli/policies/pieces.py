"""The pipelines that a user names for a recording, as a plan carries them; refuses files of the wrong kind.

Of files the documents travel to runner processes, and no pipelines: each process makes its own, and imports the code that the
user's file names.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from offline_cli.connectors.piece_makers import Custom
from offline_cli.connectors.pipeline_files import PipelineFile, parse_pipeline
from offline_cli.connectors.pipeline_spec import Given, GivenPipeline, Side, read_given
from offline_cli.errors import BadConfig

__all__ = ["Document", "Pieces", "read_pieces"]


@dataclass(frozen=True, slots=True)
class Document:
    """What a pipeline file says."""

    content: Mapping[str, Any]
    where: str  # its path

    def parsed(self) -> PipelineFile:
        """The file, checked. Raises as `parse_pipeline` does."""
        return parse_pipeline(self.content, where=self.where)


@dataclass(frozen=True, slots=True)
class Pieces:
    """What a user gave for the two pipelines, and what goes with them."""

    env_to_module: Document | Custom = None
    module_to_env: Document | Custom = None
    lookback: int | None = None  # steps that pieces can look back on at least; None: the whole episode
    learned: Mapping[str, Any] | None = field(default=None, repr=False)  # states to begin with, of a recording gone on with

    def __bool__(self) -> bool:
        """Whether a pipeline was given."""
        return self.env_to_module is not None or self.module_to_env is not None

    def sides(self) -> tuple[Side, Side]:
        """Both, files checked. Raises as `parse_pipeline` does."""
        beside, after = self.env_to_module, self.module_to_env
        return (
            beside.parsed() if isinstance(beside, Document) else beside,
            after.parsed() if isinstance(after, Document) else after,
        )

    def described(self) -> dict[str, Any]:
        """What episodes follow from, as JSON values: files with their content, Python objects by name; empty: nothing given."""
        given = {"env_to_module": self.env_to_module, "module_to_env": self.module_to_env}
        told = {name: _told(side) for name, side in given.items() if side is not None}
        plain: dict[str, Any] = json.loads(json.dumps(told, default=str))  # TOML has dates
        return plain if self.lookback is None else {**plain, "lookback": self.lookback}

    def check_travels(self) -> None:
        """Raise BadConfig for Python objects that cannot be sent to runner processes."""
        try:
            pickle.dumps(self)
        except (pickle.PicklingError, TypeError, AttributeError) as err:
            fix = "a pipeline file, a function of an importable module, or --num-env-runners 0"
            raise BadConfig(f"pieces that no other process can get: {err}", where="pipeline", fix=fix) from err


def _told(side: Document | Custom) -> Any:
    return side.content if isinstance(side, Document) else GivenPipeline(side).name


def read_pieces(env_to_module: Given, module_to_env: Given, lookback: int | None) -> Pieces:
    """What a user gave, files read and checked. Raises StorageNotFound, BadConfig, MissingPackage."""
    beside = read_given(env_to_module, "env_to_module", "learner")
    return Pieces(_document(beside), _document(read_given(module_to_env, "module_to_env")), lookback)


def _document(side: Side) -> Document | Custom:
    return Document(side.document, side.where) if isinstance(side, PipelineFile) else side
