"""`offline-cli filter`, `sample`, `split`, `merge`, `repack` and `diff`: each parses, calls the library, shows the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer

from offline_cli.cli import render
from offline_cli.cli.command_line import Command
from offline_cli.cli.progress import working
from offline_cli.cli.texts import with_stdin
from offline_cli.options.operations import (
    DiffFlags,
    DiffOptions,
    FilterOptions,
    MergeOptions,
    OperationFlags,
    RepackOptions,
    SampleOptions,
    SplitFlags,
    SplitOptions,
)

__all__ = ["COMMANDS"]

KEYS = ("out", "episodes", "steps", "dropped")


def _run(ctx: typer.Context, operation: Callable[..., Any], flags: OperationFlags, options: Mapping[str, Any]) -> None:
    """Call the library function, and show its result."""
    with with_stdin(flags["sources"]) as places, working(quiet=flags["quiet"]) as on_progress:
        result = operation(places, flags["out"], **options, on_progress=on_progress, command=ctx.obj.recorded())
    render.show(result, as_json=flags["as_json"], summary=_summary)


def _summary(told: Mapping[str, Any]) -> dict[str, Any]:
    """What was done, or would be in a dry run."""
    apart = ("undecided",) if not told.get("undecided") else ()
    rows = {name: value for name, value in told.items() if name not in (*apart, "parts")}
    for name, part in told.get("parts", {}).items():
        rows[f"part {name}"] = f"{part['episodes']:,} episodes, {part['steps']:,} steps: {part['out']}"
    if told["episodes_lost"] is None:
        rows["episodes_lost"] = render.NOT_KNOWN
    return rows


def filter(ctx: typer.Context, flags: OperationFlags, options: FilterOptions) -> None:
    """Keep the episodes that a condition, a share of the best, or a list of ids chooses.

    Several of these choose what each of them does. Episodes are whole, and stay in the order of the sources.
    """
    from offline_cli.converting.operations.selecting import filter

    _run(ctx, filter, flags, options)


def sample(ctx: typer.Context, flags: OperationFlags, options: SampleOptions) -> None:
    """Draw episodes at random, without replacement.

    The same seed draws the same episodes. They stay in the order of the sources.
    """
    from offline_cli.converting.operations.selecting import sample

    _run(ctx, sample, flags, options)


def split(ctx: typer.Context, flags: SplitFlags, options: SplitOptions) -> None:
    """Divide episodes into several datasets, F/train and F/val for instance.

    Parts are drawn at random, by a seed, or by the values of a column. No episode is cut, or in two parts.
    """
    from offline_cli.converting.operations.selecting import split

    _run(ctx, split, flags, options)


def merge(ctx: typer.Context, flags: OperationFlags, options: MergeOptions) -> None:
    """Join several datasets or recordings into one.

    Spaces and action scale have to be the same. An episode that is there already is dropped, another one of its id refused.
    """
    from offline_cli.converting.operations.merging import merge

    _run(ctx, merge, flags, options)


def repack(ctx: typer.Context, flags: OperationFlags, options: RepackOptions) -> None:
    """Write the same episodes in other files.

    Sizes of shards, compression, row format; without some columns, or under hashed ids.
    """
    from offline_cli.converting.operations.merging import repack

    _run(ctx, repack, flags, options)


def diff(ctx: typer.Context, flags: DiffFlags, options: DiffOptions) -> None:
    """Compare two recordings, episode by episode.

    Episodes are found by their ids, in any order and format. Exit code 7 where anything differs, with the place of the first
    difference and both values.
    """
    from offline_cli.converting.operations.differences import diff

    with with_stdin([flags["a"], flags["b"]]) as (a, b), working(quiet=flags["quiet"]) as on_progress:
        result = diff(a, b, **options, on_progress=on_progress)
    if result.equal or not flags["as_json"]:  # a difference under --json is one object, which the error boundary writes
        render.show(result, as_json=flags["as_json"], summary=_compared)
    result.check()


def _compared(told: Mapping[str, Any]) -> dict[str, Any]:
    """Counts, then what differs."""
    counted = ("a", "b", "equal", "episodes_a", "episodes_b", "steps_a", "steps_b", "missing_in_a", "missing_in_b", "changed")
    rows = {name: told[name] for name in counted}
    rows |= {f"{kind}, first ids": list(ids) for kind, ids in told["ids"].items() if ids}
    if told["first"]:
        rows["first difference"] = {name: value for name, value in told["first"].items() if value is not None}
    rows |= {f"other {fact['column']}": f"{fact['a']} and {fact['b']}" for fact in told["facts"]}
    return {**rows, **{f"note {number}": note for number, note in enumerate(told["notes"], 1)}}


COMMANDS = (
    Command(
        name="filter",
        run=filter,
        flags=OperationFlags,
        options=FilterOptions,
        first=("out", "where", "top_fraction", "ids_file", "resume"),
        examples=(
            'offline-cli filter dataset --out good --where "return > 450 and length < 500"',
            "offline-cli filter dataset --out best --top-fraction 0.1",
            "offline-cli filter recordings/ --out mine --ids-file ids.txt --json",
            "offline-cli filter dataset --out clean --drop-problems problems.json",
        ),
        keys=KEYS,
    ),
    Command(
        name="sample",
        run=sample,
        flags=OperationFlags,
        options=SampleOptions,
        first=("out", "episodes", "steps", "fraction", "seed"),
        examples=(
            "offline-cli sample dataset --out small --episodes 100",
            "offline-cli sample robot.csv --out small --mapping robot.toml --steps 10000",
            "offline-cli sample s3://bucket/dataset --out small --fraction 0.01 --seed 7",
        ),
        keys=KEYS,
    ),
    Command(
        name="split",
        run=split,
        flags=SplitFlags,
        options=SplitOptions,
        first=("out", "fractions", "counts", "by", "seed"),
        examples=(
            "offline-cli split dataset --out parts --fractions train=0.9,val=0.1",
            "offline-cli split dataset --out parts --counts train=100,val=20 --seed 7",
            "offline-cli split dataset --out parts --by module_id --json",
        ),
        keys=(*KEYS, "parts"),
    ),
    Command(
        name="merge",
        run=merge,
        flags=OperationFlags,
        options=MergeOptions,
        first=("out", "unique_ids", "extras", "action_scale", "resume"),
        examples=(
            "offline-cli merge monday tuesday --out week",
            "offline-cli merge 'runs/*' --out all --unique-ids --extras common",
            "offline-cli merge dataset robot.csv --mapping robot.toml --action-scale env --out both --json",
        ),
        keys=KEYS,
    ),
    Command(
        name="repack",
        run=repack,
        flags=OperationFlags,
        options=RepackOptions,
        first=("out", "format", "compression", "drop", "hash_ids"),
        examples=(
            "offline-cli repack dataset --out columns --format columns --compression snappy",
            "offline-cli repack dataset --out shared --drop infos --hash-ids",
            "offline-cli repack dataset --out larger --max-bytes-per-file 1073741824",
        ),
        keys=KEYS,
    ),
    Command(
        name="diff",
        run=diff,
        flags=DiffFlags,
        options=DiffOptions,
        first=("env", "mapping", "from_", "action_scale", "as_json"),
        examples=(
            "offline-cli diff dataset copy",
            "offline-cli diff recordings/ s3://bucket/dataset --json",
            "offline-cli diff robot.csv dataset --mapping robot.toml --env CartPole-v1",
        ),
        keys=("equal", "missing", "changed", "first"),  # of a difference too, beside `error` and `exit_code`
    ),
)
