"""`offline-cli report` and `curves`: each calls the library function of its name."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from offline_cli.cli import completion
from offline_cli.cli import options as o
from offline_cli.cli.calling import call_and_show
from offline_cli.cli.command import command

OverwriteOption = Annotated[bool, o.output("--overwrite", help="Replace the file at --out.")]


@command(
    takes=(o.tables, o.stored, o.common),
    most_used=("out", "runs", "mapping", "short", "overwrite", "as_json"),
    examples=(
        "offline-cli report dataset -o report.html",
        "offline-cli report split/train split/val -o split.html",
        "offline-cli report robot.csv --mapping robot.toml -o robot.html",
        "offline-cli report dataset --run run_a --run run_b -o report.html",
    ),
    keys=("out", "bytes", "datasets", "runs", "episodes", "steps", "problems"),
)
def report(
    ctx: typer.Context,
    sources: Annotated[
        list[str], typer.Argument(help=o.SOURCES, metavar="SRC", autocompletion=completion.sources)
    ] = o.NO_VALUES,
    out: Annotated[str, o.output("--out", "-o", help="HTML file to write: a path or URL.", metavar="FILE")] = "report.html",
    runs: Annotated[
        list[str],
        o.data("--run", help="Run folder, or a folder of runs, to show too; AGENT=RUN names it. Repeatable.", metavar="RUN"),
    ] = o.NO_VALUES,
    short: Annotated[bool, o.output("--short", help="Leave out plots and episodes: a page of some kilobytes.")] = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Write one HTML page about recordings, datasets and runs.

    It opens without a server or network, and shows what is there, what is wrong, and how single episodes go. Several
    sources are shown side by side.
    """
    from offline_cli.reporting.report import report

    def shown(told: Mapping[str, Any]) -> Mapping[str, Any]:
        notes = sum(one["severity"] == "note" for one in told["problems"])
        return {**told, "problems": len(told["problems"]) - notes, "notes": notes}

    call_and_show(ctx, report, shown)


@command(
    takes=(o.stored, o.common),
    most_used=("out", "overwrite", "storage_options", "as_json", "quiet", "debug"),
    examples=(
        "offline-cli curves run -o curves.png",
        "offline-cli curves bc/ iql/ -o curves.svg",
        "offline-cli curves hunter=run_h runner=run_r -o agents.svg",
    ),
    keys=("out", "runs", "groups"),
)
def curves(
    ctx: typer.Context,
    runs: Annotated[list[str], typer.Argument(help="Run folders, or folders of them; AGENT=RUN names one.", metavar="RUN")],
    out: Annotated[str, o.output("--out", "-o", help="File to write: .png, .svg or .pdf; a path or URL.", metavar="FILE")],
    overwrite: OverwriteOption = False,
) -> None:
    """Draw the curves of one or several runs into one figure.

    Runs that differ in the seed alone are one line: their mean, in the band of its 95% interval.
    """
    from offline_cli.reporting.runs import curves

    call_and_show(ctx, curves)
