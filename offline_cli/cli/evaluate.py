"""`offline-cli evaluate`: plays a trained policy; parses, calls the library once, shows the result."""

from __future__ import annotations

import typer

from offline_cli.cli import render
from offline_cli.cli.command_line import Command
from offline_cli.cli.progress import working
from offline_cli.options.playing import EvaluateFlags, EvaluateOptions

__all__ = ["COMMAND"]


def run(ctx: typer.Context, flags: EvaluateFlags, options: EvaluateOptions) -> None:
    """Play a trained policy and measure its return.

    Episodes are those that start first, all played to their end; the mean comes with a 95% confidence interval.
    A policy that was trained with --pipeline plays between those of its pieces that belong beside an environment, as they were
    after training. The result is the same for any --num-envs and --num-env-runners. Of a run that is not finished the last
    checkpoint plays, and a note says so.
    """
    from offline_cli.playing.evaluate import evaluate

    with working(quiet=flags["quiet"]) as on_progress:
        result = evaluate(flags["run"], **options, on_progress=on_progress)
    render.show(result, as_json=flags["as_json"])


COMMAND = Command(
    name="evaluate",
    run=run,
    flags=EvaluateFlags,
    options=EvaluateOptions,
    first=("env", "episodes", "seed", "explore", "min_return"),
    examples=(
        "offline-cli evaluate run --env CartPole-v1 --episodes 100",
        "offline-cli evaluate run --min-return 450 --json",
        "offline-cli evaluate run --explore --seed 7",
        "offline-cli evaluate run --env-to-module pipeline.toml",
    ),
    keys=("episodes", "return_mean", "return_std", "return_ci95", "length_mean"),
)
