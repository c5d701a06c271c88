"""`offline-cli record`: plays a policy and writes its episodes down; parses, calls the library once, shows the result."""

from __future__ import annotations

import typer

from offline_cli.cli import render
from offline_cli.cli.command_line import Command
from offline_cli.cli.progress import working
from offline_cli.options.playing import RecordFlags, RecordOptions

__all__ = ["COMMAND"]


def run(ctx: typer.Context, flags: RecordFlags, options: RecordOptions) -> None:
    """Play a policy and record whole episodes.

    Episodes are those that begin first, each to its own end. Ctrl-C commits what is whole, within 10 s; --resume continues.
    """
    from offline_cli.recording.record import record

    with working(quiet=flags["quiet"]) as on_progress:
        result = record(flags["env"], flags["out"], **options, on_progress=on_progress, command=ctx.obj.recorded())
    render.show(result, as_json=flags["as_json"])


COMMAND = Command(
    name="record",
    run=run,
    flags=RecordFlags,
    options=RecordOptions,
    first=("out", "policy", "episodes", "steps", "num_envs"),
    examples=(
        "offline-cli record CartPole-v1 --out dataset --policy run --episodes 500 --num-envs 64",
        "offline-cli record Pendulum-v1 --out dataset --policy sb3:expert.zip --steps 100000 --num-env-runners 4",
        "offline-cli record my_envs:Robot-v0 --out dataset --policy python:my_code:policy --episodes 50 --format columns",
        "offline-cli record CartPole-v1 --out dataset --policy python:my_code:net --steps 5000 --env-to-module pieces.toml",
        "offline-cli record CartPole-v1 --out dataset --policy run --episodes 500 --num-envs 64 --resume",
    ),
    keys=("out", "episodes", "steps", "shards", "return_mean", "seconds", "steps_per_second"),
)
