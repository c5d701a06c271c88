"""`offline-cli record`, `evaluate`, `train`, `train-bc` and `export`: each parses, calls the library once, shows the result."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer

from offline_cli.cli import render
from offline_cli.cli.command_line import Command
from offline_cli.cli.progress import working
from offline_cli.cli.texts import with_stdin
from offline_cli.engines.ranks import is_first
from offline_cli.errors import OfflineCliError
from offline_cli.options.exporting import ExportFlags, ExportOptions
from offline_cli.options.playing import EvaluateFlags, EvaluateOptions, RecordFlags, RecordOptions
from offline_cli.options.training import TrainBCFlags, TrainBCOptions, TrainOptions

__all__ = ["COMMANDS"]


def record(ctx: typer.Context, flags: RecordFlags, options: RecordOptions) -> None:
    """Play a policy and record whole episodes.

    Episodes are those that begin first, each to its own end. Ctrl-C commits what is whole, within 10 s; --resume continues.
    """
    from offline_cli.recording.record import record

    try:
        with working(quiet=flags["quiet"]) as on_progress:
            result = record(flags["env"], flags["out"], **options, on_progress=on_progress, command=ctx.obj.recorded())
    except OfflineCliError as error:
        error.where = error.where.replace("--env ", "ENV ")  # which is no option here
        raise
    render.show(result, as_json=flags["as_json"], summary=_of_agents)


def _of_agents(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rows of the table, which name what is measured where there are several agents."""
    return _measured_on("agents' episodes", told) if told.get("games") is not None else told


def _measured_on(what: str, told: Mapping[str, Any]) -> Mapping[str, Any]:
    """`told`, with figures of returns and lengths, and the number of episodes, by what they are of."""
    names = {"episodes": what}
    names |= {name: f"{name} of {what}" for name in told if name.startswith(("return_", "length_"))}
    return {names.get(name, name): value for name, value in told.items()}


def evaluate(ctx: typer.Context, flags: EvaluateFlags, options: EvaluateOptions) -> None:
    """Play a trained policy and measure its return.

    Episodes are those that start first, all played to their end; the mean comes with a 95% confidence interval.
    A policy that was trained with --pipeline plays between those of its pieces that belong beside an environment, as they were
    after training. The same command gives the same result. Of a run that is not finished the last checkpoint plays, and a note
    says so.
    """
    from offline_cli.playing.evaluate import evaluate

    with working(quiet=flags["quiet"]) as on_progress:
        result = evaluate(flags["run"], **options, on_progress=on_progress)
    render.show(result, as_json=flags["as_json"], summary=_by_agent)


def _by_agent(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rows of the table, one for each agent of several."""
    agents = {
        f"return of {agent}": f"{one['return_mean']:.5g}, std {one['return_std']:.5g}, in {one['games']:,} games"
        for agent, one in told.get("return_by_agent", {}).items()
    }
    figures = {name: value for name, value in told.items() if name != "return_by_agent"}
    return {**_measured_on("games", figures), **agents} if agents else figures


def train(ctx: typer.Context, flags: TrainBCFlags, options: TrainOptions) -> None:
    """Learn a policy from recordings by an algorithm of offline reinforcement learning.

    Everything but the algorithm is as in train-bc: run folder, checks, checkpoints, --resume. docs/algorithms.md says what each
    algorithm is for. A run resumes with its own algorithm and options.
    """
    from offline_cli.training.train import train

    _learned(ctx, flags, lambda places, **how: train(places, flags["out"], **options, **how))


def _learned(ctx: typer.Context, flags: TrainBCFlags, call: Callable[..., render.Result]) -> None:
    """Call and show; of processes that train together the first one alone prints."""
    quiet = flags["quiet"]
    if not is_first():
        logging.disable(logging.WARNING)
        quiet = True
    with with_stdin(flags["sources"]) as places, working(quiet=quiet) as on_progress:
        result = call(places, on_progress=on_progress, command=ctx.obj.recorded())
    if is_first():
        render.show(result, as_json=flags["as_json"], summary=_measured)


def _options_of(arguments: Sequence[str]) -> Mapping[str, list[tuple[str, str]]]:
    """The options of the algorithm that a command line names, for its help."""
    named = [after for one, after in itertools.pairwise((*arguments, "")) if one == "--algorithm"]
    named += [one.partition("=")[2] for one in arguments if one.startswith("--algorithm=")]
    if not named:
        return {}
    from offline_cli.training.algorithms.algorithm import algorithm_kind
    from offline_cli.training.config_mistakes import allowed

    keys = algorithm_kind(named[-1]).schema.get("properties", {})
    shown = []
    for name, key in keys.items():
        default = f"; default: {json.dumps(key['default'])}" if "default" in key else ""
        shown.append((f"--set {name}=...", f"{key.get('description', '')}  [{allowed(key)}{default}]".lstrip()))
    return {f"Options of {named[-1]}": shown or [("none", "It has no options.")]}


def train_bc(ctx: typer.Context, flags: TrainBCFlags, options: TrainBCOptions) -> None:
    """Train a policy to imitate recordings (behaviour cloning).

    The run folder holds the resolved configuration, the policy, what the pieces of --pipeline learned, metrics, a curve and
    what --resume needs to continue exactly where the run stopped. What is not given comes from --config, else from the run that
    is resumed; --pipeline, --mapping, --module-id, --network and an --env that is code (module:EnvId, python:...)
    have to be named again. The length alone (--epochs or --updates) may change on the way: a resumed run is the one that would
    have had it from the start, also where it is reached already.
    """
    from offline_cli.training.train import train_bc

    _learned(ctx, flags, lambda places, **how: train_bc(places, flags["out"], **options, **how))


def export(ctx: typer.Context, flags: ExportFlags, options: ExportOptions) -> None:
    """Write a trained policy as another program reads it: ONNX, or a checkpoint of RLlib's.

    An ONNX file takes raw observations and gives actions of the environment: the pieces that the policy was trained through,
    what they learned, its action scale and its memory are inside. What has no such form ends with exit code 4 and its name. A
    model card is written beside each export.
    """
    from offline_cli.exporting.export import export

    render.show(export(flags["run"], flags["out"], **options), as_json=flags["as_json"])


def _measured(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rows of the table; what was not measured is left out."""
    rows = {name: value for name, value in told.items() if value is not None and value not in ([], {}) and name != "modules"}
    rows |= {f"module {name}": f"{one['run']}, update {one['policy_update']}" for name, one in told.get("modules", {}).items()}
    return _by_agent(rows)


TORCH = 1_200_000_000  # bytes of address space: below 1.17e9, train-bc has been seen to be ended by OpenBLAS

COMMANDS = (
    Command(
        name="record",
        run=record,
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
    ),
    Command(
        name="evaluate",
        run=evaluate,
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
        address_space=TORCH,
    ),
    Command(
        name="train",
        run=train,
        flags=TrainBCFlags,
        options=TrainOptions,
        first=("algorithm", "set", "out", "env", "resume"),
        examples=(
            "offline-cli train dataset --algorithm bc --out run",
            "offline-cli train dataset --out run --config mine.toml --set tau=0.2",
            "offline-cli train dataset --out run --resume --updates 50000",
        ),
        keys=("run", "updates", "epochs", "seconds", "samples_per_second", "loss", "val_loss", "eval_return_mean"),
        address_space=TORCH,
        further=_options_of,
    ),
    Command(
        name="train-bc",
        run=train_bc,
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
        address_space=TORCH,
    ),
    Command(
        name="export",
        run=export,
        flags=ExportFlags,
        options=ExportOptions,
        first=("to", "out", "overwrite", "dry_run", "plugins"),
        examples=(
            "offline-cli export run --to onnx --out policy.onnx",
            "offline-cli export run --to rllib --out checkpoint",
            "offline-cli export s3://bucket/run --to onnx --out s3://bucket/policy.onnx --overwrite",
        ),
        keys=("out", "format", "inputs", "outputs"),
        address_space=TORCH,
    ),
)
