"""`offline-cli apply`: a learner pipeline over recordings; parses, calls the library once, shows the result."""

from __future__ import annotations

from typing import Any

import typer

from offline_cli.cli import render
from offline_cli.cli.command_line import Command
from offline_cli.cli.progress import working
from offline_cli.cli.texts import with_stdin
from offline_cli.errors import OfflineCliError
from offline_cli.options.datasets import ApplyFlags, ApplyOptions

__all__ = ["COMMAND"]


def run(ctx: typer.Context, flags: ApplyFlags, options: ApplyOptions) -> None:
    """Run a learner pipeline over recordings and write its train batches.

    Episodes come to the pipeline as train-bc gives them to it. Each batch is one file, of whole episodes; D2/batches.json,
    written last, says what they hold.
    """
    from offline_cli.applying.apply import apply

    as_json, is_traced = flags["as_json"], options.get("trace") is not None
    try:
        with with_stdin(flags["sources"] or []) as places, working(quiet=flags["quiet"]) as on_progress:
            result = apply(places, flags["out"], **options, on_progress=on_progress, command=ctx.obj.recorded())
    except OfflineCliError as error:
        if is_traced and error.result and not as_json:  # --json has the trace so far beside the error
            _show_traced(error.result)
        raise
    told = result.as_dict()
    if as_json or "pieces" not in told:
        render.show(result, as_json=as_json)
    elif is_traced:
        _show_traced(told)
    else:
        _show_pieces(told)


COMMAND = Command(
    name="apply",
    run=run,
    flags=ApplyFlags,
    options=ApplyOptions,
    first=("pipeline", "out", "format", "show", "trace"),
    examples=(
        "offline-cli apply dataset --pipeline pipeline.toml --out batches",
        "offline-cli apply dataset --pipeline pipeline.toml --out batches --format safetensors --steps-per-batch 4096",
        "offline-cli apply dataset --pipeline pipeline.toml --show",
        "offline-cli apply --env CartPole-v1 --pipeline pipeline.toml --show --json",
        "offline-cli apply recordings/ --pipeline pipeline.toml --trace 2",
    ),
    keys=("out", "batches", "rows", "columns"),  # with --show and --trace, `pieces` instead
)


def _show_pieces(told: dict[str, Any]) -> None:
    from offline_cli.report.pipelines import shown

    inferred = " (spaces inferred)" if told["spaces_inferred"] else ""
    notes = [f"note: {told['note']}"] if told["note"] else []
    render.show_grid(
        *shown(told), above=[f"{told['pipeline']} for {', '.join(told['sources']) or 'no data'}{inferred}"], below=notes
    )


def _show_traced(told: dict[str, Any]) -> None:
    from offline_cli.report.pipelines import traced

    ids = told["episodes"]
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    head = f"{told['pipeline']} over {told['steps']:,} steps of {len(ids)} episodes: {', '.join(ids[:3])}{more}"
    render.show_grid(*traced(told), above=[head])
