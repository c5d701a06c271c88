"""Options of `apply`."""

import os
from typing import Annotated, Final, Literal, Required

from offline_cli.options.option import Form, Group, Option, reworded
from offline_cli.options.shared import (
    ENV_FORMS,
    ActionScale,
    Caching,
    DryRun,
    Environment,
    Limit,
    Overwriting,
    Showing,
    Storage,
    Tables,
)

__all__ = ["STEPS_PER_BATCH", "ApplyFlags", "ApplyOptions", "BatchFormat"]

BatchFormat = Literal["columns", "safetensors"]

STEPS_PER_BATCH: Final = Option(
    help="A batch closes with the episode that brings it to N steps.",
    group=Group.OUTPUT,
    default=1 << 16,
    minimum=1,
    metavar="N",
)


@reworded(
    env=f"Environment whose spaces hold, as in train-bc: {ENV_FORMS}.",
    dry_run="Read and make every batch, and write none.",
)
class ApplyOptions(Tables, Environment, ActionScale, Limit, Overwriting, DryRun, Storage, total=False):
    """Keywords of `apply`."""

    pipeline: Required[
        Annotated[
            str | os.PathLike[str],
            Option(
                help="Pipeline file of kind learner (TOML, docs/connectors.md).",
                group=Group.LEARNING,
                form=Form.FILE,
                metavar="F",
            ),
        ]
    ]
    format: Annotated[
        BatchFormat,
        Option(help="Parquet with a row per step, or tensors by name.", group=Group.OUTPUT, default="columns"),
    ]
    steps_per_batch: Annotated[int, STEPS_PER_BATCH]
    show: Annotated[
        bool,
        Option(
            help="Show pieces, spaces and columns instead, without reading data or writing.",
            group=Group.CHECKING,
            default=False,
        ),
    ]
    trace: Annotated[
        int | None,
        Option(
            help="Show what the batch of the first N episodes holds after each piece instead.",
            group=Group.CHECKING,
            minimum=1,
            metavar="N",
        ),
    ]


class ApplyFlags(Caching, Showing, total=False):
    """What the command line of `apply` takes besides."""

    sources: Annotated[
        list[str] | None,
        Option(
            help="Recordings: folders, files or globs, as paths or URLs; - for what is piped in. {show} {env} needs none.",
            group=Group.DATA,
            is_argument=True,
            metavar="SRC",
        ),
    ]
    out: Annotated[
        str | None,
        Option(help="Folder to make for the train batches: a path or URL.", group=Group.OUTPUT, short="-o", metavar="D2"),
    ]
