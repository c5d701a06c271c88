"""The form of a pipeline file (TOML), as pydantic models; schemas/pipeline.v1.json is written from them (`make docs`).

Which pieces there are, and which options each takes, is not part of the form: `pipeline_spec.py` asks the pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from offline_cli.connectors.piece_makers import Kind
from offline_cli.schema_files import toml_schema

__all__ = ["MAX_PIECES", "PieceDocument", "document_mistakes", "pipeline_schema"]

MAX_PIECES: Final = 100  # spaces are worked out anew for each one that is added
Place = Annotated[str, Field(min_length=1)]


class PieceDocument(BaseModel):
    """One piece: a name or an import path, and its options, which are the named arguments of its class."""

    model_config = ConfigDict(extra="allow", strict=True)

    name: Place | None = Field(None, description="A registered piece, such as frame_stacking, ours or a package's.")
    use: Annotated[str, Field(pattern="^[^.:][^:]*:[^:]+$")] | None = Field(
        None,
        description="A class derived from ConnectorV2, or a function that builds pieces, as package.module:Class. Imported "
        "because this file names it.",
    )
    before: Place | None = Field(None, description='Put it right before the piece of this name: before = "GetActions".')
    after: Place | None = Field(None, description="Put it right after the piece of this name.")


class PipelineDocument(BaseModel):
    """Which pieces a learner, env-to-module or module-to-env pipeline has, beside the default ones. See docs/connectors.md."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Kind = Field(description="Which of the three pipelines this is.")
    defaults: bool = Field(
        True,
        description="Whether the default pieces of this kind are added: after the listed ones, in module_to_env around them.",
    )
    normalize_actions: bool | None = Field(
        None,
        description="module_to_env with defaults: whether Box actions in -1 to 1 are stretched to the bounds of the action "
        "space. Default: what the policy says of its actions' scale; true where nothing is known.",
    )
    clip_actions: bool | None = Field(
        None,
        description="module_to_env with defaults: whether actions that are not stretched are clipped to the bounds. Default: "
        "true where they are not stretched.",
    )
    pieces: list[PieceDocument] = Field([], max_length=MAX_PIECES, description="The pieces, in order.")


def document_mistakes(document: Mapping[str, Any]) -> list[str]:
    """Every mistake in the form of a file's content, each with its place; empty when there is none."""
    try:
        PipelineDocument.model_validate(dict(document))
    except ValidationError as error:
        places = [".".join(map(str, one["loc"])) for one in error.errors()]
        return [
            f"unknown key '{place}'"
            if one["type"] == "extra_forbidden"
            else f"{place}: {one['msg']}, not {str(one['input'])[:60]!r}"
            for place, one in zip(places, error.errors(), strict=True)
        ]
    return []


def pipeline_schema() -> dict[str, Any]:
    """The JSON Schema of pipeline files: schemas/pipeline.v1.json."""
    return toml_schema(PipelineDocument, "offline-cli/pipeline.v1.json", title="Connector pipeline")
