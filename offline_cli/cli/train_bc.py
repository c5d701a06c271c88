"""`offline-cli train-bc`: a policy that imitates recordings; parses, calls the library once, shows the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from offline_cli.cli import render
from offline_cli.cli.command_line import Command
from offline_cli.cli.progress import working
from offline_cli.cli.texts import with_stdin
from offline_cli.options.cloning import TrainBCFlags, TrainBCOptions

__all__ = ["COMMAND"]


def run(ctx: typer.Context, flags: TrainBCFlags, options: TrainBCOptions) -> None:
    """Train a policy to imitate recordings (behaviour cloning).

    The run folder holds the resolved configuration, the policy, what the pieces of --pipeline learned, metrics, a curve and
    what --resume needs to continue exactly where the run stopped. What is not given comes from --config, else from the run that
    is resumed; --pipeline, --module-id and an --env that is code (module:EnvId, python:...) have to be named again. Only
    --epochs or --updates may change on the way: a resumed run is the one that would have had them from the start, also where
    they are reached already.
    """
    from offline_cli.training.bc import train_bc

    with with_stdin(flags["sources"]) as places, working(quiet=flags["quiet"]) as on_progress:
        result = train_bc(places, flags["out"], **options, on_progress=on_progress, command=ctx.obj.recorded())
    render.show(result, as_json=flags["as_json"], summary=_measured)


COMMAND = Command(
    name="train-bc",
    run=run,
    flags=TrainBCFlags,
    options=TrainBCOptions,
    first=("out", "env", "until_return", "val_fraction", "resume"),
    examples=(
        "offline-cli train-bc dataset --out run --env CartPole-v1 --until-return 450",
        "offline-cli train-bc dataset --out run --val-fraction 0.1 --patience 5",
        "offline-cli train-bc dataset --out run --updates 20000 --device cuda --json",
        "offline-cli train-bc dataset --out run --env CartPole-v1 --pipeline pipeline.toml",
        "offline-cli train-bc dataset --out run --module-id attacker",
        "offline-cli train-bc s3://bucket/dataset --out run --streaming --memory-limit 2GiB --temp-dir /scratch",
        "offline-cli train-bc dataset --out run --resume",
        "offline-cli train-bc dataset --out run --resume --epochs 400",
        "offline-cli train-bc s3://bucket/dataset --out s3://bucket/run",
    ),
    keys=("run", "updates", "epochs", "seconds", "samples_per_second", "loss", "val_loss", "eval_return_mean"),
)


def _measured(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rows of the table; what was not measured is left out."""
    return {name: value for name, value in told.items() if value is not None and value not in ([], {})}
