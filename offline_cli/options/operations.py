"""Options of `filter`, `sample`, `split`, `merge`, `repack` and `diff`, and those that all operations on datasets share."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal, Required

from offline_cli.options.engines import WORKERS, Engines
from offline_cli.options.option import Form, Group, Option, reworded
from offline_cli.options.shared import (
    COMPRESSION,
    ENV_FORMS,
    EXTRAS,
    MAX_BYTES,
    ROW_FORMAT,
    SEED,
    ActionScale,
    Caching,
    Compression,
    DryRun,
    EnvironmentParts,
    Extras,
    Out,
    Overwriting,
    Resuming,
    RowFormat,
    Showing,
    Sources,
    Storage,
    Tables,
)

__all__ = [
    "DiffFlags",
    "DiffOptions",
    "FilterOptions",
    "MergeOptions",
    "OperationFlags",
    "OperationOptions",
    "RepackOptions",
    "SampleOptions",
    "SplitFlags",
    "SplitOptions",
]


class OperationOptions(Tables, EnvironmentParts, ActionScale, Engines, Resuming, Overwriting, DryRun, Storage, total=False):
    """Keywords of all operations: how sources are read, and files written."""

    env: Annotated[
        str | None,
        Option(
            help=f"Source of spaces for recordings without any: {ENV_FORMS}.", group=Group.DATA, in_config=True, metavar="ENV"
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
    format: Annotated[RowFormat | None, replace(ROW_FORMAT, default=None, without="that of the sources, else episodes")]
    compression: Annotated[Compression | None, replace(COMPRESSION, default=None, without="that of the sources, else zstd")]
    max_rows_per_file: Annotated[
        int | None, Option(help="Begin a new shard after this many rows.", group=Group.OUTPUT, minimum=1, metavar="N")
    ]
    max_bytes_per_file: Annotated[int, MAX_BYTES]


class OperationFlags(Sources, Out, Caching, Showing, total=False):
    """What the command lines of all operations take besides."""


class FilterOptions(OperationOptions, total=False):
    """Keywords of `filter`."""

    where: Annotated[
        str | None,
        Option(
            help="Condition on eps_id, length, return, terminated, truncated, agent_id and module_id, as in SQL: "
            "comparisons, arithmetic, and, or, not, in, between, is null (docs/operations.md).",
            group=Group.DATA,
            metavar="CONDITION",
            as_text="Join several by and.",
        ),
    ]
    top_fraction: Annotated[
        float | None,
        Option(
            help="Share of all episodes, those with the highest return.",
            group=Group.DATA,
            above=0,
            maximum=1,
            in_config=True,
            metavar="X",
        ),
    ]
    ids_file: Annotated[
        str | os.PathLike[str] | None,
        Option(help="File of the episodes' ids, one a line.", group=Group.DATA, form=Form.FILE, metavar="FILE"),
    ]
    drop_problems: Annotated[
        str | os.PathLike[str] | None,
        Option(
            help="Result of validate as JSON: the episodes that it names for an error or a warning are left out.",
            group=Group.DATA,
            form=Form.FILE,
            metavar="FILE",
        ),
    ]


class SampleOptions(OperationOptions, total=False):
    """Keywords of `sample`."""

    episodes: Annotated[int | None, Option(help="How many episodes.", group=Group.HOW_LONG, minimum=1, short="-n", metavar="N")]
    steps: Annotated[
        int | None,
        Option(help="As many episodes as it takes to have N steps.", group=Group.HOW_LONG, minimum=1, metavar="N"),
    ]
    fraction: Annotated[
        float | None, Option(help="Which share of the episodes.", group=Group.HOW_LONG, above=0, maximum=1, metavar="X")
    ]
    seed: Annotated[int, replace(SEED, group=Group.HOW_LONG)]


@reworded(out={"help": "Folder to make, with a dataset for each part: a path or URL.", "metavar": "F"})
class SplitFlags(OperationFlags, total=False):
    """What the command line of `split` takes besides."""


class SplitOptions(OperationOptions, total=False):
    """Keywords of `split`."""

    fractions: Annotated[
        Mapping[str, float] | str | None,
        Option(
            help="Parts, and the share of the episodes in each: train=0.9,val=0.1. Those left over are in none.",
            group=Group.DATA,
            form=Form.FILE,
            metavar="NAME=X,...",
        ),
    ]
    counts: Annotated[
        Mapping[str, int] | str | None,
        Option(
            help="Parts, and how many episodes are in each: train=100,val=20. Those left over are in none.",
            group=Group.DATA,
            form=Form.FILE,
            metavar="NAME=N,...",
        ),
    ]
    by: Annotated[
        str | None,
        Option(
            help="One part for each value of a plain column, or a field of custom data; in place of {fractions} and {counts}.",
            group=Group.DATA,
            metavar="COLUMN",
        ),
    ]
    seed: Annotated[int, replace(SEED, group=Group.DATA)]


class MergeOptions(OperationOptions, total=False):
    """Keywords of `merge`."""

    unique_ids: Annotated[
        bool,
        Option(
            help="Another episode of an id that an earlier source has gets an id of its own, which ends in the number of its "
            "source, in place of an error.",
            group=Group.DATA,
            default=False,
        ),
    ]
    extras: Annotated[Extras, EXTRAS]


class RepackOptions(OperationOptions, total=False):
    """Keywords of `repack`."""

    drop: Annotated[
        Sequence[str],
        Option(
            help="Column to leave out: an extra model output, or infos.",
            group=Group.DATA,
            default=(),
            form=Form.NAMES,
            metavar="COLUMN",
        ),
    ]
    hash_ids: Annotated[
        bool,
        Option(
            help="Replace ids of episodes by their SHA-256. Whoever can guess an id can still check the guess.",
            group=Group.DATA,
            default=False,
        ),
    ]


class DiffOptions(Tables, EnvironmentParts, ActionScale, Storage, total=False):
    """Keywords of `diff`."""

    env: Annotated[
        str | None,
        Option(
            help=f"Source of spaces for recordings without any: {ENV_FORMS}.", group=Group.DATA, in_config=True, metavar="ENV"
        ),
    ]
    workers: Annotated[int, WORKERS]


class DiffFlags(Caching, Showing, total=False):
    """What the command line of `diff` takes besides."""

    a: Required[
        Annotated[
            str,
            Option(
                help="Recordings: a folder, file or glob, as a path or URL.", group=Group.DATA, is_argument=True, metavar="A"
            ),
        ]
    ]
    b: Required[Annotated[str, Option(help="What they are compared with.", group=Group.DATA, is_argument=True, metavar="B")]]
