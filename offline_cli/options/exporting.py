"""Options of `export`."""

from typing import Annotated, Literal, Required

from offline_cli.options.option import Group, Option
from offline_cli.options.shared import DryRun, Overwriting, OwnNetwork, Plugins, Showing, Storage

__all__ = ["ExportFlags", "ExportFormat", "ExportOptions"]

ExportFormat = Literal["onnx", "rllib"]


class ExportOptions(Overwriting, DryRun, Plugins, OwnNetwork, Storage, total=False):
    """Keywords of `export`."""

    to: Required[
        Annotated[
            ExportFormat,
            Option(
                help="What to write: onnx, one file from raw observations to actions; rllib, a checkpoint of an RLModule.",
                group=Group.OUTPUT,
            ),
        ]
    ]


class ExportFlags(Showing, total=False):
    """What the command line of `export` takes besides."""

    run: Required[
        Annotated[
            str, Option(help="Run folder that train or train-bc made.", group=Group.DATA, is_argument=True, metavar="RUN")
        ]
    ]
    out: Required[
        Annotated[
            str, Option(help="File to write, of rllib a folder: a path or URL.", group=Group.OUTPUT, short="-o", metavar="F")
        ]
    ]
