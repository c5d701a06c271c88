"""The options that commands share, each declared once: type, spelling, help, limits and the panel of `--help` it stands in.

A command takes them as parameters (`env: EnvOption = None`) and adds its own beside them. The library function of the same
name has the same keywords, defaults and limits. Square brackets in a help text would be read as rich's markup.
"""

from functools import partial
from typing import Annotated, Any

import typer

from offline_cli import choices as c
from offline_cli.cli import completion
from offline_cli.cli.values import cache_bytes, json_object, storage_pairs

data = partial(typer.Option, rich_help_panel="Data")
learning = partial(typer.Option, rich_help_panel="Learning")
playing = partial(typer.Option, rich_help_panel="Playing")
how_long = partial(typer.Option, rich_help_panel="How long")
checking = partial(typer.Option, rich_help_panel="Checking")
where = partial(typer.Option, rich_help_panel="Where")
storage = partial(typer.Option, rich_help_panel="Storage")
output = partial(typer.Option, rich_help_panel="Output")

NO_VALUES: list[str] = []  # of a repeatable option that is not given

# ---- options that several commands take one by one; where only the default differs, the command says it ----

SOURCES = "Recordings: folders, files or globs, as paths or URLs (s3://, gs://, az://); - for piped input."
SourcesArgument = Annotated[list[str], typer.Argument(help=SOURCES, metavar="SRC", autocompletion=completion.sources)]
EnvOption = Annotated[str | None, data(help=f"Environment to play in: {c.ENV_FORMS}.", metavar="ENV")]
SpacesOfOption = Annotated[
    str | None, data("--env", help=f"Environment whose spaces the data has: {c.ENV_FORMS}.", metavar="ENV")
]
ActionScaleOption = Annotated[
    c.ActionScale | None,
    data(help="Scale of recorded Box actions: the environment's own, or -1 to 1.", show_default="what the source declares"),
]
ExtrasOption = Annotated[
    c.Extras,
    data(help="Extra model outputs to keep: all, which every source must have; those that all sources have; or none."),
]
OnErrorOption = Annotated[
    c.OnBadRow,
    data(help="What to do with an unreadable row: stop, count and skip it, or set it aside with reason and place."),
]
KeepInventedOption = Annotated[
    bool | None, data("--keep-invented", help="Keep last steps whose next observation is a copy, as it was not recorded.")
]
TopFractionOption = Annotated[
    float | None, data(help="Take this share of the episodes, those with the highest return: above 0, at most 1.")
]
PluginsOption = Annotated[
    list[str], data("--plugin", help="Package whose code a run folder may name. Repeatable.", metavar="NAME")
]
RunNetworkOption = Annotated[
    str | None,
    data("--network", help="Your code of the run's network: python:package.module:build or FILE.py:build.", metavar="CODE"),
]
SeedOption = Annotated[int | None, playing(help="Random seed.", min=0, show_default="0")]
EpisodesOption = Annotated[int | None, how_long("--episodes", "-n", help="How many episodes.", min=1)]
StepsOption = Annotated[int | None, how_long(help="As many whole episodes as it takes to have N steps.", min=1)]
LimitOption = Annotated[int | None, how_long(help="Stop after this many episodes.", min=1)]
WorkersOption = Annotated[int, where(help="Files read at a time, or workers of another --engine than local.", min=1)]
DeviceOption = Annotated[
    c.Device | None, where(help="Where the network runs; auto takes a GPU if there is one.", show_default="auto")
]
OutOption = Annotated[str | None, output("--out", "-o", help="Folder or file to make: a path or URL.", metavar="OUT")]
RowFormatOption = Annotated[
    c.RowFormat | None,
    output(
        help="One row per episode, packed; or one row per step, for any Parquet tool.",
        show_default="that of the sources, else episodes",
    ),
]
CompressionOption = Annotated[
    c.Compression | None,
    output(help="Compression of the Parquet shards.", show_default="that of the dataset or sources, else zstd"),
]
AllowChangesOption = Annotated[
    bool, output("--allow-changes", help="Resume although sources, package versions or options have changed; it is counted.")
]
ReferenceOption = Annotated[
    list[str],
    output(
        "--reference",
        help="Mean return of random play, and of an expert, which scores are normalised by: random=R, expert=E. Repeatable.",
        metavar="K=V",
    ),
]
DryRunOption = Annotated[bool, output("--dry-run", help="Check everything, write nothing.")]


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
            help="Setting for the storage behind URLs, as anon=true; JSON values are read as such. time_limit=SECONDS, 60 "
            "unless given, ends a request without an answer. Repeatable.",
            callback=storage_pairs,
            metavar="KEY=VALUE",
        ),
    ] = NO_VALUES,
) -> None:
    """Options of what is behind URLs."""


def cached(
    cache: Annotated[str | None, storage(help="Local folder that caches what is read from buckets.", metavar="DIR")] = None,
    cache_size: Annotated[
        Any,
        storage(help="Bytes that --cache may take: 500MB, 50GiB.", parser=cache_bytes, metavar="SIZE", show_default="10GiB"),
    ] = None,
) -> None:
    """Options of the cache of what is read."""


def tables(
    from_: Annotated[
        str,
        data(
            "--from",
            help="Format of the recordings (convert --list-formats); auto looks at their content; python:package.module:Reader "
            "is your own.",
            metavar="FORMAT",
            autocompletion=completion.formats,
        ),
    ] = c.SOURCE_FORMAT,
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
        c.EpisodeEnds | None,
        data(help="Where episodes of a table without ids end: at flags, where t falls, or where new_obs is not the next obs."),
    ] = None,
    temp_dir: Annotated[
        str | None, where(help="Folder for rows that do not fit into memory.", metavar="FOLDER", show_default="the system's")
    ] = None,
    memory_limit: Annotated[
        str, where(help="Memory that the process may take for a table, or one episode: 256MiB, 1GiB.", metavar="SIZE")
    ] = c.TABLE_MEMORY_LIMIT,
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
        c.EngineName,
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
    workers: WorkersOption = c.WORKERS,
) -> None:
    """Options of where work on data is done."""


def shards(
    max_rows_per_file: Annotated[int | None, output(help="Begin a new shard after this many rows.", min=1)] = None,
    max_bytes_per_file: Annotated[
        int, output(help="Begin a new shard after this many bytes, before compression.", min=1)
    ] = c.MAX_BYTES_PER_FILE,
) -> None:
    """Options of how large the files of a dataset become."""


def resuming(
    resume: Annotated[bool, output("--resume", help="Resume an interrupted run of the same command.")] = False,
    force_unlock: Annotated[
        bool, output("--force-unlock", help="With --resume: take over from a writer on another machine, which has ended.")
    ] = False,
) -> None:
    """Options of work that may be interrupted."""


def writing(
    overwrite: Annotated[bool, output("--overwrite", help="Replace what a command of this kind left at --out.")] = False,
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
    device: DeviceOption = "auto",
) -> None:
    """Options of how a policy plays."""


def operation(
    env: SpacesOfOption = None,
    action_scale: ActionScaleOption = None,
    on_error: OnErrorOption = "fail",
    format: RowFormatOption = None,
    compression: CompressionOption = None,
) -> None:
    """Options of operations on datasets."""


OPERATION = (operation, tables, environment, engines, stored, cached, shards, resuming, writing, common)
