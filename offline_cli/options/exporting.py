"""Options of `export`."""

from typing import TYPE_CHECKING, Annotated, Literal, Required

from offline_cli.options.option import Form, Group, Option
from offline_cli.options.shared import DryRun, Overwriting, OwnNetwork, Plugins, Showing, Storage

__all__ = ["ExportFlags", "ExportFormat", "ExportOptions"]

if TYPE_CHECKING:
    from offline_cli.connectors.pipeline_spec import Given

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

    env_to_module: Annotated[
        "Given",
        Option(
            help="Pipeline file (TOML) that the policy was trained through, where it names code: pieces go along with their "
            "`to_torch`.",
            group=Group.PLAYING,
            form=Form.FILE,
            metavar="FILE",
        ),
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
