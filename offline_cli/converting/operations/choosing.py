"""Which episodes are taken: parts of a choice (`top`, `drawn`, `listed_ids`, `problem_ids`), and the parts of a split."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.converting.operations.operation import NOWHERE, Survey
from offline_cli.datasets.row_format import PLAIN_SCHEMA
from offline_cli.errors import BadData, NoData, UsageError
from offline_cli.storage.locations import Location

__all__ = ["Parts", "drawn", "listed_ids", "problem_ids", "share_of", "top"]

PUT_RIGHT: Final = frozenset(
    {"duplicate-episode", "zero-length-episode", "gap-in-episode", "steps-after-end", "unreadable-row", "length-mismatch"}
    | {"unsafe-data", "unsupported-space"}
)
"""Codes of `validate` for what is not read as an episode, or only once."""
OF_FILES: Final = frozenset(
    {"unreadable-source", "no-episodes", "unreadable-file", "lost-episodes", "mixed-action-scales", "uncommitted"}
    | {"broken-manifest", "missing-shard", "shard-size", "shard-hash", "shard-columns", "count-mismatch", "statistics-mismatch"}
    | {"unlisted-file", "leftover-file", "incomplete-dataset", "damaged-quarantine"}
)
"""Codes of `validate` for what is wrong with sources and files."""
TOLERANCE: Final = 1e-9  # of fractions: 0.7 + 0.2 + 0.1 is not 1
MOST_PARTS: Final = 64
LONGEST_NAME: Final = 100  # letters of a part's folder
PART_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,99}(?<![.])", re.ASCII)
EXAMPLES: Final = {"--fractions": "train=0.9,val=0.1", "--counts": "train=100,val=20"}


def top(returns: NDArray[np.float64], fraction: float) -> NDArray[np.bool_]:
    """(E,) the `fraction` of the episodes with the highest returns, at least one; the first of equal ones, and none of NaN."""
    order = np.argsort(-returns, kind="stable")[: share_of(len(returns), fraction)]
    found = np.zeros(len(returns), np.bool_)
    found[order] = True
    return found & ~np.isnan(returns)


def share_of(episodes: int, fraction: float) -> int:
    """How many episodes a fraction of them is: the nearest whole number, at least 1."""
    return max(1, int(np.floor(episodes * fraction + 0.5)))


def drawn(episodes: int, seed: int) -> NDArray[np.int64]:
    """(E,) their numbers in random order, the same for a seed."""
    return np.argsort(np.random.default_rng(seed).random(episodes), kind="stable")


def listed_ids(place: Location) -> list[str]:
    """The ids in a file, one a line, each once. Raises BadData for no UTF-8, NoData where there is none, StorageNotFound."""
    try:
        text = place.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadData(f"not UTF-8 text: {error}", where=place.url, fix="one id a line, in UTF-8") from error
    ids = list(dict.fromkeys(line for line in text.replace("\r\n", "\n").split("\n") if line.strip()))
    if not ids:
        raise NoData("no id is in the file", where=place.url, fix="one id a line")
    return ids


def problem_ids(place: Location) -> list[str]:
    """Ids of the episodes that a result of `validate --json` names for an error or a warning.

    What reading leaves out or puts right itself (`PUT_RIGHT`), and what is wrong with files, names no episode. Raises BadData
    for another file, and, naming all codes, for problems of episodes that do not name each of them; StorageNotFound.
    """
    fix = "write it again: offline-cli validate SRC --json > FILE"
    try:
        document = orjson.loads(place.read_bytes())
        serious = [one for one in document["problems"] if one["severity"] != "note" and one["code"] not in PUT_RIGHT]
        lists = {one["code"]: (one["details"].get("episodes"), one["details"].get("episodes_in_all")) for one in serious}
        inherited = {one["code"] for one in serious if "inherited" in one["details"]}
        ids = [str(name) for one in serious for name in one["details"].get("episodes", ())]
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise BadData("this is no result of validate --json", where=place.url, fix=fix) from error
    vague = [code for code, (named, more) in lists.items() if more or (named is None and code not in OF_FILES | inherited)]
    if vague:
        what = f"it does not say which episodes these problems are of: {', '.join(sorted(set(vague)))}"
        raise BadData(what, where=place.url, fix="choose by --where or --ids-file, or correct the source")
    return list(dict.fromkeys(ids))


# ---- parts of a split ----


@dataclass(frozen=True, slots=True)
class Parts:
    """What `split` was asked for."""

    amounts: Mapping[str, float]  # by name of the part: its share, or how many episodes; empty with `by`
    are_counts: bool
    by: str | None  # the column, or field of custom data, whose values are the parts

    @classmethod
    def of(cls, fractions: Mapping[str, float] | str | None, counts: Mapping[str, int] | str | None, by: str | None) -> Parts:
        """From the options of `split`, of which exactly one is given. Raises UsageError, naming all that is wrong."""
        if sum(option is not None for option in (fractions, counts, by)) != 1:
            fix = "offline-cli split SRC --out F --fractions train=0.9,val=0.1"
            raise UsageError("give exactly one of --fractions, --counts and --by", where="offline-cli split", fix=fix)
        if by is not None:
            return cls({}, are_counts=False, by=by)
        option, given = ("--counts", counts) if fractions is None else ("--fractions", fractions)
        assert given is not None
        pairs = _pairs(given) if isinstance(given, str) else [(name, str(value)) for name, value in given.items()]
        amounts, wrong = dict[str, float](), list[str]()
        for name, text in pairs:
            amount = _amount(text, is_count=fractions is None)
            if not name:
                wrong.append(f"{text or 'nothing'} of which part? Each has a name: train={text}")
            elif not PART_NAME.fullmatch(name):
                wrong.append(
                    f"{name!r} is no name of a folder: letters, digits, - _ . and =, beginning with a letter or a digit"
                )
            elif name.casefold() in map(str.casefold, amounts):
                wrong.append(f"{name!r} is given twice, or with other capitals")
            if amount is None:
                wrong.append(
                    f"{name}={text}: {'a whole number' if fractions is None else 'a number up to 1'} above 0 is wanted"
                )
            amounts[name] = amount or 0
        if fractions is not None and not wrong and sum(amounts.values()) > 1 + TOLERANCE:
            wrong.append(f"the fractions make {sum(amounts.values()):g} in sum, more than 1")
        if wrong:
            raise UsageError.of(wrong, where=option, fix=f"{option} {EXAMPLES[option]}")
        return cls(amounts, are_counts=fractions is None, by=None)

    def asked(self, seed: int) -> dict[str, Any]:
        """As plain values."""
        if self.by is not None:
            return {"by": self.by}
        return {"counts" if self.are_counts else "fractions": dict(self.amounts), "seed": seed}

    def drawn(self, survey: Survey, seed: int, where: str) -> tuple[list[str], NDArray[np.int64]]:
        """The names of the parts, and (E,) the number of each episode's, NOWHERE of one in none. `where`: the sources.

        Raises NoData where there are too few episodes, UsageError for a column of too many values.
        """
        if self.by is not None:
            column = survey.table.column(self.by)
            if self.by not in PLAIN_SCHEMA.names and column.null_count == len(column):
                fix = f"one of {', '.join(PLAIN_SCHEMA.names)}, or a field of the episodes' custom data"
                raise UsageError(f"no column of episodes is called {self.by!r}", where="--by", fix=fix)
            return _by_value(column, self.by)
        sizes = [int(amount) for amount in self.amounts.values()]
        if not self.are_counts:
            sizes = _shared_out(list(self.amounts.values()), len(survey))
        if sum(sizes) > len(survey):
            what = f"{sum(sizes):,} episodes are wanted, and the sources have {len(survey):,}"
            raise NoData(what, where=where, fix="ask for fewer: an episode is in one part")
        empty = [name for name, size in zip(self.amounts, sizes, strict=True) if not size]
        if empty:
            what = f"of {len(survey):,} episodes none is left for {', '.join(empty)}; nothing was written"
            raise NoData(what, where=where, fix="give larger fractions, or --counts")
        part_of = np.full(len(survey), NOWHERE)
        part_of[drawn(len(survey), seed)[: sum(sizes)]] = np.repeat(np.arange(len(sizes)), sizes)
        return list(self.amounts), part_of


def _pairs(text: str) -> list[tuple[str, str]]:
    """`train=0.9,val=0.1` as pairs."""
    found = [part.rpartition("=") for part in text.split(",")]
    return [(name.strip(), value.strip()) for name, _, value in found]


def _amount(text: str, *, is_count: bool) -> float | None:
    """A share above 0 and up to 1, or a count of at least 1; None for other text."""
    if is_count:
        return int(text) if re.fullmatch("[0-9]{1,18}", text, re.ASCII) and int(text) else None
    try:
        share = float(text)
    except ValueError:
        return None
    return share if 0 < share <= 1 else None


def _shared_out(fractions: Sequence[float], episodes: int) -> list[int]:
    """How many episodes each part has: exact in sum, by the largest remainder; the first of equal ones."""
    quotas = np.array(fractions) * episodes
    counts = np.floor(quotas + TOLERANCE).astype(np.int64)
    left = round(float(quotas.sum())) - int(counts.sum())
    counts[np.argsort(counts - quotas, kind="stable")[: max(0, left)]] += 1
    return [int(count) for count in counts]


def _by_value(column: Any, name: str) -> tuple[list[str], NDArray[np.int64]]:
    """Names of parts, one for each value of a pa.ChunkedArray, in order; and (E,) the number of each episode's."""
    encoded = pc.dictionary_encode(column, null_encoding="encode").combine_chunks()
    encoded = encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded
    values = encoded.dictionary.to_pylist()
    if len(values) > MOST_PARTS:
        what = f"column {name!r} has {len(values):,} values, more than {MOST_PARTS} parts"
        raise UsageError(
            what, where="--by", fix="split by a column of fewer values, or filter --where with conditions of your own"
        )
    order = sorted(range(len(values)), key=lambda i: (values[i] is None, values[i] if values[i] is not None else 0))
    number_of = np.empty(len(values), np.int64)
    number_of[order] = np.arange(len(values))
    names = list[str]()
    for i in order:
        safe, taken = _folder_name(values[i]), {one.casefold() for one in names}
        names.append(next(one for one in chain([safe], (f"{safe}-{n}" for n in count(2))) if one.casefold() not in taken))
    return names, number_of[encoded.indices.to_numpy(zero_copy_only=False)]


def _folder_name(value: Any) -> str:
    """A value as the name of a folder: what such names do not have is percent-encoded, and long ones end in a hash."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    safe = "".join(letter if PART_NAME.fullmatch(f"a{letter}") else quote(letter, safe="", errors="replace") for letter in text)
    safe = f"%{ord(safe[0]):02X}{safe[1:]}" if safe and not safe[0].isalnum() and safe[0] != "%" else safe or "empty"
    return safe if len(safe) <= LONGEST_NAME else f"{safe[:80]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
