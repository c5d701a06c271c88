"""Options of `record` and `evaluate`."""

from collections.abc import Sequence
from typing import Annotated, Literal, Required, TypedDict

from offline_cli.options.engines import Engines
from offline_cli.options.option import Form, Group, Option, reworded
from offline_cli.options.shared import (
    ENV_FORMS,
    ROW_FORMAT,
    Acting,
    AllowingChanges,
    DryRun,
    Environment,
    EnvironmentParts,
    Out,
    Overwriting,
    OwnNetwork,
    Plugins,
    Resuming,
    RowFormat,
    Shards,
    Showing,
    Storage,
)

__all__ = ["EvaluateFlags", "EvaluateOptions", "RecordFlags", "RecordOptions", "RecorderOptions", "Vectorize"]

Vectorize = Literal["sync", "async"]
Infos = Literal["plain", "all", "none"]


INFOS = Option(
    help="What is kept of infos. plain: numbers, texts, arrays, lists and mappings of these; other entries are dropped, "
    "and counted by key. all: an entry that cannot be stored is an error. none: nothing.",
    group=Group.OUTPUT,
    default="plain",
)


class Slots(TypedDict, total=False):
    """Copies of the environment that play."""

    num_envs: Annotated[
        int,
        Option(
            help="Copies of the environment that play side by side, per runner.",
            group=Group.WHERE,
            default=16,
            minimum=1,
            metavar="N",
        ),
    ]
    num_env_runners: Annotated[
        int, Option(help="Processes that play; 0: this one does.", group=Group.WHERE, default=0, minimum=0, metavar="N")
    ]


class Trusting(TypedDict, total=False):
    """Files that are code."""

    trust_pickle: Annotated[
        bool,
        Option(
            help="Load a checkpoint of RLlib's (rllib:FOLDER), which is a pickle: the code that is in it runs.",
            group=Group.PLAYING,
            default=False,
        ),
    ]


@reworded(
    dry_run="Check options, environment and policy, write nothing.",
    env_kwargs={"without": ""},
    wrappers={"without": ""},
    workers="Workers of another {engine} than local, each of which plays {num_envs} copies.",
)
class RecordOptions(
    EnvironmentParts,
    Acting,
    Slots,
    Engines,
    Shards,
    Resuming,
    AllowingChanges,
    Overwriting,
    DryRun,
    Plugins,
    OwnNetwork,
    Trusting,
    Storage,
    total=False,
):
    """Keywords of `record`."""

    policy: Required[
        Annotated[
            str | Sequence[str],
            Option(
                help="Policy to play: random, a run folder of train-bc, onnx:FILE, rllib:FOLDER (with {trust_pickle}), "
                "sb3:FILE (loading one runs the pickled code in it), or python:package.module:attribute. Of several agents one "
                "for all, or AGENT=P for each.",
                group=Group.PLAYING,
                form=Form.NAMES,
                short="-p",
                metavar="P",
            ),
        ]
    ]
    episodes: Annotated[
        int | None,
        Option(help="Episodes to record; excludes {steps}.", group=Group.HOW_LONG, minimum=1, short="-n", metavar="N"),
    ]
    steps: Annotated[
        int | None,
        Option(help="Record the fewest whole episodes that have so many steps.", group=Group.HOW_LONG, minimum=1, metavar="N"),
    ]
    format: Annotated[RowFormat, ROW_FORMAT]
    vectorize: Annotated[
        Vectorize,
        Option(help="Copies in turn, or a process each.", group=Group.WHERE, default="sync"),
    ]
    step_timeout: Annotated[
        float | None,
        Option(
            help="Seconds for a step of a copy that is a process ({vectorize} async); one that takes longer ends the command.",
            group=Group.WHERE,
            without="any time",
            above=0,
            metavar="SECONDS",
        ),
    ]
    infos: Annotated[Infos, INFOS]
    first_episode: Annotated[
        int,
        Option(
            help="Index of the first episode: any one can be recorded again alone.",
            group=Group.HOW_LONG,
            default=0,
            minimum=0,
            metavar="I",
        ),
    ]


class RecordFlags(Out, Showing, total=False):
    """What the command line of `record` takes besides."""

    env: Required[
        Annotated[
            str,
            Option(help=f"Environment to play in: {ENV_FORMS}.", group=Group.DATA, is_argument=True, metavar="ENV"),
        ]
    ]


class RecorderOptions(Shards, Resuming, AllowingChanges, Overwriting, Storage, total=False):
    """Keywords of `Recorder`, which no command is."""

    format: Annotated[RowFormat, ROW_FORMAT]
    append: Annotated[
        bool,
        Option(help="Add to the dataset that is there, which keeps its shards as they are.", group=Group.OUTPUT, default=False),
    ]
    infos: Annotated[Infos, INFOS]
    policy: Annotated[
        str | None,
        Option(help="What acts, for the provenance of the data: any text.", group=Group.PLAYING, metavar="TEXT"),
    ]
    env_id: Annotated[
        str | None,
        Option(
            help=f"What commands call the environment, for the manifest: {ENV_FORMS}.",
            group=Group.DATA,
            without="the id, arguments and wrappers that gymnasium knows of it",
            metavar="ENV",
        ),
    ]


class EvaluateOptions(Environment, Acting, Slots, Plugins, OwnNetwork, Trusting, Storage, total=False):
    """Keywords of `evaluate`."""

    policy: Annotated[
        Sequence[str] | None,
        Option(
            help="Of several agents: another policy than the run's for one of them, or for a pattern: AGENT=random.",
            group=Group.PLAYING,
            form=Form.NAMES,
            metavar="AGENT=P",
        ),
    ]
    episodes: Annotated[
        int, Option(help="Episodes to play.", group=Group.HOW_LONG, default=100, minimum=1, short="-n", metavar="N")
    ]
    min_return: Annotated[
        float | str | Sequence[str] | None,
        Option(
            help="Fail with exit code 7 if the mean return is below R; of several agents, AGENT=R for one agent's own.",
            group=Group.CHECKING,
            form=Form.NAMES,
            metavar="R",
        ),
    ]
    video: Annotated[
        str | None,
        Option(
            help="Folder for films of {video_episodes}, MP4 or GIF. Needs the extra [video].",
            group=Group.OUTPUT,
            metavar="FOLDER",
        ),
    ]
    video_episodes: Annotated[
        tuple[int, ...],
        Option(
            help="Episodes that are filmed, counted from 0.",
            group=Group.OUTPUT,
            default=(0,),
            minimum=0,
            form=Form.NUMBERS,
            metavar="I,J,...",
        ),
    ]


class EvaluateFlags(Showing, total=False):
    """What the command line of `evaluate` takes besides."""

    run: Required[
        Annotated[
            str,
            Option(
                help="Run folder that train-bc made, or another policy, as in record.",
                group=Group.DATA,
                is_argument=True,
                metavar="RUN",
            ),
        ]
    ]
