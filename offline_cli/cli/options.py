"""Options that several commands share, each described once; refuses values that cannot mean anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import typer

from offline_cli.byte_sizes import byte_size
from offline_cli.errors import UsageError

__all__ = [
    "DEVICE",
    "ENV_FORMS",
    "SEED",
    "ActionScale",
    "AsJson",
    "CacheFolder",
    "CacheSize",
    "Debug",
    "DeviceName",
    "EnvToModule",
    "Environment",
    "EpisodeEnds",
    "FromFormat",
    "Lookback",
    "MemoryLimit",
    "ModuleToEnv",
    "Overwrite",
    "Quiet",
    "Resume",
    "RowsAsEpisodes",
    "Sources",
    "StorageOptions",
    "TableMapping",
    "TempDir",
    "examples",
    "pairs",
    "storage_options",
]

_STORAGE_OPTION = "--storage-option"
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress on stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="Setting for the storage behind URLs, such as anon=true; may be repeated. Values that are JSON are read as such. "
        "time_limit=SECONDS ends a request that gets no answer (default: 60; docs/storage.md).",
        show_default=False,
    ),
]
CacheFolder = Annotated[
    str | None,
    typer.Option(
        "--cache",
        metavar="DIR",
        help="Local folder that keeps what is read of s3://, gs:// and az://, for the next run; any number of processes may "
        "share it.",
        show_default=False,
    ),
]
CacheSize = Annotated[
    str | None,
    typer.Option("--cache-size", metavar="SIZE", help="Bytes that --cache may take: 500MB, 50GiB. Default: 10GiB."),
]
Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SRC",
        help="Recordings: folders, files or globs, as paths or URLs (s3://, gs://, az://); - for what is piped in.",
        show_default=False,
    ),
]
FromFormat = Annotated[
    Literal["auto", "episodes", "columns", "sample-batch", "table"],
    typer.Option(
        "--from",
        metavar="auto|episodes|columns|sample-batch|table",
        help="Format of the recordings; auto looks at their content, not at file names.",
    ),
]
TableMapping = Annotated[
    str | None,
    typer.Option(
        "--mapping",
        metavar="M",
        help="What the columns of a table mean: a TOML file, or a preset (rllib, gym-legacy, d4rl-table).",
        show_default=False,
    ),
]
RowsAsEpisodes = Annotated[
    bool, typer.Option("--rows-as-episodes", help="Take each row of a table for an episode of one step.")
]
EpisodeEnds = Annotated[
    Literal["flags", "t", "chain"] | None,
    typer.Option(
        "--episode-ends",
        metavar="flags|t|chain",
        help="Where episodes end in a table without ids: at flags, where t falls back, where new_obs is not the next obs.",
        show_default=False,
    ),
]
TempDir = Annotated[
    str | None,
    typer.Option("--temp-dir", metavar="FOLDER", help="Where rows of a table wait that do not fit into memory."),
]
MemoryLimit = Annotated[
    str,
    typer.Option(
        "--memory-limit", metavar="SIZE", help="Memory that the process may take for a table, or one episode: 256MiB, 1GiB."
    ),
]
ENV_FORMS = "a gymnasium id, module:EnvId or python:package.module:make_env"
Environment = Annotated[
    str | None,
    typer.Option("--env", metavar="ENV", help=f"Environment to play in: {ENV_FORMS}."),
]
ActionScale = Annotated[
    Literal["env", "normalized"] | None,
    typer.Option(
        "--action-scale",
        metavar="env|normalized",
        help="Scale of recorded Box actions: the environment's own, or [-1, 1]. Default: what the source declares.",
    ),
]
EnvToModule = Annotated[
    str | None,
    typer.Option(
        "--env-to-module",
        metavar="FILE",
        help="Pipeline file (TOML) of pieces between observations and network; of a learner's, the pieces for both sides. "
        "A run that was trained through pieces brings its own.",
        show_default=False,
    ),
]
ModuleToEnv = Annotated[
    str | None,
    typer.Option(
        "--module-to-env",
        metavar="FILE",
        help="Pipeline file (TOML) of pieces between network and actions.",
        show_default=False,
    ),
]
Lookback = Annotated[
    int | None,
    typer.Option(
        "--lookback",
        min=1,
        metavar="N",
        help="Steps of an episode that pieces can look back on at least, which bounds memory. Default: all of it.",
    ),
]
DeviceName = Literal["auto", "cpu", "cuda"]
DEVICE = typer.Option("--device", metavar="auto|cpu|cuda", help="Where the network runs; auto takes a GPU if there is one.")
SEED = typer.Option("--seed", min=0, metavar="N", help="Seed of everything random.")
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run of the same command.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier command of this kind left at --out.")]


def pairs(given: Sequence[str] | None, *, option: str) -> dict[str, str]:
    """`["a=1", "b=x"]` as `{"a": "1", "b": "x"}`. Raises UsageError naming the ones that are not KEY=VALUE, or given twice."""
    found: dict[str, str] = {}
    for pair in given or ():
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{_shown(pair, option)} is not KEY=VALUE", where=option, fix=f"for example {option} key=value")
        if key.strip() in found:
            raise UsageError(f"{key.strip()} is given twice", where=option, fix="one value for each key")
        found[key.strip()] = value
    return found


def _shown(pair: str, option: str) -> str:
    """What was given; of a storage option, which may be a secret, the first letters."""
    return repr(pair) if option != _STORAGE_OPTION or len(pair) < 4 else repr(f"{pair[:3]}...")


def storage_options(
    given: Sequence[str] | None, *, cache: str | None = None, cache_size: str | None = None
) -> Mapping[str, Any] | None:
    """Storage options by name, None without any; `anon=true` is a bool, `key='"007"'` a string.

    `cache`, `cache_size`: as --cache and --cache-size give them, which win. Raises UsageError.
    """
    found = {key: _value(text) for key, text in pairs(given, option=_STORAGE_OPTION).items()}
    if cache is not None:
        found["cache"] = cache
    if cache_size is not None:
        found["cache_size"] = byte_size(cache_size, option="--cache-size")
        if "cache" not in found:
            raise UsageError("--cache-size without --cache", where="--cache-size", fix="name the folder with --cache DIR")
    return found or None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def examples(*lines: str) -> str:
    """The end of a command's help: `lines` as they are, neither joined nor wrapped."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
