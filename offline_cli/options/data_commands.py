"""Options of `apply`, `convert`, `inspect`, `validate` and `repair`, and of the function `write_dataset`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, Required

from offline_cli.options.engines import Engines
from offline_cli.options.option import Form, Group, Option, reworded
from offline_cli.options.shared import (
    COMPRESSION,
    ENV_FORMS,
    EXTRAS,
    KEEP_INVENTED,
    ROW_FORMAT,
    ActionScale,
    Caching,
    Compression,
    DryRun,
    Environment,
    Extras,
    Limit,
    Out,
    Overwriting,
    OwnNetwork,
    Plugins,
    Resuming,
    RowFormat,
    Shards,
    ShardSizes,
    Showing,
    Sources,
    Storage,
    Tables,
)

__all__ = [
    "STEPS_PER_BATCH",
    "ApplyFlags",
    "ApplyOptions",
    "BatchFormat",
    "ConvertFlags",
    "ConvertOptions",
    "InspectFlags",
    "InspectOptions",
    "RepairFlags",
    "RepairOptions",
    "ValidateFlags",
    "ValidateOptions",
    "WriteOptions",
]

BatchFormat = Literal["columns", "safetensors"]

STEPS_PER_BATCH: Final = Option(
    help="A batch closes with the episode that brings it to N steps.",
    group=Group.OUTPUT,
    default=1 << 16,
    minimum=1,
    metavar="N",
)


@reworded(
    env=f"Environment whose spaces apply, as in train-bc: {ENV_FORMS}.",
    dry_run="Read and make every batch, and write none.",
)
class ApplyOptions(
    Tables, Environment, ActionScale, Limit, Engines, Overwriting, DryRun, Plugins, OwnNetwork, Storage, total=False
):
    """Keywords of `apply`."""

    policy: Annotated[
        str | os.PathLike[str] | None,
        Option(
            help="Run folder whose network the pieces get, for sequences, states and values, and whose pieces keep what they "
            "had learned.",
            group=Group.LEARNING,
            without="no network",
            form=Form.FILE,
            metavar="RUN",
        ),
    ]
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
    keep_invented: Annotated[bool, replace(KEEP_INVENTED, in_config=False)]
    show: Annotated[
        bool,
        Option(
            help="Show pieces, spaces and columns for the first episode instead, and write nothing.",
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
            help="Recordings: folders, files or globs, as paths or URLs; - for piped input. {show} {env} needs none.",
            group=Group.DATA,
            is_argument=True,
            metavar="SRC",
        ),
    ]
    out: Annotated[
        str | None,
        Option(help="Folder to make for the train batches: a path or URL.", group=Group.OUTPUT, short="-o", metavar="D2"),
    ]


@reworded(
    env=f"Source of spaces for recordings without any: {ENV_FORMS}.",
    dry_run="Read and count everything, show what would be written, write nothing.",
)
class ConvertOptions(
    Tables, Environment, ActionScale, Limit, Engines, ShardSizes, Resuming, Overwriting, DryRun, Storage, total=False
):
    """Keywords of `convert`."""

    to: Annotated[
        str | None,
        Option(
            help="One row per episode, packed; or one row per step, for any Parquet tool; or the name of a sink, or one's own "
            "python:package.module:Sink.",
            group=Group.OUTPUT,
            without="episodes; with {append}, what the dataset has",
            metavar="episodes|columns|NAME",
        ),
    ]
    compression: Annotated[
        Compression | None, replace(COMPRESSION, default=None, without="zstd; with {append}, what the dataset has")
    ]
    append: Annotated[
        bool,
        Option(
            help="Add to the dataset at {out}, which keeps its shards as they are; episodes that it has are dropped.",
            group=Group.OUTPUT,
            default=False,
        ),
    ]
    extras: Annotated[Extras, EXTRAS]
    drop: Annotated[
        Sequence[str],
        Option(
            help="Leaf to leave out: a part of observations or actions (obs.mission), an extra model output, or infos.",
            group=Group.DATA,
            default=(),
            form=Form.NAMES,
            metavar="LEAF",
        ),
    ]
    drop_reset_rows: Annotated[
        bool,
        Option(
            help="Leave out rows in which a vector environment reset itself, and count final observations that such a reset "
            "gave as missing, where `validate` finds them. Reads the sources twice.",
            group=Group.DATA,
            default=False,
        ),
    ]
    on_error: Annotated[
        Literal["fail", "skip", "quarantine"],
        Option(
            help="What an unreadable row does: end the command, be counted, or be set aside with reason and place.",
            group=Group.DATA,
            default="fail",
        ),
    ]


class ConvertFlags(Sources, Out, Caching, Showing, total=False):
    """What the command line of `convert` takes besides."""

    list_formats: Annotated[
        bool,
        Option(
            help="List what {from_} and {to} take and what each keeps, those of installed packages too, and exit.",
            group=Group.DATA,
            default=False,
            at_once=True,
        ),
    ]


class InspectOptions(Tables, Storage, total=False):
    """Keywords of `inspect`."""

    expect: Annotated[
        Mapping[str, Any] | None,
        Option(
            help="Fail with exit code 7 unless the result has these values: episodes=100, 'return.mean>=450', 'steps<=5000'. "
            "Keys are those of the JSON result, nested ones with dots.",
            group=Group.CHECKING,
            form=Form.COMPARISONS,
            metavar="KEY=VALUE",
        ),
    ]
    deep: Annotated[
        bool,
        Option(
            help="Read a dataset's shards too, for what its manifest does not say: histograms of columns, episodes by agent "
            "and module. Recordings of other formats are read in any case.",
            group=Group.CHECKING,
            default=False,
        ),
    ]
    episode: Annotated[
        str | None,
        Option(
            help="Show one episode: how it ended, its first and last steps, its columns over time.",
            group=Group.CHECKING,
            metavar="ID",
        ),
    ]
    head: Annotated[
        int | None,
        Option(
            help="List the first N episodes: id, length, return, how they ended.", group=Group.CHECKING, minimum=1, metavar="N"
        ),
    ]
    on_error: Annotated[
        Literal["fail", "skip"],
        Option(help="What an unreadable row does: end the command, or be counted.", group=Group.DATA, default="fail"),
    ]


class InspectFlags(Sources, Showing, total=False):
    """What the command line of `inspect` takes besides."""


@reworded(env=f"Environment whose spaces the data must fit: {ENV_FORMS}.")
class ValidateOptions(Tables, Environment, ActionScale, Storage, total=False):
    """Keywords of `validate`."""

    strict: Annotated[bool, Option(help="Fail on warnings too, not on errors alone.", group=Group.CHECKING, default=False)]
    deep: Annotated[
        bool,
        Option(
            help="Look closer at a dataset, which reads it twice: footers, rows set aside, open uploads.",
            group=Group.CHECKING,
            default=False,
        ),
    ]
    allow_lost: Annotated[
        bool,
        Option(
            help="Episodes that were lost when a dataset was written are a note, also under {strict}.",
            group=Group.CHECKING,
            default=False,
        ),
    ]


class ValidateFlags(Sources, Showing, total=False):
    """What the command line of `validate` takes besides."""


@reworded(
    env=f"Environment whose spaces the data has, if nothing else says: {ENV_FORMS}.",
    dry_run="Report what would be done, change nothing.",
)
class RepairOptions(Environment, DryRun, Storage, total=False):
    """Keywords of `repair`."""

    drop_broken: Annotated[
        bool,
        Option(
            help="Leave out shards that are missing, unreadable, or not what the manifest's sha256 says.",
            group=Group.DATA,
            default=False,
        ),
    ]
    keep: Annotated[
        str | None,
        Option(
            help="Of a dataset that was being overwritten: the one that was there, or what there is of the new one. "
            "GENERATION: the 8 hex digits in the names of its shards.",
            group=Group.DATA,
            metavar="old|new|GENERATION",
        ),
    ]
    force_unlock: Annotated[
        bool,
        Option(
            help="Remove the writer's note, _writing.json, and nothing else; refused while its process runs on this machine.",
            group=Group.DATA,
            default=False,
        ),
    ]


class RepairFlags(Showing, total=False):
    """What the command line of `repair` takes besides."""

    out: Required[
        Annotated[str, Option(help="Dataset folder: a path or URL.", group=Group.DATA, is_argument=True, metavar="D")]
    ]


@reworded(
    env="Environment that the episodes are of: a gymnasium id, for the manifest.",
    action_scale={"help": "Scale of Box actions: the environment's own, or [-1, 1].", "without": "unknown"},
)
class WriteOptions(Environment, ActionScale, Shards, Overwriting, Storage, total=False):
    """Keywords of `write_dataset`, which no command is."""

    format: Annotated[RowFormat, ROW_FORMAT]
