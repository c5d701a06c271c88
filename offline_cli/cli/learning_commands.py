"""`offline-cli record`, `evaluate`, `train`, `train-bc` and `export`: each calls the library function of its name."""

import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from offline_cli import choices as c
from offline_cli.cli import completion
from offline_cli.cli import options as o
from offline_cli.cli.calling import call, call_and_show, keep_parameters_of, show_result
from offline_cli.cli.command import command
from offline_cli.cli.streams import write
from offline_cli.cli.values import estimators as of_estimators
from offline_cli.cli.values import settings, whole_numbers
from offline_cli.errors import OfflineCliError, TargetNotMet, UsageError

LEARNED = ("run", "updates", "epochs", "seconds", "samples_per_second", "loss", "val_loss", "eval_return_mean")


@command(
    takes=(o.environment, o.acting, o.stored, o.shards, o.resuming, o.writing, o.common),
    most_used=("out", "policy", "episodes", "steps", "num_envs", "seed"),
    examples=(
        "offline-cli record CartPole-v1 --out dataset --policy run --episodes 500 --num-envs 64",
        "offline-cli record Pendulum-v1 --out dataset --policy sb3:expert.zip --steps 100000 --num-env-runners 4",
        "offline-cli record my_envs:Robot-v0 --out dataset --policy python:my_code:policy --episodes 50 --format columns",
        "offline-cli record CartPole-v1 --out dataset --policy run --episodes 500 --num-envs 64 --resume",
    ),
    keys=("out", "episodes", "steps", "shards", "return_mean", "seconds", "steps_per_second"),
)
def record(
    ctx: typer.Context,
    env: Annotated[str, typer.Argument(help=f"Environment to play in: {c.ENV_FORMS}.", metavar="ENV")],
    out: o.OutOption,
    policy: Annotated[
        list[str],
        o.playing(
            "--policy",
            "-p",
            help="Policy to play: random, a run folder, onnx:FILE, rllib:FOLDER (with --trust-pickle), sb3:FILE (its pickled "
            "code runs) or python:package.module:attribute. With several agents one for all, or AGENT=P for each. Repeatable.",
            metavar="P",
            autocompletion=completion.policies,
        ),
    ],
    episodes: o.EpisodesOption = None,
    steps: o.StepsOption = None,
    engine: o.EngineOption = "local",
    engine_address: o.EngineAddressOption = None,
    vectorize: Annotated[
        c.Vectorize, o.where(help="Step copies of the environment in turn (sync), or in one process each (async).")
    ] = "sync",
    step_timeout: Annotated[
        float | None, o.where(help="Fail if a step of --vectorize async takes longer.", metavar="SECONDS")
    ] = None,
    format: Annotated[c.RowFormat, o.output(help="One row per episode, packed; or one row per step.")] = c.ROW_FORMAT,
    compression: Annotated[c.Compression, o.output(help="Compression of the Parquet shards.")] = c.COMPRESSION,
    infos: Annotated[
        c.Infos,
        o.output(
            help="Infos to keep. plain: numbers, strings, arrays, lists and mappings of these; other entries are dropped and "
            "counted by key. all: an entry that cannot be stored is an error. none: no infos."
        ),
    ] = "plain",
    reference: o.ReferenceOption = o.NO_VALUES,
    allow_changes: o.AllowChangesOption = False,
) -> None:
    """Play a policy and record whole episodes.

    Records the first episodes to start, each to its end. Ctrl-C commits finished episodes; --resume continues.
    """
    from offline_cli.recording.record import record

    try:
        call_and_show(ctx, record)
    except OfflineCliError as error:
        error.where = error.where.replace("--env ", "ENV ")  # ENV is an argument here
        raise


@command(
    takes=(o.environment, o.acting, o.stored, o.common),
    most_used=("env", "episodes", "seed", "explore", "min_return", "as_json"),
    examples=(
        "offline-cli evaluate run --env CartPole-v1 --episodes 100",
        "offline-cli evaluate run --min-return 450 --json",
        "offline-cli evaluate run --explore --seed 7",
        "offline-cli evaluate run --offline dataset --explore --min-value 0.5",
        "offline-cli evaluate bc/seed-0 iql/seed-0 --env CartPole-v1",
    ),
    keys=("episodes", "return_mean", "return_std", "return_ci95", "length_mean"),
)
def evaluate(
    ctx: typer.Context,
    run: Annotated[
        list[str],
        typer.Argument(
            help="Run folder of train, or another policy, as in record; of several each plays the same episodes' seeds.",
            metavar="RUN",
            autocompletion=completion.policies,
        ),
    ],
    env: o.EnvOption = None,
    episodes: o.EpisodesOption = 100,
    min_return: Annotated[
        list[str],
        o.checking(help="Exit with 7 if the mean return, or that of AGENT=R, is below R. Repeatable.", metavar="R"),
    ] = o.NO_VALUES,
    video: Annotated[
        str | None, o.output(help="Folder for videos, MP4 or GIF: a path or URL. Needs the extra \\[video].", metavar="FOLDER")
    ] = None,
    video_episodes: Annotated[
        Any, o.output(help="Episodes for --video, counted from 0.", parser=whole_numbers, metavar="I,J,...")
    ] = (0,),
    policy: Annotated[
        list[str],
        o.playing(help="Policy for one of several agents, or a pattern of names: AGENT=random. Repeatable.", metavar="AGENT=P"),
    ] = o.NO_VALUES,
    offline: Annotated[
        list[str],
        o.offline(
            help="Play nothing: measure the run on these recordings. Repeatable.",
            metavar="SRC",
            autocompletion=completion.sources,
        ),
    ] = o.NO_VALUES,
    mapping: Annotated[
        str | None,
        o.offline(
            help="Meaning of the columns of a table: a TOML file, or a preset.",
            metavar="M",
            autocompletion=completion.mappings,
        ),
    ] = None,
    module_id: Annotated[
        str | None, o.offline(help="Take this module's episodes, of several.", metavar="NAME", show_default="the run's")
    ] = None,
    estimators: Annotated[
        Any,
        o.offline(
            help="Estimates of the policy's value: is, wis, pdis, wpdis by weights of episodes; dm, dr, wdr by fitted Q "
            "functions, which takes minutes.",
            parser=of_estimators,
            metavar="NAME,...",
            show_default="is,wis,pdis,wpdis",
        ),
    ] = None,
    behaviour: Annotated[
        c.Behaviour,
        o.offline(
            help="Probabilities of the recorded actions: recorded (action_logp, else action_dist_inputs), of a clone that is "
            "fitted, or uniform."
        ),
    ] = "recorded",
    gamma: Annotated[float, o.offline(help="Discount of estimates, above 0, at most 1.")] = 1.0,
    clip: Annotated[float | None, o.offline(help="Largest weight of an episode; biases estimates.")] = None,
    min_value: Annotated[
        float | None,
        o.offline(
            help="Exit with 7 unless an estimate is reliable, and each that is has a low end of at least V.", metavar="V"
        ),
    ] = None,
    plot: Annotated[str | None, o.offline(help="PNG file of estimates and weights.", metavar="FILE")] = None,
) -> None:
    """Play a trained policy and measure its return, or estimate it from recordings alone (--offline).

    Plays the first episodes to start, each to its end, and reports the mean with a 95% confidence interval. A policy trained
    with --pipeline plays through its env-to-module pieces in their state after training. The same command gives the same
    result. An unfinished run plays its last checkpoint, with a note. Several
    runs are compared with the first, episode by episode.
    """
    if offline:
        from offline_cli.estimating.evaluate_offline import evaluate_offline

        if len(ctx.params["run"]) > 1:
            raise UsageError("--offline measures one run", where="RUN", fix="name one; offline-cli compare takes several")
        ctx.params["run"] = ctx.params["run"][0]
        keep_parameters_of(ctx, evaluate_offline, how="cannot be combined with --offline")
        call_and_show(ctx, evaluate_offline)
        return
    from offline_cli.cli.tables import show_evaluations
    from offline_cli.playing.evaluate import evaluate

    keep_parameters_of(ctx, evaluate, how="needs --offline SRC")
    result = call(ctx, evaluate)
    if ctx.params["as_json"] or not result.runs:
        show_result(ctx, result)
    else:
        show_evaluations(result.as_dict())


def _options_of_algorithm(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """The options of the named algorithm, for the help."""
    named = [after for one, after in itertools.pairwise((*arguments, "")) if one == "--algorithm"]
    named += [one.partition("=")[2] for one in arguments if one.startswith("--algorithm=")]
    if not named:
        return []
    from offline_cli.training.algorithms.algorithm import algorithm_kind
    from offline_cli.training.config import allowed

    shown = []
    for name, key in algorithm_kind(named[-1]).schema.get("properties", {}).items():
        default = f"; default: {json.dumps(key['default'])}" if "default" in key else ""
        shown.append((f"--set {name}=...", f"{key.get('description', '')}  [{allowed(key)}{default}]".lstrip()))
    return shown or [(named[-1], "has no options.")]


def _show_training(ctx: typer.Context, function: Callable[..., Any]) -> None:
    """Train, and show the result; of several seeds a table for people."""
    from offline_cli.cli.tables import show_seeds

    result = call(ctx, function)
    if ctx.params["as_json"] or not hasattr(result, "seeds"):
        show_result(ctx, result)
    else:
        show_seeds(result.as_dict())


@command(
    takes=(o.tables, o.environment, o.stored, o.resuming, o.writing, o.common),
    without=("force_unlock",),  # a run folder's lock ends with its process
    most_used=("algorithm", "set", "out", "env", "config", "resume"),
    examples=(
        "offline-cli train dataset --algorithm iql --out run",
        "offline-cli train dataset --out run --config mine.toml --set tau=0.2",
        "offline-cli train dataset --out run --resume --updates 50000",
    ),
    keys=LEARNED,
    further=_options_of_algorithm,
)
def train(
    ctx: typer.Context,
    sources: o.SourcesArgument,
    out: o.OutOption,
    algorithm: Annotated[
        str | None,
        o.learning(
            help="Learning algorithm; add --help for its options.",
            metavar="NAME",
            show_default="bc",
            autocompletion=completion.algorithms,
        ),
    ] = None,
    set: Annotated[
        list[str],
        o.learning(help="Option of the algorithm: expectile=0.8. Repeatable.", callback=settings, metavar="KEY=VALUE"),
    ] = o.NO_VALUES,
    config: Annotated[
        str | None,
        o.learning(
            help="TOML file with these and more options; the command line takes precedence. "
            '"Configuration of train" in the documentation lists them.',
            metavar="FILE",
        ),
    ] = None,
    network: Annotated[
        str | None,
        o.learning(
            help="Network of the policy: a name, or your code, python:package.module:build or FILE.py:build.",
            metavar="NAME",
            show_default="mlp",
        ),
    ] = None,
    hidden: Annotated[
        Any, o.learning(help="Widths of the layers of mlp.", parser=whole_numbers, metavar="N,N,...", show_default="256,256")
    ] = None,
    pipeline: Annotated[
        str | None,
        o.learning(help="Learner pipeline file (TOML); the policy learns and plays through it.", metavar="FILE"),
    ] = None,
    batch_size: Annotated[int | None, o.learning(help="Steps per update.", min=1, show_default="1024")] = None,
    lr: Annotated[float | None, o.learning(help="Learning rate of Adam, above 0.", show_default="0.0005")] = None,
    lr_schedule: Annotated[
        c.Schedule | None,
        o.learning(help="Decay of the learning rate after --lr-warmup, to 0 at the end.", show_default="constant"),
    ] = None,
    lr_warmup: Annotated[int | None, o.learning(help="Updates of linear warm-up to --lr.", min=0, show_default="0")] = None,
    weight_decay: Annotated[float | None, o.learning(help="Decoupled weight decay (AdamW).", min=0, show_default="0")] = None,
    clip_norm: Annotated[float | None, o.learning(help="Clip gradients to this norm, above 0.")] = None,
    dropout: Annotated[float | None, o.learning(help="Dropout probability after hidden layers, below 1.", min=0)] = None,
    layer_norm: Annotated[bool | None, o.learning("--layer-norm", help="Layer norm after each hidden layer.")] = None,
    ema: Annotated[
        float | None, o.learning(help="Keep a moving average of the policy's weights with this decay, above 0 and below 1.")
    ] = None,
    log_std_min: Annotated[
        float | None, o.learning(help="Lower bound on log sigma of Box actions, else the algorithm's.")
    ] = None,
    log_std_max: Annotated[
        float | None, o.learning(help="Upper bound on log sigma of Box actions, else the algorithm's.")
    ] = None,
    init_from: Annotated[
        str | None,
        o.learning(help="Start from the policy of this run folder.", metavar="RUN", autocompletion=completion.runs),
    ] = None,
    seed: o.LearningSeedOption = None,
    seeds: Annotated[
        str | None,
        o.learning(help="Train a run for each of N seeds, or for the seeds named, in OUT/seed-*.", metavar="N|I,J,..."),
    ] = None,
    updates: Annotated[int | None, o.how_long(help="Stop after this many updates; excludes --epochs.", min=1)] = None,
    epochs: Annotated[
        int | None,
        o.how_long(
            help="Stop after this many passes over the data; excludes --updates.",
            min=1,
            show_default="20, or 200 with --until-return or --patience",
        ),
    ] = None,
    until_return: Annotated[
        str | None,
        o.how_long(
            help="Stop at this mean return, confirmed on 100 fresh episodes, else exit 7; AGENT=R for an agent.", metavar="R"
        ),
    ] = None,
    patience: Annotated[
        int | None, o.how_long(help="Stop after N checks without a better loss. Needs --val-fraction.", min=1)
    ] = None,
    val_fraction: Annotated[
        float | None, o.checking(help="Share of the episodes held out for validation, above 0 and below 1.")
    ] = None,
    max_val_loss: Annotated[
        float | None, o.checking(help="Exit with 7 if the kept policy's held-out loss is above this. Needs --val-fraction.")
    ] = None,
    min_accuracy: Annotated[
        float | None,
        o.checking(help="Exit with 7 if the held-out accuracy is below this. Needs --val-fraction and discrete actions."),
    ] = None,
    eval_every: Annotated[
        int | None, o.checking(help="Updates between two checks.", min=1, show_default="one epoch, limited to 100 to 1000")
    ] = None,
    eval_episodes: Annotated[int | None, o.checking(help="Greedy episodes per check.", min=1, show_default="20")] = None,
    checkpoint_every: Annotated[
        int | None, o.checking(help="Updates between two checkpoints.", min=1, show_default="500")
    ] = None,
    track: Annotated[
        list[str], o.checking(help="Tracker: tensorboard, wandb, mlflow or trackio; offline. Repeatable.", metavar="NAME")
    ] = o.NO_VALUES,
    env: o.EnvOption = None,
    action_scale: o.ActionScaleOption = None,
    agent: Annotated[
        str | None, o.data(help="Learn from this agent's episodes, and play it in checks.", metavar="NAME")
    ] = None,
    policy: Annotated[
        list[str],
        o.playing(
            help="Policy of another agent in checks, or of a pattern of names; default random. Repeatable.",
            metavar="AGENT=P",
        ),
    ] = o.NO_VALUES,
    module_id: Annotated[
        str | None, o.data(help="Learn from this module's episodes; required if there are several.", metavar="NAME")
    ] = None,
    weight: Annotated[
        list[str], o.data(help="Share of an epoch's steps from source SRC. Repeatable.", metavar="SRC=X")
    ] = o.NO_VALUES,
    top_fraction: o.TopFractionOption = None,
    keep_invented: o.KeepInventedOption = None,
    plugins: o.PluginsOption = o.NO_VALUES,
    device: o.DeviceOption = None,
    precision: Annotated[
        c.Precision | None, o.where(help="Precision of the network; weights stay fp32; auto is fp32.", show_default="auto")
    ] = None,
    compile: Annotated[
        bool | None, o.where("--compile", help="Compile the losses with torch.compile; on a CPU this needs a C++ compiler.")
    ] = None,
    streaming: Annotated[
        bool | None, o.where("--streaming", help="Keep the steps on disk, to stay within --memory-limit.")
    ] = None,
    memory_limit: Annotated[
        str | None,
        o.where(
            help="Memory limit of the data, besides what torch takes: 512MiB, 4GiB. Data that does not fit needs --streaming.",
            metavar="SIZE",
            show_default="1GiB with --streaming, else none",
        ),
    ] = None,
    allow_changes: o.AllowChangesOption = False,
) -> None:
    """Learn a policy from recordings by offline reinforcement learning.

    The run folder holds the resolved configuration, the policy, the learned state of --pipeline, metrics, a curve, and a
    checkpoint from which --resume continues exactly. Unset options come from --config, else from the resumed run; --pipeline,
    --mapping, --module-id, --network and an --env or --policy that is code (module:EnvId, python:...) must be repeated. Only
    the length (--epochs or --updates) may change. See "Choose an algorithm" in the documentation.
    """
    from offline_cli.training.train import train

    _show_training(ctx, train)


@command(
    takes=(train,),
    without=(
        *("algorithm", "set", "weight", "top_fraction", "init_from", "lr_schedule", "lr_warmup", "weight_decay"),
        *("clip_norm", "dropout", "layer_norm", "ema", "log_std_min", "log_std_max"),
    ),
    most_used=("out", "env", "until_return", "val_fraction", "config", "resume"),
    examples=(
        "offline-cli train-bc dataset --out run --env CartPole-v1 --until-return 450",
        "offline-cli train-bc dataset --out run --val-fraction 0.1 --patience 5",
        "offline-cli train-bc dataset --out run --updates 20000 --device cuda --json",
        "offline-cli train-bc s3://bucket/dataset --out run --streaming --memory-limit 2GiB --temp-dir /scratch",
        "offline-cli train-bc dataset --out run --resume --epochs 400",
    ),
    keys=LEARNED,
)
def train_bc(ctx: typer.Context) -> None:
    """Train a policy to imitate recordings (behaviour cloning).

    Equals train with the algorithm bc, or that of --config, and the options that most runs need; train has all options.
    """
    from offline_cli.training.train import train_bc

    _show_training(ctx, train_bc)


@command(
    takes=(o.stored, o.common),
    most_used=("reference", "min_improvement", "no_regression", "markdown", "plot", "as_json"),
    examples=(
        "offline-cli compare bc iql --plot comparison.png",
        "offline-cli compare baseline new --no-regression --min-improvement 10",
        "offline-cli compare bc.json iql.json --reference random=22,expert=500 --markdown",
    ),
    keys=("runs", "best", "probability_of_improvement"),
)
def compare(
    ctx: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Algorithms: a run, a folder of runs, or a file of scores (JSON, CSV) each; the first is the baseline.",
            metavar="RUN",
            autocompletion=completion.runs,
        ),
    ],
    metric: Annotated[
        str, o.data(help="Score of a run: a return, accuracy or loss of its result; losses are better lower.", metavar="NAME")
    ] = "eval_return_mean",
    reference: Annotated[
        list[str],
        o.data(
            help="Normalise scores: random=R,expert=E, TASK:random=R,expert=E, or a dataset that has them. Repeatable.",
            metavar="R",
            show_default="that of the runs' data, where all have it",
        ),
    ] = o.NO_VALUES,
    success: Annotated[
        float | None, o.checking(help="Score that counts as success.", metavar="S", show_default="none; 1 where all are 0 or 1")
    ] = None,
    min_improvement: Annotated[
        float | None,
        o.checking(
            help="Exit with 7 unless each is better than the first by V: the low end of the interval counts.", metavar="V"
        ),
    ] = None,
    no_regression: Annotated[
        bool, o.checking("--no-regression", help="Exit with 7 if one is worse than the first, by its whole interval.")
    ] = False,
    seed: Annotated[int, o.playing(help="Random seed of the intervals.", min=0)] = 0,
    markdown: Annotated[bool, o.output("--markdown", help="Print a Markdown table, for a pull request.")] = False,
    plot: Annotated[
        str | None, o.output(help="PNG of aggregates with intervals, and performance profiles.", metavar="F")
    ] = None,
) -> None:
    """Compare algorithms by their runs over seeds and tasks.

    Mean, median and interquartile mean come with 95% stratified bootstrap intervals over runs, and the probability that a run
    is better than one of the others (Agarwal et al. 2021). Gates look at the difference of interquartile means.
    """
    from offline_cli.cli.tables import comparison_markdown, show_comparison
    from offline_cli.estimating.compare import compare

    def show(told: Mapping[str, Any]) -> None:
        if markdown:
            write(sys.stdout, comparison_markdown(told))
        else:
            show_comparison(told)

    try:
        result = call(ctx, compare)
    except TargetNotMet as missed:
        if not ctx.params["as_json"]:
            show(missed.details)
        raise
    if ctx.params["as_json"]:
        show_result(ctx, result)
    else:
        show(result.as_dict())


@command(
    takes=(o.stored, o.writing, o.common),
    most_used=("to", "out", "overwrite", "dry_run", "plugins", "as_json"),
    examples=(
        "offline-cli export run --to onnx --out policy.onnx",
        "offline-cli export run --to rllib --out checkpoint",
        "offline-cli export s3://bucket/run --to onnx --out s3://bucket/policy.onnx --overwrite",
    ),
    keys=("out", "format", "inputs", "outputs"),
)
def export(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="Run folder of train.", metavar="RUN", autocompletion=completion.runs)],
    to: Annotated[
        c.ExportFormat, o.output(help="onnx, one file from raw observations to actions; rllib, a checkpoint of an RLModule.")
    ],
    out: o.OutOption,
    env_to_module: Annotated[
        str | None, o.playing(help="Pipeline file of the policy's training, if it names code.", metavar="FILE")
    ] = None,
    plugins: o.PluginsOption = o.NO_VALUES,
    network: o.RunNetworkOption = None,
) -> None:
    """Export a trained policy to ONNX, or to an RLlib checkpoint.

    An ONNX file maps raw observations to environment actions: it includes the policy's pieces with their learned state, action
    scaling and recurrent state. A piece or network that cannot be exported is named, with exit code 4. Each export comes with a
    model card.
    """
    from offline_cli.exporting.export import export

    call_and_show(ctx, export)
