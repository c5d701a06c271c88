"""`offline-cli validate`: what is wrong with recordings or datasets; parses, calls the library once, shows the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from offline_cli.byte_sizes import byte_size
from offline_cli.cli import options, render
from offline_cli.cli.progress import working
from offline_cli.cli.stdin import with_stdin

__all__ = ["EXAMPLES", "KEYS", "validate"]

KEYS = ("problems",)
"""What `--json` prints at least, kept for good; of a failure too, beside `error` and `exit_code`."""

EXAMPLES = options.examples(
    "offline-cli validate dataset",
    "offline-cli validate dataset --deep --strict",
    "offline-cli validate dataset --strict --allow-lost",
    "offline-cli validate recordings/ --env CartPole-v1 --json",
    "offline-cli validate robot.csv --mapping robot.toml",
)


def validate(
    sources: options.Sources,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on warnings too, not on errors alone.")] = False,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Look closer at a dataset, which reads it twice: footers, rows set aside, open uploads."),
    ] = False,
    allow_lost: Annotated[
        bool,
        typer.Option(
            "--allow-lost", help="Episodes that were lost when a dataset was written are a note, also under --strict."
        ),
    ] = False,
    from_: options.FromFormat = "auto",
    env: Annotated[
        str | None,
        typer.Option("--env", metavar="ENV", help=f"Environment whose spaces the data must fit: {options.ENV_FORMS}."),
    ] = None,
    action_scale: options.ActionScale = None,
    mapping: options.TableMapping = None,
    rows_as_episodes: options.RowsAsEpisodes = False,
    episode_ends: options.EpisodeEnds = None,
    temp_dir: options.TempDir = None,
    memory_limit: options.MemoryLimit = "1GiB",
    storage_option: options.StorageOptions = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Look for everything that can be wrong with recordings or datasets.

    Nothing is changed. Exit code 3 where there is an error; warnings are what reading repairs or bears.
    """
    from offline_cli.datasets.validate import validate as validate_sources

    with with_stdin(sources) as places, working(quiet=quiet) as on_progress:
        result = validate_sources(
            places,
            strict=strict,
            deep=deep,
            allow_lost=allow_lost,
            from_=from_,
            env=env,
            action_scale=action_scale,
            mapping=mapping,
            rows_as_episodes=rows_as_episodes,
            episode_ends=episode_ends,
            temp_dir=temp_dir,
            memory_limit=byte_size(memory_limit, option="--memory-limit"),
            storage_options=options.storage_options(storage_option),
            on_progress=on_progress,
        )
    if result.passed or not as_json:  # a failure under --json is one object, which the error boundary writes
        render.show(result, as_json=as_json, summary=lambda told: list(_rows(told)))
    result.check()


def _hashes(unchecked: int) -> str:
    whose = "that of 1 shard" if unchecked == 1 else f"those of {unchecked:,} shards"
    return f"{whose} not compared: see what is wrong with them"


def _rows(told: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Figures, then each problem in three lines."""
    yield "sources", told["sources"]
    yield "format", told["formats"]
    yield "episodes", told["episodes"]
    yield "steps", told["steps"]
    if told["hashes_unchecked"]:
        yield "hashes", _hashes(told["hashes_unchecked"])
    for problem in told["problems"]:
        text = render.Lines((problem["what"], f"at:  {problem['where']}", f"try: {problem['fix']}"))
        yield f"{problem['severity']}: {problem['code']}", text
    yield "found", {name: told[name] for name in ("errors", "warnings", "notes")}
