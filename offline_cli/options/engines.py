"""Options that say where work is done: by this process, by others, or on a Ray cluster."""

from dataclasses import replace
from typing import Annotated, Final, Literal, TypedDict

from offline_cli.options.option import Group, Option

__all__ = ["WORKERS", "Engines"]

EngineName = Literal["local", "processes", "ray"]

WORKERS: Final = Option(
    help="Parquet files read at a time.",
    group=Group.WHERE,
    default=4,
    minimum=1,
    metavar="N",
)


class Engines(TypedDict, total=False):
    """Where work on data is done."""

    engine: Annotated[
        EngineName,
        Option(
            help="Where the work is done: by this process, by processes of this machine, or by workers of a Ray cluster. "
            "What is written is the same, of `record` as by single copies of the environment (docs/scaling.md).",
            group=Group.WHERE,
            default="local",
        ),
    ]
    engine_address: Annotated[
        str | None,
        Option(
            help="Ray cluster of {engine} ray: HOST:PORT, or auto on one of its nodes.",
            group=Group.WHERE,
            without="one is started on this machine",
            metavar="A",
        ),
    ]
    workers: Annotated[int, replace(WORKERS, help=f"{WORKERS.help[:-1]}; workers of another {{engine}} than local.")]
