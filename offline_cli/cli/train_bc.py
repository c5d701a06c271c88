"""`offline-cli train-bc`: a policy that imitates recordings; parses, calls the library once, shows the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from offline_cli.byte_sizes import byte_size
from offline_cli.cli import options, render
from offline_cli.cli.progress import working
from offline_cli.cli.stdin import with_stdin

__all__ = ["EXAMPLES", "KEYS", "train_bc"]

KEYS = ("run", "updates", "epochs", "seconds", "samples_per_second", "loss", "val_loss", "eval_return_mean")
"""What `--json` prints at least, kept for good."""

EXAMPLES = options.examples(
    "offline-cli train-bc dataset --out run --env CartPole-v1 --until-return 450",
    "offline-cli train-bc dataset --out run --val-fraction 0.1 --patience 5",
    "offline-cli train-bc dataset --out run --updates 20000 --device cuda --json",
    "offline-cli train-bc dataset --out run --env CartPole-v1 --pipeline pipeline.toml",
    "offline-cli train-bc dataset --out run --module-id attacker",
    "offline-cli train-bc s3://bucket/dataset --out run --streaming --memory-limit 2GiB --temp-dir /scratch",
    "offline-cli train-bc dataset --out run --resume",
    "offline-cli train-bc dataset --out run --resume --epochs 400",
    "offline-cli train-bc s3://bucket/dataset --out s3://bucket/run",
)


def train_bc(
    ctx: typer.Context,
    sources: options.Sources,
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="RUN", help="Run folder to make: a path or a URL.", show_default=False)
    ],
    env: options.Environment = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="TOML file with these options and the network's (keys: docs/config.md); what is given here wins.",
        ),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            "--pipeline",
            metavar="FILE",
            help="Pipeline file of kind learner (docs/connectors.md), through which the policy learns and plays.",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, metavar="N", help="Steps per update. Default: 1024.")] = None,
    lr: Annotated[float | None, typer.Option(metavar="RATE", help="Learning rate of Adam. Default: 0.0005.")] = None,
    updates: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after this many updates; excludes --epochs.")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Stop after this many passes over the data. Default: 20, or 200 with --until-return or --patience.",
        ),
    ] = None,
    until_return: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            help="Stop once the mean return, confirmed on 100 fresh episodes, is at least R; else exit code 7. Needs --env.",
        ),
    ] = None,
    val_fraction: Annotated[
        float | None,
        typer.Option(metavar="F", help="Share of the episodes held out to measure on, between 0 and 1. Default: none."),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Stop after this many checks without a better held-out loss. Needs --val-fraction."
        ),
    ] = None,
    eval_every: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Updates between two checks. Default: an epoch, but from 100 to 1000."),
    ] = None,
    eval_episodes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Episodes played per check, greedily. Default: 20.")
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Updates between two checkpoints. Default: 500.")
    ] = None,
    device: Annotated[options.DeviceName | None, options.DEVICE] = None,
    precision: Annotated[
        Literal["auto", "fp32", "bf16"] | None,
        typer.Option(metavar="auto|fp32|bf16", help="Arithmetic of the network; weights are always fp32. Default: auto."),
    ] = None,
    seed: Annotated[int | None, options.SEED] = None,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check options, environment and all data, write nothing.")] = False,
    from_: options.FromFormat = "auto",
    module_id: Annotated[
        str | None,
        typer.Option(
            "--module-id",
            metavar="NAME",
            help="Learn from the episodes of this module; needed where the data holds several.",
            show_default=False,
        ),
    ] = None,
    action_scale: options.ActionScale = None,
    streaming: Annotated[
        bool,
        typer.Option(
            "--streaming", help="Keep the steps on disk while training, and in memory only what --memory-limit allows."
        ),
    ] = False,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit",
            metavar="SIZE",
            help="Memory that the process may take: 512MiB, 4GiB. Default: 1GiB with --streaming (on a GPU 4GiB), else any.",
        ),
    ] = None,
    temp_dir: Annotated[
        str | None, typer.Option("--temp-dir", metavar="FOLDER", help="Where --streaming keeps the steps.", show_default=False)
    ] = None,
    cache: options.CacheFolder = None,
    cache_size: options.CacheSize = None,
    storage_option: options.StorageOptions = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Train a policy to imitate recordings (behaviour cloning).

    The run folder holds the resolved configuration, the policy, what the pieces of --pipeline learned, metrics, a curve and
    what --resume needs to go on exactly where the run stopped. What is not given comes from --config, else from the run that
    is resumed; --pipeline, --module-id and an --env that is code (module:EnvId, python:...) have to be named again. Only
    --epochs or --updates may change on the way: a resumed run is the one that would have had them from the start, also where
    they are reached already.
    """
    from offline_cli.training.bc import train_bc as train

    with with_stdin(sources) as places, working(quiet=quiet) as on_progress:
        result = train(
            places,
            out,
            env=env,
            config=config,
            pipeline=pipeline,
            batch_size=batch_size,
            lr=lr,
            updates=updates,
            epochs=epochs,
            until_return=until_return,
            val_fraction=val_fraction,
            patience=patience,
            eval_every=eval_every,
            eval_episodes=eval_episodes,
            checkpoint_every=checkpoint_every,
            device=device,
            precision=precision,
            seed=seed,
            resume=resume,
            overwrite=overwrite,
            dry_run=dry_run,
            from_=from_,
            module_id=module_id,
            action_scale=action_scale,
            streaming=streaming or None,
            memory_limit=None if memory_limit is None else byte_size(memory_limit, option="--memory-limit"),
            temp_dir=temp_dir,
            storage_options=options.storage_options(storage_option, cache=cache, cache_size=cache_size),
            on_progress=on_progress,
            command=ctx.obj.recorded(),
        )
    render.show(result, as_json=as_json, summary=_measured)


def _measured(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rows that this run has: what was not asked for is not measured."""
    return {name: value for name, value in told.items() if value is not None and value not in ([], {})}
