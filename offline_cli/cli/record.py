"""`offline-cli record`: plays a policy and writes its episodes down; parses, calls the library once, shows the result."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer

from offline_cli.cli import options, render
from offline_cli.cli.progress import working
from offline_cli.errors import BadConfig

__all__ = ["EXAMPLES", "KEYS", "record"]

KEYS = ("out", "episodes", "steps", "shards", "return_mean", "seconds", "steps_per_second")
"""What `--json` prints at least, kept for good."""

EXAMPLES = options.examples(
    "offline-cli record CartPole-v1 --out dataset --policy run --episodes 500 --num-envs 64",
    "offline-cli record Pendulum-v1 --out dataset --policy sb3:expert.zip --steps 100000 --num-env-runners 4",
    "offline-cli record my_envs:Robot-v0 --out dataset --policy python:my_code:policy --episodes 50 --format columns",
    "offline-cli record CartPole-v1 --out dataset --policy python:my_code:net --steps 5000 --env-to-module pieces.toml",
    "offline-cli record CartPole-v1 --out dataset --policy run --episodes 500 --num-envs 64 --resume",
)


def record(
    ctx: typer.Context,
    env: Annotated[
        str, typer.Argument(metavar="ENV", help=f"Environment to play in: {options.ENV_FORMS}.", show_default=False)
    ],
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="D", help="Dataset folder to make: a path or URL.", show_default=False)
    ],
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            "-p",
            metavar="P",
            help="What plays: random, a run folder of train-bc, sb3:FILE (loading one runs the pickled code in it), "
            "or python:package.module:attribute.",
            show_default=False,
        ),
    ],
    episodes: Annotated[
        int | None, typer.Option("--episodes", "-n", min=1, metavar="N", help="Episodes to record; excludes --steps.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, metavar="N", help="Record the fewest whole episodes that have so many steps."),
    ] = None,
    format: Annotated[
        Literal["episodes", "columns"],
        typer.Option(
            "--format",
            metavar="episodes|columns",
            help="One row per episode, packed; or one row per step, for any Parquet tool.",
        ),
    ] = "episodes",
    num_envs: Annotated[int, typer.Option("--num-envs", min=1, metavar="N", help="Copies played at a time, per runner.")] = 16,
    num_env_runners: Annotated[
        int, typer.Option("--num-env-runners", min=0, metavar="N", help="Processes that play; 0: this one does.")
    ] = 0,
    vectorize: Annotated[
        Literal["auto", "sync", "async", "vector_entry_point"],
        typer.Option(
            "--vectorize",
            metavar="auto|sync|async|vector_entry_point",
            help="Copies in turn, a process each, or the environment's own vector class, which auto takes where there is one "
            "with the same spaces. With the first two, episodes do not depend on --num-envs and --num-env-runners.",
        ),
    ] = "auto",
    max_rows_per_file: Annotated[
        int | None, typer.Option("--max-rows-per-file", min=1, metavar="N", help="Begin a new shard after this many rows.")
    ] = None,
    max_bytes_per_file: Annotated[
        int | None,
        typer.Option(
            "--max-bytes-per-file",
            min=1,
            metavar="N",
            help="Begin a new shard after this many bytes, before compression. Default: 134217728.",
        ),
    ] = None,
    compression: Annotated[
        Literal["zstd", "snappy", "gzip", "brotli", "lz4", "none"],
        typer.Option("--compression", metavar="zstd|snappy|gzip|brotli|lz4|none", help="Compression of the Parquet shards."),
    ] = "zstd",
    explore: Annotated[
        bool, typer.Option("--explore/--no-explore", help="Sample actions instead of taking the likeliest.")
    ] = False,
    seed: Annotated[int, options.SEED] = 0,
    first_episode: Annotated[
        int,
        typer.Option(
            "--first-episode",
            min=0,
            metavar="I",
            help="Index of the first episode: --first-episode 7 -n 1 plays that one again.",
        ),
    ] = 0,
    env_kwargs: Annotated[
        str | None, typer.Option("--env-kwargs", metavar="JSON", help="Arguments to make the environment with: a JSON object.")
    ] = None,
    wrapper: Annotated[
        list[str] | None,
        typer.Option(
            "--wrapper",
            metavar="W",
            help="Wrapper around the environment: module:Class, or one of gymnasium.wrappers; may be repeated, inner first.",
            show_default=False,
        ),
    ] = None,
    env_to_module: options.EnvToModule = None,
    module_to_env: options.ModuleToEnv = None,
    lookback: options.Lookback = None,
    step_timeout: Annotated[
        float | None,
        typer.Option(
            "--step-timeout",
            metavar="SECONDS",
            help="End with exit code 3, whole episodes kept, where a step or reset of the environment takes longer. "
            "Default: no limit.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[options.DeviceName, options.DEVICE] = "auto",
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check options, environment and policy, write nothing.")] = False,
    storage_option: options.StorageOptions = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Play a policy and record whole episodes.

    Episodes are those that begin first, each to its own end. Ctrl-C commits what is whole, within 10 s; --resume goes on.
    """
    kwargs = _object(env_kwargs)
    from offline_cli.recording.record import record as record_episodes

    with working(quiet=quiet) as on_progress:
        result = record_episodes(
            env,
            out,
            policy=policy,
            episodes=episodes,
            steps=steps,
            format=format,
            num_envs=num_envs,
            num_env_runners=num_env_runners,
            vectorize=vectorize,
            max_rows_per_file=max_rows_per_file,
            max_bytes_per_file=max_bytes_per_file,
            compression=compression,
            explore=explore,
            seed=seed,
            first_episode=first_episode,
            env_kwargs=kwargs,
            wrappers=wrapper or (),
            env_to_module=env_to_module,
            module_to_env=module_to_env,
            lookback=lookback,
            step_timeout=step_timeout,
            device=device,
            resume=resume,
            overwrite=overwrite,
            dry_run=dry_run,
            storage_options=options.storage_options(storage_option),
            on_progress=on_progress,
            command=ctx.obj.recorded(),
        )
    render.show(result, as_json=as_json)


def _object(text: str | None) -> dict[str, Any]:
    fix = """for example --env-kwargs '{"gravity": 9.8}'"""
    try:
        found = json.loads(text or "{}")
    except ValueError as err:
        raise BadConfig(f"no JSON: {err}", where="--env-kwargs", fix=fix) from err
    if not isinstance(found, dict):
        raise BadConfig(f"{type(found).__name__}, no JSON object", where="--env-kwargs", fix=fix)
    return found
