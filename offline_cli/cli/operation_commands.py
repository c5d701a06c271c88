"""`offline-cli filter`, `sample`, `split`, `merge`, `repack` and `diff`: each calls the library function of its name."""

from typing import Annotated

import typer

from offline_cli.choices import EXTRAS, WORKERS
from offline_cli.cli import completion
from offline_cli.cli import options as o
from offline_cli.cli.calling import call, call_and_show, show_result
from offline_cli.cli.command import command

KEYS = ("out", "episodes", "steps", "dropped")


@command(
    takes=o.OPERATION,
    most_used=("out", "where", "top_fraction", "ids_file", "resume", "as_json"),
    examples=(
        'offline-cli filter dataset --out good --where "return > 450 and length < 500"',
        "offline-cli filter dataset --out best --top-fraction 0.1",
        "offline-cli filter recordings/ --out mine --ids-file ids.txt --json",
        "offline-cli filter dataset --out clean --drop-problems problems.json",
    ),
    keys=KEYS,
)
def filter(
    ctx: typer.Context,
    sources: o.SourcesArgument,
    out: o.OutOption,
    where: Annotated[
        str | None,
        o.data(
            help="Condition on eps_id, length, return, terminated, truncated, agent_id, module_id.",
            metavar="CONDITION",
        ),
    ] = None,
    top_fraction: o.TopFractionOption = None,
    ids_file: Annotated[str | None, o.data(help="File of episode ids, one per line.", metavar="FILE")] = None,
    drop_problems: Annotated[
        str | None, o.data(help="Drop episodes with an error or warning in this JSON result of validate.", metavar="FILE")
    ] = None,
) -> None:
    """Keep episodes by a condition, a share of the best, or a list of ids.

    Several criteria must all hold. Episodes stay whole, in the order of the sources.
    """
    from offline_cli.converting.operations.selecting import filter

    call_and_show(ctx, filter)


@command(
    takes=o.OPERATION,
    most_used=("out", "episodes", "steps", "fraction", "seed", "as_json"),
    examples=(
        "offline-cli sample dataset --out small --episodes 100",
        "offline-cli sample robot.csv --out small --mapping robot.toml --steps 10000",
        "offline-cli sample s3://bucket/dataset --out small --fraction 0.01 --seed 7",
    ),
    keys=KEYS,
)
def sample(
    ctx: typer.Context,
    sources: o.SourcesArgument,
    out: o.OutOption,
    episodes: o.EpisodesOption = None,
    steps: o.StepsOption = None,
    fraction: Annotated[float | None, o.how_long(help="Share of the episodes: above 0, at most 1.")] = None,
    seed: o.DataSeedOption = 0,
) -> None:
    """Draw episodes at random, without replacement.

    The same seed draws the same episodes. They stay in the order of the sources.
    """
    from offline_cli.converting.operations.selecting import sample

    call_and_show(ctx, sample)


@command(
    takes=o.OPERATION,
    most_used=("out", "fractions", "counts", "by", "seed", "as_json"),
    examples=(
        "offline-cli split dataset --out parts --fractions train=0.9,val=0.1",
        "offline-cli split dataset --out parts --counts train=100,val=20 --seed 7",
        "offline-cli split dataset --out parts --by module_id --json",
    ),
    keys=(*KEYS, "parts"),
)
def split(
    ctx: typer.Context,
    sources: o.SourcesArgument,
    out: o.OutOption,
    fractions: Annotated[
        str | None, o.data(help="Parts and their shares of the episodes: train=0.9,val=0.1.", metavar="NAME=X")
    ] = None,
    counts: Annotated[
        str | None, o.data(help="Parts and their numbers of episodes: train=100,val=20.", metavar="NAME=N")
    ] = None,
    by: Annotated[
        str | None, o.data(help="One part for each value of a column, or of a field of custom data.", metavar="COLUMN")
    ] = None,
    seed: o.DataSeedOption = 0,
) -> None:
    """Split episodes into several datasets, such as OUT/train and OUT/val.

    Parts are random, by a seed, or follow the values of a column. Episodes stay whole, each in at most one part.
    """
    from offline_cli.converting.operations.splitting import split

    call_and_show(ctx, split)


@command(
    takes=o.OPERATION,
    most_used=("out", "unique_ids", "extras", "action_scale", "resume", "as_json"),
    examples=(
        "offline-cli merge monday tuesday --out week",
        "offline-cli merge 'runs/*' --out all --unique-ids --extras common",
        "offline-cli merge dataset robot.csv --mapping robot.toml --action-scale env --out both --json",
    ),
    keys=KEYS,
)
def merge(
    ctx: typer.Context,
    sources: o.SourcesArgument,
    out: o.OutOption,
    unique_ids: Annotated[
        bool, o.data("--unique-ids", help="Rename a different episode with an existing id: ID-2, ...")
    ] = False,
    extras: o.ExtrasOption = EXTRAS,
) -> None:
    """Join several datasets or recordings into one.

    Spaces and action scale must be equal. Duplicate episodes are dropped; a different episode with an existing id is refused.
    """
    from offline_cli.converting.operations.merging import merge

    call_and_show(ctx, merge)


@command(
    takes=o.OPERATION,
    most_used=("out", "format", "compression", "drop", "hash_ids", "as_json"),
    examples=(
        "offline-cli repack dataset --out columns --format columns --compression snappy",
        "offline-cli repack dataset --out shared --drop infos --hash-ids",
        "offline-cli repack dataset --out larger --max-bytes-per-file 1073741824",
    ),
    keys=KEYS,
)
def repack(
    ctx: typer.Context,
    sources: o.SourcesArgument,
    out: o.OutOption,
    drop: Annotated[
        list[str], o.data(help="Column to drop: an extra model output, or infos. Repeatable.", metavar="COLUMN")
    ] = o.NO_VALUES,
    hash_ids: Annotated[
        bool, o.data("--hash-ids", help="Replace ids by their SHA-256. A guessed id can still be verified.")
    ] = False,
) -> None:
    """Rewrite episodes with other shard sizes, compression or row format.

    Can also drop columns, and hash ids.
    """
    from offline_cli.converting.operations.merging import repack

    call_and_show(ctx, repack)


@command(
    takes=(o.tables, o.environment, o.stored, o.cached, o.common),
    most_used=("env", "mapping", "from_", "action_scale", "workers", "as_json"),
    examples=(
        "offline-cli diff dataset copy",
        "offline-cli diff recordings/ s3://bucket/dataset --json",
        "offline-cli diff robot.csv dataset --mapping robot.toml --env CartPole-v1",
    ),
    keys=("equal", "missing", "changed", "first"),  # also for a difference, with `error` and `exit_code`
)
def diff(
    ctx: typer.Context,
    a: Annotated[str, typer.Argument(help=o.SOURCES, metavar="A", autocompletion=completion.sources)],
    b: Annotated[str, typer.Argument(help="Recordings to compare with.", metavar="B", autocompletion=completion.sources)],
    env: o.SpacesOfOption = None,
    action_scale: o.ActionScaleOption = None,
    workers: o.WorkersOption = WORKERS,
) -> None:
    """Compare two recordings, episode by episode.

    Episodes are matched by id, in any order and format. Exits with 7 if anything differs, with the first difference and both
    values.
    """
    from offline_cli.converting.operations.differences import diff

    result = call(ctx, diff)
    if result.equal or not ctx.obj.as_json:  # with --json, the error boundary writes the one object of a difference
        show_result(ctx, result)
    result.check()


@command(
    takes=(o.stored, o.resuming, o.writing, o.common),
    most_used=("to", "license", "private", "dry_run", "resume", "as_json"),
    examples=(
        "offline-cli publish dataset --to hf://datasets/me/pendulum --license cc-by-4.0",
        "offline-cli publish dataset --to hf://datasets/team/robot --license other --private --dry-run",
        "offline-cli publish dataset --to s3://bucket/dataset --resume",
    ),
    keys=("to", "shards", "bytes", "new_shards", "new_bytes", "license"),
)
def publish(
    ctx: typer.Context,
    dataset: Annotated[str, typer.Argument(help="Dataset of ours: a folder or URL.", metavar="D")],
    to: Annotated[str, o.output(help="Where: hf://datasets/OWNER/NAME, a folder or a URL.", metavar="URL")],
    license: Annotated[
        str | None, o.output(help="Short name of the licence for the card: cc-by-4.0, mit, other, ...", metavar="NAME")
    ] = None,
    private: Annotated[bool, o.output("--private", help="Make a new repository of the Hub private.")] = False,
    overwrite: Annotated[bool, o.output("--overwrite", help="Replace another dataset that is there.")] = False,
) -> None:
    """Copy a dataset to the Hugging Face Hub, a folder or a bucket.

    Shards, manifest and a card; the Hub gets them in one commit. Run again after a break: what the Hub has is not sent again;
    elsewhere --resume continues the copy.
    """
    from offline_cli.publishing.publish import publish

    call_and_show(ctx, publish)
