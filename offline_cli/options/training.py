"""Options of `train` and `train-bc`, and the keys of their configuration file."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict

from offline_cli.options.networks import Hidden, MlpKeys, Regularizing, of_learning
from offline_cli.options.option import Form, Group, Option, reworded
from offline_cli.options.shared import (
    DEVICE,
    KEEP_INVENTED,
    SEED,
    ActionScale,
    AllowingChanges,
    Caching,
    Device,
    DryRun,
    Environment,
    MappedTables,
    Out,
    Overwriting,
    Plugins,
    Resuming,
    Showing,
    Sources,
    Storage,
)

if TYPE_CHECKING:
    from offline_cli.connectors.pipeline_spec import Given

__all__ = [
    "BOUND_EPOCHS",
    "CONFIRM_EPISODES",
    "DEFAULT_EPOCHS",
    "EVAL_EVERY_RANGE",
    "ConfigKeys",
    "TrainBCFlags",
    "TrainBCOptions",
    "TrainOptions",
]

DEFAULT_EPOCHS, BOUND_EPOCHS = 20, 200
EVAL_EVERY_RANGE = (100, 1000)  # updates

ALGORITHM: Final = Option(
    help="The learning algorithm: its name and options (docs/algorithms.md).",
    group=Group.LEARNING,
    default={"name": "bc"},
    in_config=True,
)
NETWORK: Final = Option(
    help="The network of the policy and of the algorithm's other modules: its name and options (docs/algorithms.md).",
    group=Group.LEARNING,
    default={"name": "mlp"},
    in_config=True,
)
CONFIRM_EPISODES: Final = Option(
    help="Fresh episodes that must confirm {until_return}.", group=Group.CHECKING, default=100, minimum=1, in_config=True
)


class _Configured(Environment, ActionScale, total=False):
    """What the command line and the configuration file may both say."""

    batch_size: Annotated[
        int | None,
        Option(help="Steps per update.", group=Group.LEARNING, default=1024, minimum=1, in_config=True, metavar="N"),
    ]
    lr: Annotated[
        float | None,
        Option(help="Learning rate of Adam.", group=Group.LEARNING, default=5e-4, above=0, in_config=True, metavar="RATE"),
    ]
    updates: Annotated[
        int | None,
        Option(
            help="Stop after this many updates; excludes {epochs}.",
            group=Group.HOW_LONG,
            minimum=1,
            in_config=True,
            metavar="N",
        ),
    ]
    epochs: Annotated[
        int | None,
        Option(
            help="Stop after this many passes over the data; excludes {updates}.",
            group=Group.HOW_LONG,
            without=f"{DEFAULT_EPOCHS}, or {BOUND_EPOCHS} with {{until_return}} or {{patience}}",
            minimum=1,
            in_config=True,
            metavar="N",
        ),
    ]
    until_return: Annotated[
        float | None,
        Option(
            help=f"Stop once the mean return, confirmed on {CONFIRM_EPISODES.default} fresh episodes, is at least R; "
            "else exit code 7. Needs {env}.",
            group=Group.HOW_LONG,
            in_config=True,
            metavar="R",
        ),
    ]
    keep_invented: Annotated[bool | None, KEEP_INVENTED]
    val_fraction: Annotated[
        float | None,
        Option(
            help="Share of the episodes held out for validation.",
            group=Group.CHECKING,
            without="none",
            above=0,
            below=1,
            in_config=True,
            metavar="F",
        ),
    ]
    patience: Annotated[
        int | None,
        Option(
            help="Stop after this many checks without a better validation loss. Needs {val_fraction}.",
            group=Group.HOW_LONG,
            minimum=1,
            in_config=True,
            metavar="N",
        ),
    ]
    eval_every: Annotated[
        int | None,
        Option(
            help="Updates between two checks.",
            group=Group.CHECKING,
            without="an epoch, but from {} to {}".format(*EVAL_EVERY_RANGE),
            minimum=1,
            in_config=True,
            metavar="N",
        ),
    ]
    eval_episodes: Annotated[
        int | None,
        Option(
            help="Episodes played per check, greedily.",
            group=Group.CHECKING,
            default=20,
            minimum=1,
            in_config=True,
            metavar="N",
        ),
    ]
    checkpoint_every: Annotated[
        int | None,
        Option(
            help="Updates between two checkpoints; fewer in cloud storage where uploads are slow.",
            group=Group.CHECKING,
            default=500,
            minimum=1,
            in_config=True,
            metavar="N",
        ),
    ]
    device: Annotated[Device | None, DEVICE]
    precision: Annotated[
        Literal["auto", "fp32", "bf16"] | None,
        Option(
            help="Arithmetic of the network; weights and the optimizer are always fp32, and auto is.",
            group=Group.WHERE,
            default="auto",
            in_config=True,
        ),
    ]
    seed: Annotated[int | None, replace(SEED, group=Group.LEARNING)]
    streaming: Annotated[
        bool | None,
        Option(
            help="Keep the steps on disk while training, and in memory only what {memory_limit} allows.",
            group=Group.WHERE,
            default=False,
            in_config=True,
        ),
    ]
    memory_limit: Annotated[
        int | str | None,
        Option(
            help="Memory that the process may take. Data that does not fit is refused without {streaming}.",
            group=Group.WHERE,
            without="1GiB with {streaming} (on a GPU 4GiB), else any",
            minimum=1,
            in_config=True,
            form=Form.SIZE,
            as_text="512MiB, 4GiB, or a number of bytes.",
            metavar="SIZE",
        ),
    ]


class Optimizer(TypedDict, total=False):
    """How the optimizer steps, whatever is learned."""

    lr_schedule: Annotated[
        Literal["constant", "linear", "cosine"] | None,
        of_learning(
            help="How the learning rate falls after {lr_warmup}: to 0 at the end of the run, or not at all.", default="constant"
        ),
    ]
    lr_warmup: Annotated[
        int | None,
        of_learning(
            help="Updates in which the learning rate rises from 0 to {lr}, linearly.", default=0, minimum=0, metavar="N"
        ),
    ]
    weight_decay: Annotated[
        float | None,
        of_learning(
            help="Share of each weight that a step at a learning rate of 1 would take away (AdamW).",
            default=0.0,
            minimum=0,
            metavar="F",
        ),
    ]
    clip_norm: Annotated[
        float | None,
        of_learning(
            help="Longest gradient of modules that are stepped together, by its Euclidean norm; longer ones are scaled down.",
            without="none",
            above=0,
            metavar="NORM",
        ),
    ]


class Beginning(TypedDict, total=False):
    """Which episodes are learned from, and by which weights a run begins."""

    top_fraction: Annotated[
        float | None,
        Option(
            help="Learn from this share of the episodes alone, those with the highest return; held-out ones are among them.",
            group=Group.DATA,
            without="all",
            above=0,
            maximum=1,
            in_config=True,
            metavar="X",
        ),
    ]
    init_from: Annotated[
        str | os.PathLike[str] | None,
        Option(
            help="Begin with the policy of this run folder, a path or a URL, of one space, network and action scale; of a run "
            "by the same algorithm with its other modules too.",
            group=Group.LEARNING,
            without="fresh weights",
            in_config=True,
            form=Form.FILE,
            metavar="RUN",
        ),
    ]


class Kept(TypedDict, total=False):
    """What of the learned policy is kept."""

    ema: Annotated[
        float | None,
        of_learning(
            help="Decay of a moving average of the policy's weights, which is checked, kept and played in their place.",
            without="none",
            above=0,
            below=1,
            metavar="DECAY",
        ),
    ]
    log_std_min: Annotated[
        float | None,
        of_learning(
            help="Least logarithm of the spread of Box actions, where the algorithm learns one.",
            without="the algorithm's (docs/algorithms.md)",
            metavar="X",
        ),
    ]
    log_std_max: Annotated[
        float | None,
        of_learning(help="The most that it may be.", without="the algorithm's", metavar="X"),
    ]


class ConfigKeys(_Configured, Optimizer, Beginning, Kept, MlpKeys, total=False):
    """Keys of the configuration file."""

    algorithm: Annotated[Mapping[str, Any], ALGORITHM]
    network: Annotated[Mapping[str, Any], NETWORK]
    confirm_episodes: Annotated[int, CONFIRM_EPISODES]
    log_every: Annotated[
        int,
        Option(help="Updates between two rows of metrics.jsonl.", group=Group.CHECKING, default=50, minimum=1, in_config=True),
    ]
    threads: Annotated[
        int | None,
        Option(
            help="CPU threads of the network.",
            group=Group.WHERE,
            without="1 for small networks, which is fastest there; else one per core, at most 8",
            minimum=1,
            in_config=True,
        ),
    ]


@reworded(
    temp_dir={"help": "Where {streaming} keeps the steps, and rows of a table that do not fit into memory go."},
    dry_run="Check options, environment and all data, write nothing.",
)
class TrainBCOptions(
    _Configured, Hidden, MappedTables, Resuming, AllowingChanges, Overwriting, DryRun, Plugins, Storage, total=False
):
    """Keywords of `train_bc`."""

    config: Annotated[
        str | os.PathLike[str] | None,
        Option(
            help="TOML file with these options and the network's (keys: docs/config.md); options given here win.",
            group=Group.LEARNING,
            form=Form.FILE,
            metavar="FILE",
        ),
    ]
    network: Annotated[
        str | None,
        Option(
            help="Network of the policy: a name, or your own code, python:package.module:build or FILE.py:build "
            "(docs/extending.md), to be named again where the run is resumed or played. Its options: [network] of {config}.",
            group=Group.LEARNING,
            without="mlp, or that of {config}",
            metavar="NAME",
        ),
    ]
    pipeline: Annotated[
        "Given",
        Option(
            help="Pipeline file of kind learner (docs/connectors.md), through which the policy learns and plays.",
            group=Group.LEARNING,
            form=Form.FILE,
            metavar="FILE",
        ),
    ]
    module_id: Annotated[
        str | None,
        Option(
            help="Learn from the episodes of this module; needed where the data holds several.",
            group=Group.DATA,
            metavar="NAME",
        ),
    ]


class TrainOptions(TrainBCOptions, Optimizer, Beginning, Regularizing, Kept, total=False):
    """Keywords of `train`."""

    algorithm: Annotated[
        str | None,
        Option(
            help="Learning algorithm (docs/algorithms.md); the help of a command line with it shows its options, for {set}.",
            group=Group.LEARNING,
            without="bc, or that of {config}",
            metavar="NAME",
        ),
    ]
    set: Annotated[
        Mapping[str, Any] | None,
        Option(
            help="An option of the algorithm, as TOML has it: expectile=0.8.",
            group=Group.LEARNING,
            form=Form.SETTINGS,
            metavar="KEY=VALUE",
        ),
    ]
    weight: Annotated[
        Mapping[str, float] | Sequence[str] | None,
        Option(
            help="Share of an epoch's steps that are drawn from the source SRC, as it is given. Sources without one share the "
            "rest by their steps. To be named again with {resume}.",
            group=Group.DATA,
            form=Form.NAMES,
            metavar="SRC=X",
        ),
    ]


@reworded(out={"help": "Run folder to make: a path or a URL.", "metavar": "RUN"})
class TrainBCFlags(Sources, Out, Caching, Showing, total=False):
    """What the command lines of `train` and `train-bc` take besides."""
