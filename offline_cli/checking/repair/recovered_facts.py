"""What is known of the dataset in a damaged folder, and what its shards hold.

* `what_is_known`: what a manifest knows beyond its shards' counts: from a manifest, the writer's note, or the shards. What is
  left of a broken manifest is taken part by part: each valid part counts. Spaces are never guessed.
* `examine`: shards read to the last episode: which are whole, and what they hold; a broken one is reported with the reason.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

from offline_cli.checking.repair.survey import Broken, Choice, Said, Survey, missing
from offline_cli.columns import Columns
from offline_cli.converting.reading import read_opened
from offline_cli.datasets.file_names import MANIFEST, WRITING
from offline_cli.datasets.lease_record import WritingNote
from offline_cli.datasets.manifest import Environment, Manifest
from offline_cli.datasets.reading import ShardReader, ShardsAhead
from offline_cli.datasets.row_formats import RowFormat, row_format
from offline_cli.datasets.shard_sequence import Adopted, adopt
from offline_cli.datasets.statistics import StatisticsBuilder
from offline_cli.environments import spaces_of_env
from offline_cli.episodes.known_episodes import KnownIds
from offline_cli.errors import BadConfig, BadData, NoData, OfflineCliError
from offline_cli.files.locations import Location
from offline_cli.files.timeouts import ReadingPool
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.rllib.columns import RllibColumnsSource
from offline_cli.formats.rllib.episodes import RllibEpisodesSource
from offline_cli.formats.source import ENV_SCALE, NORMALIZED_SCALE, UNKNOWN_SCALE
from offline_cli.meanings import NO_MEANINGS, Meanings
from offline_cli.options import shared
from offline_cli.options.shared import COMPRESSION
from offline_cli.parquet.shard_hashes import fingerprint
from offline_cli.parquet.shard_writing import COMPRESSIONS
from offline_cli.parquet.shards import OpenShard, opened, read_row_groups
from offline_cli.progress import OnProgress, Progress
from offline_cli.scopes import Reading, Scope
from offline_cli.spaces import Space, space_from_json
from offline_cli.stop_signals import check
from offline_cli.tally import Tally

__all__ = ["FACTS", "Examined", "Known", "examine", "what_is_known"]

FORMATS: Final = get_args(shared.RowFormat)
SPACES: Final = ("observation_space", "action_space")
FACTS: Final = ("format", *SPACES, "spaces_inferred", "action_scale", "environment", "meanings", "compression")
"""What `Known` and a manifest say under the same names."""
SCALES: Final = (ENV_SCALE, NORMALIZED_SCALE, UNKNOWN_SCALE)


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What is known of a dataset."""

    said_by: str  # "note" | "manifest" | "shards"
    format: str
    observation_space: Space | None
    action_space: Space | None
    spaces_inferred: bool = False
    action_scale: str = UNKNOWN_SCALE
    environment: Environment | None = None
    meanings: Meanings = NO_MEANINGS
    compression: str = COMPRESSION.default
    assumptions: Mapping[str, int] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    episodes_lost: int | None = None  # of the source, on writing; None: unknown
    go_on_from: WritingNote | None = None  # the note that --resume would continue from, if all of its shards are whole


def what_is_known(found: Survey, choice: Choice, env: AskedEnvironment | None) -> Known:
    """Of the shards of `choice`. `env`: an environment whose spaces are theirs, if nothing else does. Raises

    BadConfig where spaces are needed and unknown, BadData where no shard can be read, and what
    `spaces_of_env` raises.
    """
    manifest, note = choice.by_manifest, found.note
    if choice.generation and note is not None and note.generation == choice.generation and note.options:
        of_note = _of_note(note, found)
        if manifest is None:
            return of_note
        lost = manifest.episodes_lost
        return replace(of_note, assumptions=manifest.assumptions, provenance=manifest.provenance, episodes_lost=lost)
    if manifest is not None:
        return _of_manifest(manifest)
    left, where = found.left_of_manifest(), found.folder.join(MANIFEST).url
    known = _of_document(left, where) if left else None
    if known is None:
        there = found.paths
        known = _of_shards(found.folder, [place for place in choice.shards if place.path in there], env, left)
    return known


def _of_manifest(manifest: Manifest) -> Known:
    return Known(
        said_by="manifest",
        **{name: getattr(manifest, name) for name in FACTS},
        assumptions=manifest.assumptions,
        provenance=manifest.provenance,
        episodes_lost=manifest.episodes_lost,
    )


def _of_note(note: WritingNote, found: Survey) -> Known:
    """From the options that `DatasetWriter` keeps in its note."""
    known = _of_document(note.options, found.folder.join(WRITING).url)
    if known is None:
        what = "the note of the writer has no readable format or spaces"
        fix = f"the command that wrote it, with --overwrite: {note.command}"
        raise BadData(what, where=found.folder.join(WRITING).url, fix=fix)
    provenance = {"commands": [note.command], "started": note.started}
    return replace(known, said_by="note", provenance=provenance, go_on_from=note)


# ---- what is left of a document ----


def _of_document(document: Mapping[str, Any], where: str) -> Known | None:
    """What can be read of a manifest, or of the options of a note; None where format or spaces cannot."""
    try:
        spaces = [None if document[name] is None else space_from_json(document[name], where=where) for name in SPACES]
    except (KeyError, OfflineCliError):
        return None
    if document.get("format") not in FORMATS or (document["format"] == "columns" and None in spaces):
        return None
    return Known(
        said_by="manifest",
        format=document["format"],
        observation_space=spaces[0],
        action_space=spaces[1],
        spaces_inferred=document.get("spaces_inferred") is True,
        **_other_parts(document),
    )


def _other_parts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Those that have the right kind, by their names in `Known`."""
    env, assumptions, provenance = (document.get(name) for name in ("environment", "assumptions", "provenance"))
    lost = document.get("episodes_lost")
    parts: dict[str, Any] = {
        "environment": _environment(env, provenance if isinstance(provenance, dict) else document),
        "assumptions": {k: v for k, v in assumptions.items() if type(v) is int and v >= 0}
        if isinstance(assumptions, dict)
        else {},
        "provenance": provenance if isinstance(provenance, dict) else {},
        "episodes_lost": lost if type(lost) is int and lost >= 0 else None,
    }
    with suppress(OfflineCliError):
        parts["meanings"] = Meanings.of(document.get("meanings", {}), "")
    chosen = {"action_scale": SCALES, "compression": COMPRESSIONS}
    return parts | {name: document[name] for name, values in chosen.items() if document.get(name) in values}


def _environment(document: Any, provenance: Mapping[str, Any]) -> Environment | None:
    if not isinstance(document, dict) or not isinstance(document.get("id"), str) or not document["id"]:
        return None
    return Environment.from_json(document, provenance)


# ---- what the shards say themselves ----


def _of_shards(folder: Location, shards: Sequence[Location], asked: AskedEnvironment | None, left: Mapping[str, Any]) -> Known:
    """Format by the columns, spaces as `convert` would have them of the same files."""
    readable = [place for place in shards if _can_be_read(place)]
    if not readable:
        fix = "restore it from a copy, or write the dataset again from its source"
        raise BadData("none of the shards can be read", where=folder.url, fix=fix)
    with opened(readable[0]) as file:
        packed = Columns.ITEM in file.schema_arrow.names
        codec = str(file.metadata.row_group(0).column(0).compression).lower() if file.num_row_groups else COMPRESSION.default
    source = (RllibEpisodesSource if packed else RllibColumnsSource)(readable, folder.url)
    others = _other_parts(left)
    env = None if asked is None else asked.among([(folder.url, others["environment"])])
    env_spaces = None if env is None else spaces_of_env(env)
    try:
        stream = read_opened([source], on_error="skip", env=env, env_spaces=env_spaces)
    except NoData as err:
        raise BadData("no episode can be read from the shards", where=folder.url, fix=err.fix) from err
    stream.close()  # only its spaces are needed
    known = Known(
        said_by="shards",
        format="episodes" if packed else "columns",
        observation_space=stream.observation_space,
        action_space=stream.action_space,
        spaces_inferred=stream.spaces_inferred,
        **{**others, "action_scale": stream.action_scale},
    )
    _check_spaces(known, readable[0])
    return replace(
        known,
        environment=known.environment or Environment.of(env),
        compression=codec if codec in COMPRESSIONS else known.compression,
    )


def _can_be_read(place: Location) -> bool:
    try:
        with opened(place) as file:
            rows: int = sum(table.num_rows for table in read_row_groups(file, place))
            return rows > 0
    except BadData:
        return False


def _check_spaces(known: Known, shard: Location) -> None:
    """Raise BadConfig where spaces that were inferred make other columns than the shards have."""
    reader = ShardReader(known.format, known.observation_space, known.action_space)
    try:
        with opened(shard) as file:
            reader.check_columns(file, shard)
    except BadData as err:
        what = f"the spaces of the dataset are unknown, and they do not follow from its columns: {err.what}"
        raise BadConfig(what, where=shard.url, fix="name the environment with --env") from err


# ---- what the shards hold ----


Ready = tuple[tuple[int, str], AbstractContextManager[OpenShard] | None]
"""The shard whose turn it is: its bytes and sha256, and what opens it; None: nothing has begun to."""
AT_ONCE: Final = 8  # shards that are hashed before their turn


@dataclass(slots=True)
class Examined:
    """What the shards hold."""

    rows: RowFormat
    sound: list[Adopted] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    statistics: StatisticsBuilder = field(default_factory=StatisticsBuilder)

    @property
    def left_out(self) -> int:
        """How many shards are broken."""
        return sum(one.count for one in self.broken)


def examine(choice: Choice, folder: Survey, known: Known, on_progress: OnProgress) -> Examined:
    """Read the shards in their order. Raises StorageError."""
    found = Examined(row_format(known.format, known.observation_space, known.action_space, Tally()))
    found.broken += choice.gaps
    reader, ids = ShardReader(known.format, known.observation_space, known.action_space), KnownIds()
    there = folder.paths
    places = [place for place in choice.shards if place.path in there]
    with Reading(lambda scope: _hashed_and_opened(places, folder.sizes, reader, scope)) as coming:
        for number, place in enumerate(choice.shards):
            check()
            if place.path not in there:
                found.broken.append(missing(place))
            else:
                _examine_one(found, place, reader, next(coming), choice.expected.get(place.path), ids)
            on_progress(Progress("reading shards", number + 1, len(choice.shards), "shards"))
    return found


def _hashed_and_opened(
    places: Sequence[Location], sizes: Mapping[str, int], reader: ShardReader, scope: Scope
) -> Iterator[Ready]:
    """Each of them in turn; ones in a bucket, a few at once, before it."""
    remote = [place for place in places if place.is_in_bucket]
    if len(remote) < len(places):
        yield from ((fingerprint(place), None) for place in places)
        return
    with scope.part() as held:
        pool = held.enter(ReadingPool(AT_ONCE))
        ahead = held.enter(ShardsAhead([(place, sizes[place.path]) for place in remote], reader.columns_of))
        hashing = deque(pool.submit(fingerprint, place) for place in remote[:AT_ONCE])
        for number in range(len(remote)):
            opening = ahead.turn()
            ahead.advance()
            known = hashing.popleft().result()
            hashing.extend(pool.submit(fingerprint, place) for place in remote[number + AT_ONCE : number + AT_ONCE + 1])
            yield known, opening


def _examine_one(found: Examined, place: Location, reader: ShardReader, ready: Ready, said: Said | None, ids: KnownIds) -> None:
    """Add it to `found`, as broken where it cannot be read, differs from its manifest entry, or repeats an episode."""
    statistics, (known, opening) = found.statistics.copy(), ready
    try:
        adopted = adopt(place, reader, found.rows, statistics, known=known, opening=opening)
        if said is not None and (refusal := said.refusal(adopted.shard.bytes, adopted.shard.sha256)):
            raise BadData(refusal, where=place.url, fix="")
        again = ids.met(adopted.ids) or {name for name, times in Counter(adopted.ids).items() if times > 1}
        if again:
            raise BadData(f"episode {min(again)!r} is in it, and was before", where=place.url, fix="")
    except BadData as error:
        found.broken.append(Broken(place, error.what, is_there=True))
    else:
        found.sound.append(adopted)
        found.statistics = statistics
        ids.add(adopted.ids)
