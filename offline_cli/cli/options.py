"""The options that commands share, each declared once: type, spelling, help, limits and the panel of `--help` it stands in.

A command takes them as parameters (`env: EnvOption = None`) and adds its own beside them. The library function of the same
name has the same keywords, defaults and limits. Square brackets in a help text would be read as rich's markup.
"""

from functools import partial
from typing import Annotated, Any

import typer

from offline_cli.choices import (
    ENV_FORMS,
    MAX_BYTES_PER_FILE,
    SOURCE_FORMAT,
    TABLE_MEMORY_LIMIT,
    WORKERS,
    ActionScale,
    Compression,
    Device,
    EngineName,
    EpisodeEnds,
    Extras,
    OnBadRow,
    RowFormat,
)
from offline_cli.cli import completion
from offline_cli.cli.values import json_object, number, storage_pairs

data = partial(typer.Option, rich_help_panel="Data")
learning = partial(typer.Option, rich_help_panel="Learning")
playing = partial(typer.Option, rich_help_panel="Playing")
how_long = partial(typer.Option, rich_help_panel="How long")
checking = partial(typer.Option, rich_help_panel="Checking")
where = partial(typer.Option, rich_help_panel="Where")
storage = partial(typer.Option, rich_help_panel="Storage")
output = partial(typer.Option, rich_help_panel="Output")

NO_VALUES: list[str] = []  # of a repeatable option that is not given

# ---- data ----

SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        help="Recordings: folders, files or globs, as paths or URLs (s3://, gs://, az://); - for piped input.",
        metavar="SRC",
        autocompletion=completion.sources,
    ),
]
EnvOption = Annotated[str | None, data(help=f"Environment to play in: {ENV_FORMS}.", metavar="ENV")]
SpacesOfOption = Annotated[
    str | None, data("--env", help=f"Environment that gives the spaces of recordings without any: {ENV_FORMS}.", metavar="ENV")
]
ActionScaleOption = Annotated[
    ActionScale | None,
    data(help="Scale of recorded Box actions: the environment's own, or -1 to 1.", show_default="what the source declares"),
]
ExtrasOption = Annotated[
    Extras, data(help="Extra model outputs to keep: all, which every source must have; those that all sources have; or none.")
]
OnErrorOption = Annotated[
    OnBadRow, data(help="What to do with an unreadable row: stop, count and skip it, or set it aside with reason and place.")
]
KeepInventedOption = Annotated[
    bool | None,
    data(
        "--keep-invented",
        help="Keep last steps whose next observation was not recorded; a copy of the one before stands in for it.",
    ),
]
PluginsOption = Annotated[
    list[str],
    data(
        "--plugin",
        help="Package whose algorithms, networks and pieces may be imported because a run folder names them. Repeatable.",
        metavar="NAME",
    ),
]
RunNetworkOption = Annotated[
    str | None,
    data(
        "--network",
        help="Your code of the run's network, if it was trained with --network: python:package.module:build or FILE.py:build.",
        metavar="CODE",
    ),
]

# ---- playing ----

SeedOption = Annotated[int, playing(help="Random seed.", min=0)]

# ---- where ----

WorkersOption = Annotated[int, where(help="Files read at a time; with another --engine than local, its workers.", min=1)]

# ---- storage and output ----

OutOption = Annotated[str, output("--out", "-o", help="Dataset folder to make: a path or URL.", metavar="D")]
CompressionOption = Annotated[
    Compression | None,
    output(help="Compression of the Parquet shards.", show_default="that of the dataset or sources, else zstd"),
]
AllowChangesOption = Annotated[
    bool,
    output(
        "--allow-changes", help="Resume although source files, package versions or options have changed; changes are counted."
    ),
]
DryRunOption = Annotated[bool, output("--dry-run", help="Check everything, write nothing.")]

# ---- training: what is not given comes from --config, else from the run that is resumed, else from the default ----


# ---- of `train` alone ----

TopFractionOption = Annotated[
    float | None,
    data(
        help="Take this share of the episodes alone, those with the highest return: above 0, at most 1.",
        callback=number(above=0, most=1),
    ),
]


# ---- groups of options, which a command takes as a whole (`takes=` of its decorator); their bodies are never called ----


def common(
    as_json: Annotated[bool, output("--json", help="Print one JSON object and nothing else on stdout.")] = False,
    quiet: Annotated[bool, output("--quiet", help="Show no progress on stderr.")] = False,
    debug: Annotated[bool, output("--debug", help="Show the traceback of a failure.")] = False,
) -> None:
    """Options of every command."""


def stored(
    storage_options: Annotated[
        list[str],
        storage(
            "--storage-option",
            help="Setting for the storage behind URLs, such as anon=true; JSON values are read as such. time_limit=SECONDS, 60 "
            "unless given, ends a request without an answer. Repeatable.",
            callback=storage_pairs,
            metavar="KEY=VALUE",
        ),
    ] = NO_VALUES,
) -> None:
    """Options of what is behind URLs."""


def cached(
    cache: Annotated[
        str | None, storage(help="Local folder that caches what is read from s3://, gs:// and az://.", metavar="DIR")
    ] = None,
    cache_size: Annotated[
        str | None, storage(help="Bytes that --cache may take: 500MB, 50GiB.", metavar="SIZE", show_default="10GiB")
    ] = None,
) -> None:
    """Options of the cache of what is read."""


def tables(
    from_: Annotated[
        str,
        data(
            "--from",
            help="Format of the recordings; auto looks at their content. convert --list-formats lists the names; "
            "python:package.module:Reader is your own.",
            metavar="FORMAT",
            autocompletion=completion.formats,
        ),
    ] = SOURCE_FORMAT,
    mapping: Annotated[
        str | None,
        data(
            help="What the columns of a table mean: a TOML file, or a preset (rllib, gym-legacy, d4rl-table).",
            metavar="M",
            autocompletion=completion.mappings,
        ),
    ] = None,
    rows_as_episodes: Annotated[
        bool, data("--rows-as-episodes", help="Treat each row of a table as an episode of one step.")
    ] = False,
    episode_ends: Annotated[
        EpisodeEnds | None,
        data(help="Where episodes of a table without ids end: at flags, where t falls, or where new_obs is not the next obs."),
    ] = None,
    temp_dir: Annotated[
        str | None,
        where(help="Folder for rows of a table that do not fit into memory.", metavar="FOLDER", show_default="the system's"),
    ] = None,
    memory_limit: Annotated[
        str, where(help="Memory that the process may take for a table, or one episode: 256MiB, 1GiB.", metavar="SIZE")
    ] = TABLE_MEMORY_LIMIT,
) -> None:
    """Options of recordings that may be tables of other programs."""


def environment(
    env_kwargs: Annotated[
        Any,
        playing(
            help="Arguments to make the environment with: a JSON object.",
            parser=json_object,
            metavar="JSON",
            show_default="those recorded with the data or run, where they are plain",
        ),
    ] = None,
    wrappers: Annotated[
        list[str],
        playing(
            "--wrapper",
            help="Wrapper around the environment, inner first: module:Class, or one of gymnasium.wrappers, with arguments: "
            "TimeLimit:max_episode_steps=30; none: without any. Repeatable.",
            metavar="NAME:KEY=VALUE",
            show_default="those recorded with the data or run, where they are plain",
        ),
    ] = NO_VALUES,
) -> None:
    """Options of how an environment is made."""


def engines(
    engine: Annotated[
        EngineName,
        where(help="Where the work is done: in this process, in processes of this machine, or by workers of a Ray cluster."),
    ] = "local",
    engine_address: Annotated[
        str | None,
        where(
            help="Ray cluster of --engine ray: HOST:PORT, or auto on one of its nodes.",
            metavar="A",
            show_default="a new one on this machine",
        ),
    ] = None,
    workers: WorkersOption = WORKERS,
) -> None:
    """Options of where work on data is done."""


def shards(
    max_rows_per_file: Annotated[
        int | None, output("--max-rows-per-file", help="Begin a new shard after this many rows.", min=1)
    ] = None,
    max_bytes_per_file: Annotated[
        int, output("--max-bytes-per-file", help="Begin a new shard after this many bytes, before compression.", min=1)
    ] = MAX_BYTES_PER_FILE,
) -> None:
    """Options of how large the files of a dataset become."""


def resuming(
    resume: Annotated[bool, output("--resume", help="Resume an interrupted run of the same command.")] = False,
    force_unlock: Annotated[
        bool,
        output(
            "--force-unlock", help="With --resume: take over from a writer on another machine, which has ended as you know."
        ),
    ] = False,
) -> None:
    """Options of work that may be interrupted."""


def writing(
    overwrite: Annotated[
        bool, output("--overwrite", help="Replace what an earlier command of this kind left at --out.")
    ] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Options of commands that write."""


def acting(
    seed: SeedOption = 0,
    explore: Annotated[bool, playing("--explore/--no-explore", help="Sample actions instead of taking the likeliest.")] = False,
    env_to_module: Annotated[
        str | None,
        playing(
            help="Pipeline file of the pieces between observations and network, or a learner's. A run brings its own.",
            metavar="FILE",
        ),
    ] = None,
    module_to_env: Annotated[
        str | None, playing(help="Pipeline file of the pieces between network and actions.", metavar="FILE")
    ] = None,
    lookback: Annotated[
        int | None, playing(help="Keep at least N past steps of an episode for pieces.", min=1, show_default="all of them")
    ] = None,
    trust_pickle: Annotated[
        bool, playing("--trust-pickle", help="Load an RLlib checkpoint (rllib:FOLDER), a pickle: the code in it runs.")
    ] = False,
    plugins: PluginsOption = NO_VALUES,
    network: RunNetworkOption = None,
    num_envs: Annotated[int, where(help="Environments that play side by side, per runner.", min=1)] = 16,
    num_env_runners: Annotated[int, where(help="Processes that play; 0: this one.", min=0)] = 0,
    device: Annotated[Device, where(help="Where the network runs; auto takes a GPU if there is one.")] = "auto",
) -> None:
    """Options of how a policy plays."""


def operation(
    env: SpacesOfOption = None,
    action_scale: ActionScaleOption = None,
    on_error: OnErrorOption = "fail",
    format: Annotated[
        RowFormat | None,
        output(
            help="One row per episode, packed; or one row per step, for any Parquet tool.",
            show_default="that of the sources, else episodes",
        ),
    ] = None,
    compression: CompressionOption = None,
) -> None:
    """Options of operations on datasets."""


OPERATION = (operation, tables, environment, engines, stored, cached, shards, resuming, writing, common)
