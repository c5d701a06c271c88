"""`offline-cli apply`: a learner pipeline over recordings; parses, calls the library once, shows the result."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from offline_cli.byte_sizes import byte_size
from offline_cli.cli import options, render
from offline_cli.cli.progress import working
from offline_cli.cli.stdin import with_stdin
from offline_cli.errors import OfflineCliError

__all__ = ["EXAMPLES", "KEYS", "apply"]

KEYS = ("out", "batches", "rows", "columns")
"""What `--json` prints at least, kept for good; with `--show` and `--trace` it is `pieces` instead."""

EXAMPLES = options.examples(
    "offline-cli apply dataset --pipeline pipeline.toml --out batches",
    "offline-cli apply dataset --pipeline pipeline.toml --out batches --format safetensors --steps-per-batch 4096",
    "offline-cli apply dataset --pipeline pipeline.toml --show",
    "offline-cli apply --env CartPole-v1 --pipeline pipeline.toml --show --json",
    "offline-cli apply recordings/ --pipeline pipeline.toml --trace 2",
)


def apply(
    ctx: typer.Context,
    pipeline: Annotated[
        str,
        typer.Option(
            "--pipeline", metavar="F", help="Pipeline file of kind learner (TOML, docs/connectors.md).", show_default=False
        ),
    ],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SRC",
            help="Recordings: folders, files or globs, as paths or URLs; - for what is piped in. --show --env needs none.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="D2", help="Folder to make for the train batches: a path or URL.")
    ] = None,
    format: Annotated[
        Literal["columns", "safetensors"],
        typer.Option("--format", metavar="columns|safetensors", help="Parquet with a row per step, or tensors by name."),
    ] = "columns",
    steps_per_batch: Annotated[
        int,
        typer.Option(
            "--steps-per-batch", min=1, metavar="N", help="A batch closes with the episode that brings it to N steps."
        ),
    ] = 65536,
    limit: Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Stop after this many episodes.")] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Show pieces, spaces and columns instead, without reading data or writing.")
    ] = False,
    trace: Annotated[
        int | None,
        typer.Option(
            "--trace", min=1, metavar="N", help="Show what the batch of the first N episodes holds after each piece instead."
        ),
    ] = None,
    from_: options.FromFormat = "auto",
    mapping: options.TableMapping = None,
    rows_as_episodes: options.RowsAsEpisodes = False,
    episode_ends: options.EpisodeEnds = None,
    env: Annotated[
        str | None,
        typer.Option("--env", metavar="ENV", help=f"Environment whose spaces hold, as in train-bc: {options.ENV_FORMS}."),
    ] = None,
    action_scale: options.ActionScale = None,
    temp_dir: options.TempDir = None,
    memory_limit: options.MemoryLimit = "1GiB",
    overwrite: options.Overwrite = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and make every batch, and write none.")] = False,
    cache: options.CacheFolder = None,
    cache_size: options.CacheSize = None,
    storage_option: options.StorageOptions = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Run a learner pipeline over recordings and write its train batches.

    Episodes come to the pipeline as train-bc gives them to it. Each batch is one file, of whole episodes; D2/batches.json,
    written last, says what they hold.
    """
    from offline_cli.applying.apply import apply as apply_pipeline

    try:
        with with_stdin(sources or []) as places, working(quiet=quiet) as on_progress:
            result = apply_pipeline(
                places,
                out,
                pipeline=pipeline,
                format=format,
                steps_per_batch=steps_per_batch,
                limit=limit,
                show=show,
                trace=trace,
                from_=from_,
                env=env,
                action_scale=action_scale,
                mapping=mapping,
                rows_as_episodes=rows_as_episodes,
                episode_ends=episode_ends,
                temp_dir=temp_dir,
                memory_limit=byte_size(memory_limit, option="--memory-limit"),
                overwrite=overwrite,
                dry_run=dry_run,
                storage_options=options.storage_options(storage_option, cache=cache, cache_size=cache_size),
                on_progress=on_progress,
                command=ctx.obj.recorded(),
            )
    except OfflineCliError as error:
        if trace is not None and error.result and not as_json:  # --json has the trace so far beside the error
            _show_traced(error.result)
        raise
    told = result.as_dict()
    if as_json or "pieces" not in told:
        render.show(result, as_json=as_json)
    elif trace is not None:
        _show_traced(told)
    else:
        _show_pieces(told)


def _show_pieces(told: dict[str, Any]) -> None:
    from offline_cli.report.pieces import shown

    inferred = " (spaces inferred)" if told["spaces_inferred"] else ""
    notes = [f"note: {told['note']}"] if told["note"] else []
    render.show_grid(
        *shown(told), above=[f"{told['pipeline']} for {', '.join(told['sources']) or 'no data'}{inferred}"], below=notes
    )


def _show_traced(told: dict[str, Any]) -> None:
    from offline_cli.report.pieces import traced

    ids = told["episodes"]
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    head = f"{told['pipeline']} over {told['steps']:,} steps of {len(ids)} episodes: {', '.join(ids[:3])}{more}"
    render.show_grid(*traced(told), above=[head])
