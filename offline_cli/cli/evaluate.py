"""`offline-cli evaluate`: plays a trained policy; parses, calls the library once, shows the result."""

from __future__ import annotations

from typing import Annotated

import typer

from offline_cli.cli import options, render
from offline_cli.cli.progress import working

__all__ = ["EXAMPLES", "KEYS", "evaluate"]

KEYS = ("episodes", "return_mean", "return_std", "return_ci95", "length_mean")
"""What `--json` prints at least, kept for good."""

EXAMPLES = options.examples(
    "offline-cli evaluate run --env CartPole-v1 --episodes 100",
    "offline-cli evaluate run --min-return 450 --json",
    "offline-cli evaluate run --explore --seed 7",
    "offline-cli evaluate run --env-to-module pipeline.toml",
)


def evaluate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder that train-bc made.", show_default=False)],
    env: options.Environment = None,
    episodes: Annotated[int, typer.Option("--episodes", "-n", min=1, metavar="N", help="Episodes to play.")] = 100,
    seed: Annotated[int, options.SEED] = 0,
    explore: Annotated[bool, typer.Option("--explore", help="Sample actions instead of taking the likeliest.")] = False,
    min_return: Annotated[
        float | None, typer.Option("--min-return", metavar="R", help="Fail with exit code 7 if the mean return is below R.")
    ] = None,
    env_to_module: options.EnvToModule = None,
    module_to_env: options.ModuleToEnv = None,
    lookback: options.Lookback = None,
    device: Annotated[options.DeviceName, options.DEVICE] = "auto",
    storage_option: options.StorageOptions = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Play a trained policy and measure its return.

    Episodes are those that start first, all played to their end; the mean comes with a 95% confidence interval.
    A policy that was trained with --pipeline plays between those of its pieces that belong beside an environment, as they were
    after training. Of a run that is not finished the last checkpoint plays, and a note says so.
    """
    from offline_cli.training.evaluate import evaluate as evaluate_run

    with working(quiet=quiet) as on_progress:
        result = evaluate_run(
            run,
            env=env,
            episodes=episodes,
            seed=seed,
            explore=explore,
            min_return=min_return,
            env_to_module=env_to_module,
            module_to_env=module_to_env,
            lookback=lookback,
            device=device,
            storage_options=options.storage_options(storage_option),
            on_progress=on_progress,
        )
    render.show(result, as_json=as_json)
