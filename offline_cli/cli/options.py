"""Options shared by commands, each declared once: type, name, help, limits and panel of `--help`.

A command takes them as parameters (`env: EnvOption = None`) and adds its own. The library function of the same name has the
same keywords, defaults and limits. Escape square brackets in help texts: rich reads them as markup.
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
offline = partial(typer.Option, rich_help_panel="Without an environment")
where = partial(typer.Option, rich_help_panel="Where")
storage = partial(typer.Option, rich_help_panel="Storage")
output = partial(typer.Option, rich_help_panel="Output")

NO_VALUES: list[str] = []  # default of repeatable options

# ---- single options; a command may set another default ----

SOURCES = "Recordings: folders, files or globs, as paths or URLs (s3://, gs://, az://, hf://); - for piped input."
SourcesArgument = Annotated[list[str], typer.Argument(help=SOURCES, metavar="SRC", autocompletion=completion.sources)]
EnvOption = Annotated[str | None, data(help=f"Environment to play in: {c.ENV_FORMS}.", metavar="ENV")]
SpacesOfOption = Annotated[
    str | None, data("--env", help=f"Environment that defines the spaces of the data: {c.ENV_FORMS}.", metavar="ENV")
]
ActionScaleOption = Annotated[
    c.ActionScale | None,
    data(help="Scale of recorded Box actions: the environment's own, or -1 to 1.", show_default="as declared by the source"),
]
ExtrasOption = Annotated[
    c.Extras,
    data(help="Extra model outputs to keep: all (every source must have them), those common to all sources, or none."),
]
OnErrorOption = Annotated[
    c.OnBadRow,
    data(help="Handling of an unreadable row: fail, count and skip it, or quarantine it with reason and place."),
]
KeepInventedOption = Annotated[
    bool | None, data("--keep-invented", help="Keep last steps without a recorded next observation (it is a copy).")
]
TopFractionOption = Annotated[
    float | None, data(help="Take this share of the episodes with the highest returns: above 0, at most 1.")
]
PluginsOption = Annotated[list[str], data("--plugin", help="Package that a run folder may import. Repeatable.", metavar="NAME")]
RunNetworkOption = Annotated[
    str | None,
    data("--network", help="Your code of the run's network: python:package.module:build or FILE.py:build.", metavar="CODE"),
]
SEED = {"help": "Random seed.", "min": 0, "show_default": "0"}
SeedOption = Annotated[int | None, playing(**SEED)]
LearningSeedOption = Annotated[int | None, learning(**SEED)]
DataSeedOption = Annotated[int | None, data(**SEED)]
EpisodesOption = Annotated[int | None, how_long("--episodes", "-n", help="Number of episodes.", min=1)]
StepsOption = Annotated[int | None, how_long(help="The fewest whole episodes with at least N steps.", min=1)]
LimitOption = Annotated[int | None, how_long(help="Stop after this many episodes.", min=1)]
WorkersOption = Annotated[int, where(help="Files read in parallel, or workers of an --engine other than local.", min=1)]
DeviceOption = Annotated[
    c.Device | None, where(help="Device of the network; auto uses a GPU if there is one.", show_default="auto")
]
OutOption = Annotated[str | None, output("--out", "-o", help="Folder or file to write: a path or URL.", metavar="OUT")]
RowFormatOption = Annotated[
    c.RowFormat | None,
    output(
        help="One row per episode, packed; or one row per step, for any Parquet tool.",
        show_default="the sources' format, else episodes",
    ),
]
CompressionOption = Annotated[
    c.Compression | None,
    output(help="Compression of the Parquet shards.", show_default="that of the dataset or sources, else zstd"),
]
AllowChangesOption = Annotated[
    bool, output("--allow-changes", help="Resume despite changed sources, package versions or options; the change is counted.")
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


# ---- groups of options (`takes=` of the decorator); their bodies are never called ----


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
            help="Storage setting for URLs, such as anon=true; values may be JSON. time_limit=SECONDS (default 60) ends a "
            "request without an answer. Repeatable.",
            callback=storage_pairs,
            metavar="KEY=VALUE",
        ),
    ] = NO_VALUES,
) -> None:
    """Options for URLs."""


def cached(
    cache: Annotated[str | None, storage(help="Local folder that caches data read from buckets.", metavar="DIR")] = None,
    cache_size: Annotated[
        Any,
        storage(help="Maximum size of --cache: 500MB, 50GiB.", parser=cache_bytes, metavar="SIZE", show_default="10GiB"),
    ] = None,
) -> None:
    """Options for caching remote data."""


def tables(
    from_: Annotated[
        str,
        data(
            "--from",
            help="Format of the recordings (convert --list-formats); auto detects it; python:package.module:Reader is your "
            "own.",
            metavar="FORMAT",
            autocompletion=completion.formats,
        ),
    ] = c.SOURCE_FORMAT,
    mapping: Annotated[
        str | None,
        data(
            help="Meaning of a table's columns: a TOML file, or a preset (rllib, gym-legacy, d4rl-table).",
            metavar="M",
            autocompletion=completion.mappings,
        ),
    ] = None,
    rows_as_episodes: Annotated[
        bool, data("--rows-as-episodes", help="Treat each row of a table as an episode of one step.")
    ] = False,
    episode_ends: Annotated[
        c.EpisodeEnds | None,
        data(
            help="Episode ends of a table without ids: at flags, where t decreases, or where new_obs differs from the next obs."
        ),
    ] = None,
    temp_dir: Annotated[
        str | None, where(help="Folder for rows that do not fit into memory.", metavar="FOLDER", show_default="the system's")
    ] = None,
    memory_limit: Annotated[
        str, where(help="Memory limit for a table, or one episode: 256MiB, 1GiB.", metavar="SIZE")
    ] = c.TABLE_MEMORY_LIMIT,
) -> None:
    """Options for reading recordings and tables."""


def environment(
    env_kwargs: Annotated[
        Any,
        playing(
            help="Arguments of the environment: a JSON object.",
            parser=json_object,
            metavar="JSON",
            show_default="those recorded with the data or run, if plain",
        ),
    ] = None,
    wrappers: Annotated[
        list[str],
        playing(
            "--wrapper",
            help="Wrapper of the environment, inner first: module:Class, or one of gymnasium.wrappers, with arguments: "
            "TimeLimit:max_episode_steps=30; none: no wrapper. Repeatable.",
            metavar="NAME:KEY=VALUE",
            show_default="those recorded with the data or run, if plain",
        ),
    ] = NO_VALUES,
) -> None:
    """Options for creating the environment."""


def engines(
    engine: Annotated[
        c.EngineName,
        where(help="Where work runs: in this process, in processes on this machine, or on a Ray cluster."),
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
    """Options for parallel work on data."""


def shards(
    max_rows_per_file: Annotated[int | None, output(help="Start a new shard after this many rows.", min=1)] = None,
    max_bytes_per_file: Annotated[
        int, output(help="Start a new shard after this many bytes, before compression.", min=1)
    ] = c.MAX_BYTES_PER_FILE,
) -> None:
    """Options for shard sizes."""


def resuming(
    resume: Annotated[bool, output("--resume", help="Resume an interrupted run of the same command.")] = False,
    force_unlock: Annotated[
        bool, output("--force-unlock", help="With --resume: take over the lock of a dead writer on another machine.")
    ] = False,
) -> None:
    """Options for resuming."""


def writing(
    overwrite: Annotated[bool, output("--overwrite", help="Replace an earlier output of this kind at --out.")] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Options of commands that write."""


def acting(
    seed: SeedOption = 0,
    explore: Annotated[
        bool, playing("--explore/--no-explore", help="Sample actions instead of taking the most likely.")
    ] = False,
    env_to_module: Annotated[
        str | None,
        playing(
            help="Pipeline file for observations: env-to-module or learner. Default: the run's own pieces.",
            metavar="FILE",
        ),
    ] = None,
    module_to_env: Annotated[str | None, playing(help="Pipeline file for actions: module-to-env.", metavar="FILE")] = None,
    lookback: Annotated[
        int | None, playing(help="Keep at least N past steps for connectors.", min=1, show_default="all of them")
    ] = None,
    trust_pickle: Annotated[
        bool, playing("--trust-pickle", help="Load an RLlib checkpoint (rllib:FOLDER), a pickle that can run any code.")
    ] = False,
    plugins: PluginsOption = NO_VALUES,
    network: RunNetworkOption = None,
    num_envs: Annotated[int, where(help="Parallel environments per runner.", min=1)] = 16,
    num_env_runners: Annotated[int, where(help="Processes that play; 0: this one.", min=0)] = 0,
    device: DeviceOption = "auto",
) -> None:
    """Options for playing a policy."""


def operation(
    env: SpacesOfOption = None,
    action_scale: ActionScaleOption = None,
    on_error: OnErrorOption = "fail",
    format: RowFormatOption = None,
    compression: CompressionOption = None,
) -> None:
    """Options of operations on datasets."""


OPERATION = (operation, tables, environment, engines, stored, cached, shards, resuming, writing, common)
