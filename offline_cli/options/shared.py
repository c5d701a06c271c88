"""Options that several commands share, as TypedDicts to inherit; or as declarations, where only the type differs."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Required, TypedDict

from offline_cli.options.option import Form, Group, Option

if TYPE_CHECKING:
    from offline_cli.connectors.pipeline_spec import Given

__all__ = [
    "COMPRESSION",
    "DEVICE",
    "ENV_FORMS",
    "EXTRAS",
    "MAX_BYTES",
    "MEMORY_LIMIT",
    "ROW_FORMAT",
    "SEED",
    "SOURCE_FORMAT",
    "Acting",
    "ActionScale",
    "Caching",
    "Compression",
    "Device",
    "DryRun",
    "Environment",
    "EnvironmentParts",
    "EpisodeEnds",
    "Extras",
    "Limit",
    "MappedTables",
    "Out",
    "Overwriting",
    "OwnNetwork",
    "Plugins",
    "Resuming",
    "RowFormat",
    "Scale",
    "ShardSizes",
    "Shards",
    "Showing",
    "SourceFormat",
    "Sources",
    "Storage",
    "Tables",
    "TempDir",
]

ENV_FORMS: Final = "a gymnasium id, module:EnvId or python:package.module:make_env"
FROM_DATA: Final = "those in the manifest, or run folder, of the same environment, where they are plain"

Compression = Literal["zstd", "snappy", "gzip", "brotli", "lz4", "none"]
Device = Literal["auto", "cpu", "cuda"]
EpisodeEnds = Literal["flags", "t", "chain"]
Extras = Literal["union", "common", "drop"]
RowFormat = Literal["episodes", "columns"]
Scale = Literal["env", "normalized"]

ROW_FORMAT: Final = Option(
    help="One row per episode, packed; or one row per step, for any Parquet tool.", group=Group.OUTPUT, default="episodes"
)
COMPRESSION: Final = Option(help="Compression of the Parquet shards.", group=Group.OUTPUT, default="zstd")
MAX_BYTES: Final = Option(
    help="Begin a new shard after this many bytes, before compression.",
    group=Group.OUTPUT,
    default=128 << 20,
    minimum=1,
    metavar="N",
)
EXTRAS: Final = Option(
    help="Extra model outputs that are kept: all, which every source has to have; those that all have in one form; or none.",
    group=Group.DATA,
    default="union",
)
MEMORY_LIMIT: Final = Option(
    help="Memory that the process may take for a table, or one episode: 256MiB, 1GiB.",
    group=Group.WHERE,
    default="1GiB",
    form=Form.SIZE,
    metavar="SIZE",
)
SOURCE_FORMAT: Final = Option(
    help="Format of the recordings: auto looks at their content, not at file names; or the name of a reader, or one's own "
    "python:package.module:Reader.",
    group=Group.DATA,
    default="auto",
    flag="--from",
    metavar="auto|episodes|columns|sample-batch|minari|d4rl|robomimic|d3rlpy|table|npz|ogbench|imitation|lerobot|NAME",
)
SEED: Final = Option(
    help="Random seed.",
    group=Group.PLAYING,
    default=0,
    minimum=0,
    in_config=True,
    metavar="N",
)
KEEP_INVENTED: Final = Option(
    help="Keep last steps whose next observation was not recorded, with a copy of the one before in its place: what is learned "
    "from next observations or their values leaves such steps out.",
    group=Group.DATA,
    default=False,
    in_config=True,
)
DEVICE: Final = Option(
    help="Where the network runs; auto takes a GPU if there is one.", group=Group.WHERE, default="auto", in_config=True
)


class Sources(TypedDict, total=False):
    """Recordings, by their place on the command line."""

    sources: Required[
        Annotated[
            list[str],
            Option(
                help="Recordings: folders, files or globs, as paths or URLs (s3://, gs://, az://); - for piped input.",
                group=Group.DATA,
                is_argument=True,
                metavar="SRC",
            ),
        ]
    ]


class SourceFormat(TypedDict, total=False):
    """What the recordings are."""

    from_: Annotated[str, SOURCE_FORMAT]


class TempDir(TypedDict, total=False):
    """Room on disk."""

    temp_dir: Annotated[
        str | os.PathLike[str] | None,
        Option(
            help="Folder for rows of a table that do not fit into memory.",
            group=Group.WHERE,
            without="the system's",
            form=Form.FILE,
            metavar="FOLDER",
        ),
    ]


class MappedTables(SourceFormat, TempDir, total=False):
    """Recordings that may be tables of other programs."""

    mapping: Annotated[
        str | os.PathLike[str] | Mapping[str, Any] | None,
        Option(
            help="What the columns of a table mean: a TOML file, or a preset (rllib, gym-legacy, d4rl-table).",
            group=Group.DATA,
            form=Form.FILE,
            metavar="M",
        ),
    ]
    rows_as_episodes: Annotated[
        bool, Option(help="Treat each row of a table as an episode of one step.", group=Group.DATA, default=False)
    ]
    episode_ends: Annotated[
        EpisodeEnds | None,
        Option(
            help="Where episodes end in a table without ids: at flags, where t falls back, where new_obs is not the next obs.",
            group=Group.DATA,
        ),
    ]


class Tables(MappedTables, total=False):
    """The same, within a limit of memory of their own."""

    memory_limit: Annotated[int | str, MEMORY_LIMIT]


class EnvironmentParts(TypedDict, total=False):
    """How an environment is made."""

    env_kwargs: Annotated[
        Mapping[str, Any] | None,
        Option(
            help="Arguments to make the environment with: a JSON object.",
            group=Group.PLAYING,
            without=FROM_DATA,
            in_config=True,
            form=Form.JSON,
            example='{"gravity": 9.8}',
            metavar="JSON",
        ),
    ]
    wrappers: Annotated[
        Sequence[str] | None,
        Option(
            help="Wrappers around the environment, inner first: module:Class, or one of gymnasium.wrappers, with arguments "
            "as in TimeLimit:max_episode_steps=30; none: without.",
            group=Group.PLAYING,
            without=FROM_DATA,
            in_config=True,
            form=Form.NAMES,
            flag="--wrapper",
            metavar="NAME[:key=value,...]",
        ),
    ]


class Environment(EnvironmentParts, total=False):
    """An environment by name."""

    env: Annotated[
        str | None,
        Option(help=f"Environment to play in: {ENV_FORMS}.", group=Group.DATA, in_config=True, metavar="ENV"),
    ]


class ActionScale(TypedDict, total=False):
    """How recorded actions are to be read."""

    action_scale: Annotated[
        Scale | None,
        Option(
            help="Scale of recorded Box actions: the environment's own, or [-1, 1].",
            group=Group.DATA,
            without="what the source declares",
            in_config=True,
        ),
    ]


class Limit(TypedDict, total=False):
    """The beginning of the data alone."""

    limit: Annotated[int | None, Option(help="Stop after this many episodes.", group=Group.HOW_LONG, minimum=1, metavar="N")]


class Acting(TypedDict, total=False):
    """How a policy plays."""

    seed: Annotated[int, SEED]
    explore: Annotated[
        bool,
        Option(
            help="Sample actions instead of taking the likeliest.",
            group=Group.PLAYING,
            default=False,
            flag="--explore",
            negative="--no-explore",
        ),
    ]
    env_to_module: Annotated[
        "Given",
        Option(
            help="Pipeline file (TOML) of pieces between observations and network; of a learner's, the pieces for both sides. "
            "A run that was trained through pieces brings its own.",
            group=Group.PLAYING,
            form=Form.FILE,
            metavar="FILE",
        ),
    ]
    module_to_env: Annotated[
        "Given",
        Option(
            help="Pipeline file (TOML) of pieces between network and actions.",
            group=Group.PLAYING,
            form=Form.FILE,
            metavar="FILE",
        ),
    ]
    lookback: Annotated[
        int | None,
        Option(
            help="Steps of an episode that pieces can look back on at least, which bounds memory.",
            group=Group.PLAYING,
            without="all of it",
            minimum=1,
            metavar="N",
        ),
    ]
    device: Annotated[Device, DEVICE]


class Storage(TypedDict, total=False):
    """What is behind URLs."""

    storage_options: Annotated[
        Mapping[str, Any] | None,
        Option(
            help="Settings for the storage behind URLs, such as anon=true. time_limit=SECONDS, 60 unless given, ends a "
            "request that gets no answer (docs/storage.md).",
            as_text="Values that are JSON are read as such.",
            group=Group.STORAGE,
            form=Form.PAIRS,
            flag="--storage-option",
            metavar="KEY=VALUE",
        ),
    ]


class Plugins(TypedDict, total=False):
    """Code of other packages."""

    plugins: Annotated[
        Sequence[str],
        Option(
            help="Packages whose algorithms, networks and pieces may be imported because a run folder names them "
            "(docs/algorithms.md).",
            group=Group.DATA,
            default=(),
            form=Form.NAMES,
            flag="--plugin",
            metavar="NAME",
        ),
    ]


class OwnNetwork(TypedDict, total=False):
    """Code of the user's own that a run folder may name."""

    network: Annotated[
        str | None,
        Option(
            help="Code of the run's network, where the run was trained with {network}: python:package.module:build, or "
            "FILE.py:build.",
            group=Group.DATA,
            metavar="CODE",
        ),
    ]


class Caching(TypedDict, total=False):
    """A cache of what is read; in Python, two of the storage options."""

    cache: Annotated[
        str | None,
        Option(
            help="Local folder that caches what is read from s3://, gs:// and az:// for the next run; any number of processes "
            "may share it.",
            group=Group.STORAGE,
            metavar="DIR",
        ),
    ]
    cache_size: Annotated[
        str | None,
        Option(
            help="Bytes that {cache} may take: 500MB, 50GiB.",
            group=Group.STORAGE,
            without="10GiB",
            form=Form.SIZE,
            metavar="SIZE",
        ),
    ]


class ShardSizes(TypedDict, total=False):
    """How large the files of a dataset become."""

    max_rows_per_file: Annotated[
        int | None, Option(help="Begin a new shard after this many rows.", group=Group.OUTPUT, minimum=1, metavar="N")
    ]
    max_bytes_per_file: Annotated[int, MAX_BYTES]


class Shards(ShardSizes, total=False):
    """Files of a dataset."""

    compression: Annotated[Compression, COMPRESSION]


class Resuming(TypedDict, total=False):
    """Work that was interrupted."""

    resume: Annotated[bool, Option(help="Resume an interrupted run of the same command.", group=Group.OUTPUT, default=False)]
    force_unlock: Annotated[
        bool,
        Option(
            help="With {resume}: take over from a writer on another machine, which has ended as you know.",
            group=Group.OUTPUT,
            default=False,
        ),
    ]


class AllowingChanges(TypedDict, total=False):
    """Code that is not the one of before."""

    allow_changes: Annotated[
        bool,
        Option(
            help="Resume although source files, package versions or options are others than before; the changes are counted.",
            group=Group.OUTPUT,
            default=False,
        ),
    ]


class Overwriting(TypedDict, total=False):
    """A place where something is."""

    overwrite: Annotated[
        bool, Option(help="Replace what an earlier command of this kind left at {out}.", group=Group.OUTPUT, default=False)
    ]


class DryRun(TypedDict, total=False):
    """Work that is not done."""

    dry_run: Annotated[bool, Option(help="Check everything, write nothing.", group=Group.OUTPUT, default=False)]


class Out(TypedDict, total=False):
    """A folder to make."""

    out: Required[
        Annotated[str, Option(help="Dataset folder to make: a path or URL.", group=Group.OUTPUT, short="-o", metavar="D")]
    ]


class Showing(TypedDict, total=False):
    """How a command shows its result."""

    as_json: Annotated[
        bool,
        Option(help="Print one JSON object and nothing else on stdout.", group=Group.OUTPUT, default=False, flag="--json"),
    ]
    quiet: Annotated[bool, Option(help="Show no progress on stderr.", group=Group.OUTPUT, default=False)]
    debug: Annotated[bool, Option(help="Show the traceback of a failure.", group=Group.OUTPUT, default=False)]
