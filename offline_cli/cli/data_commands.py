"""`offline-cli convert`, `apply`, `inspect`, `validate` and `repair`: each calls the library function of its name."""

import sys
from typing import Annotated, Literal

import typer

from offline_cli.choices import EXTRAS, STEPS_PER_BATCH, BatchFormat
from offline_cli.cli import completion, render, tables
from offline_cli.cli import options as o
from offline_cli.cli.calling import call, call_and_show, show_result
from offline_cli.cli.command import command
from offline_cli.cli.streams import write
from offline_cli.cli.values import comparisons
from offline_cli.errors import OfflineCliError


def _list_formats(ctx: typer.Context, wanted: bool) -> None:
    if not wanted:
        return
    from offline_cli.converting.sink import known_formats

    found = known_formats()
    if ctx.obj.as_json:
        write(sys.stdout, render.to_json(found))
    else:
        kinds = (("--from", found["readers"]), ("--to", found["sinks"]))
        rows = [(option, *one.values()) for option, formats in kinds for one in formats]
        render.show_grid(("option", "name", "format", "package", "keeps"), rows)
    raise typer.Exit


@command(
    takes=(o.tables, o.environment, o.engines, o.stored, o.shards, o.resuming, o.writing, o.common),
    most_used=("out", "mapping", "to", "on_error", "resume", "as_json"),
    examples=(
        "offline-cli convert recordings/ --out dataset",
        "offline-cli convert robot.csv --out dataset --mapping robot.toml",
        "offline-cli convert 'old/*.json.gz' --out dataset --on-error quarantine",
        "offline-cli convert s3://bucket/run --out dataset --to columns --storage-option anon=true",
        "offline-cli convert today/ --out dataset --append",
    ),
    keys=(
        *("out", "episodes", "steps", "rows_in", "duplicates_dropped", "fragments_stitched"),
        *("rows_quarantined", "episodes_lost", "assumptions", "seconds"),
    ),
)
def convert(
    ctx: typer.Context,
    sources: o.SourcesArgument,
    out: o.OutOption,
    to: Annotated[
        str | None,
        o.output(
            help="One row per episode, packed (episodes); one per step (columns); another format; python:package.module:Sink.",
            metavar="FORMAT",
            show_default="episodes; with --append, the dataset's format",
            autocompletion=completion.formats,
        ),
    ] = None,
    env: o.SpacesOfOption = None,
    action_scale: o.ActionScaleOption = None,
    extras: o.ExtrasOption = EXTRAS,
    drop: Annotated[
        list[str],
        o.data(
            help="Leaf to drop: a part of observations or actions (obs.mission), an extra model output, or infos. Repeatable.",
            metavar="LEAF",
        ),
    ] = o.NO_VALUES,
    drop_reset_rows: Annotated[
        bool, o.data("--drop-reset-rows", help="Drop rows of a vector environment's autoresets; reads the sources twice.")
    ] = False,
    on_error: o.OnErrorOption = "fail",
    limit: o.LimitOption = None,
    compression: o.CompressionOption = None,
    reference: o.ReferenceOption = o.NO_VALUES,
    append: Annotated[bool, o.output("--append", help="Add to the dataset at --out, skipping episodes that it has.")] = False,
    list_formats: Annotated[
        bool,
        o.data("--list-formats", help="List the formats of --from and --to, and exit.", is_eager=True, callback=_list_formats),
    ] = False,
) -> None:
    """Convert recordings to a dataset.

    Reads RLlib's episodes and columns, SampleBatch JSON, tables of steps (Parquet, Arrow, CSV, JSON lines), other projects'
    formats and our own datasets. Fragments of episodes are stitched, exact duplicates dropped, and every assumption is
    counted.
    """
    from offline_cli.converting.convert import convert

    call_and_show(ctx, convert, tables.converted)


@command(
    takes=(o.tables, o.environment, o.engines, o.stored, o.writing, o.common),
    most_used=("pipeline", "out", "format", "show", "trace", "as_json"),
    examples=(
        "offline-cli apply dataset --pipeline pipeline.toml --out batches",
        "offline-cli apply dataset --pipeline pipeline.toml --out batches --format safetensors --steps-per-batch 4096",
        "offline-cli apply dataset --pipeline pipeline.toml --show --json",
        "offline-cli apply recordings/ --pipeline pipeline.toml --trace 2",
    ),
    keys=("out", "batches", "rows", "columns"),  # with --show and --trace, `pieces` instead
)
def apply(
    ctx: typer.Context,
    sources: o.SourcesArgument,
    pipeline: Annotated[str, o.learning(help="Learner pipeline file (TOML).")],
    out: o.OutOption = None,
    format: Annotated[BatchFormat, o.output(help="Parquet with a row per step, or tensors by name.")] = "columns",
    steps_per_batch: Annotated[
        int, o.output(help="Fill each batch with whole episodes until it has at least N steps.", min=1)
    ] = STEPS_PER_BATCH,
    show: Annotated[bool, o.checking("--show", help="Show pieces and spaces for the first episode; write nothing.")] = False,
    trace: Annotated[
        int | None, o.checking(help="Show the batch of the first N episodes after each piece; write nothing.", min=1)
    ] = None,
    env: o.SpacesOfOption = None,
    action_scale: o.ActionScaleOption = None,
    keep_invented: o.KeepInventedOption = False,
    limit: o.LimitOption = None,
) -> None:
    """Run a learner pipeline over recordings and write its train batches.

    The pipeline gets episodes as in train. Each batch is one file of whole episodes; OUT/batches.json, written last, describes
    them.
    """
    from offline_cli.applying.apply import apply

    try:
        result = call(ctx, apply)
    except OfflineCliError as error:
        if trace is not None and error.result and not ctx.obj.as_json:  # --json includes the trace so far
            tables.show_pieces(error.result, traced=True)
        raise
    if ctx.obj.as_json or not (show or trace):
        show_result(ctx, result)
    else:
        tables.show_pieces(result.as_dict(), traced=trace is not None)


@command(
    takes=(o.tables, o.stored, o.common),
    most_used=("deep", "head", "episode", "expect", "mapping", "as_json"),
    examples=(
        "offline-cli inspect dataset",
        "offline-cli inspect dataset --episode 3f2a9c01-17",
        "offline-cli inspect robot.csv --mapping robot.toml --json",
        "offline-cli inspect dataset --expect episodes=100 --expect 'return.mean>=450'",
    ),
    keys=("format", "episodes", "steps", "observation_space", "action_space", "return", "length"),
)
def inspect(
    ctx: typer.Context,
    sources: o.SourcesArgument,
    deep: Annotated[
        bool, o.checking("--deep", help="Also read a dataset's shards: statistics of columns, episodes by agent and module.")
    ] = False,
    head: Annotated[int | None, o.checking(help="List the first N episodes with length and return.", min=1)] = None,
    episode: Annotated[str | None, o.checking(help="Show one episode: its end, steps, and columns.", metavar="ID")] = None,
    expect: Annotated[
        list[str],
        o.checking(
            help="Exit with 7 unless the result has this value: episodes=100, 'return.mean>=450'. Keys are those of --json, "
            "nested keys with dots. Repeatable.",
            callback=comparisons,
            metavar="KEY=VALUE",
        ),
    ] = o.NO_VALUES,
    on_error: Annotated[
        Literal["fail", "skip"], o.data(help="Handling of an unreadable row: fail, or count and skip it.")
    ] = "fail",
    html: Annotated[
        str | None, o.output(help="Write one HTML page of it too: columns and what is wrong, without plots.", metavar="FILE")
    ] = None,
) -> None:
    """Show the contents of recordings or a dataset.

    For a dataset, inspect reads only the manifest; recordings of other formats are read completely.
    """
    from offline_cli.checking.inspect import inspect

    if html is not None:
        from offline_cli.reporting.report import check_page

        check_page(html, ctx.params["storage_options"])
    result = call(ctx, inspect)
    if html is not None:
        from offline_cli.reporting.report import report

        reading = ("from_", "mapping", "rows_as_episodes", "episode_ends", "temp_dir", "memory_limit", "storage_options")
        report(sources, html, short=True, **{name: ctx.params[name] for name in reading if ctx.params[name]})
    if ctx.obj.as_json or deep or (result.first_episodes is None and result.shown_episode is None):
        show_result(ctx, result, tables.inspected)
    if not ctx.obj.as_json:
        tables.show_closer(result.as_dict(), deep=deep)


@command(
    takes=(o.tables, o.environment, o.stored, o.common),
    most_used=("strict", "deep", "env", "mapping", "allow_lost", "as_json"),
    examples=(
        "offline-cli validate dataset",
        "offline-cli validate dataset --deep --strict",
        "offline-cli validate recordings/ --env CartPole-v1 --json",
        "offline-cli validate robot.csv --mapping robot.toml",
    ),
    keys=("problems",),  # also on failure, with `error` and `exit_code`
)
def validate(
    ctx: typer.Context,
    sources: o.SourcesArgument,
    strict: Annotated[bool, o.checking("--strict", help="Fail on warnings too, not only on errors.")] = False,
    deep: Annotated[bool, o.checking("--deep", help="Also read the files of quarantined rows.")] = False,
    allow_lost: Annotated[
        bool, o.checking("--allow-lost", help="Report episodes lost while writing the dataset as a note, even with --strict.")
    ] = False,
    env: o.SpacesOfOption = None,
    action_scale: o.ActionScaleOption = None,
) -> None:
    """Check recordings or datasets for errors.

    Changes nothing. Exits with 3 if there is an error; warnings are problems that reading repairs or tolerates.
    """
    from offline_cli.checking.validate import validate

    result = call(ctx, validate)
    if result.passed or not ctx.obj.as_json:  # with --json, the error boundary writes the one object of a failure
        show_result(ctx, result, tables.validated)
    result.check()


@command(
    takes=(o.stored, o.common),
    most_used=("drop_broken", "force_unlock", "dry_run", "quiet", "storage_options", "as_json"),
    examples=(
        "offline-cli repair dataset --dry-run",
        "offline-cli repair s3://bucket/dataset",
        "offline-cli repair dataset --drop-broken",
    ),
    keys=("out", "episodes", "steps", "shards", "adopted", "dropped"),
)
def repair(
    ctx: typer.Context,
    out: Annotated[str, typer.Argument(help="Dataset folder: a path or URL.", metavar="D", autocompletion=completion.sources)],
    drop_broken: Annotated[
        bool, o.data("--drop-broken", help="Drop shards that are missing, unreadable, or differ from the manifest's sha256.")
    ] = False,
    force_unlock: Annotated[
        bool, o.data("--force-unlock", help="Only remove the lock of a dead writer, _writing.json.")
    ] = False,
    dry_run: o.DryRunOption = False,
) -> None:
    """Repair a damaged or unfinished dataset.

    Complete shards are adopted, partial files dropped, and the manifest is rebuilt. No file that may hold an episode is
    deleted: other shards move to quarantine/. Refused while a writer is active.
    """
    from offline_cli.checking.repair import repair

    call_and_show(ctx, repair)
