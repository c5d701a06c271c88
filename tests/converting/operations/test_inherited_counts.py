"""What was assumed of a dataset, and lost of it, goes with its episodes through every command that writes datasets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli import filter, merge, repack, split
from offline_cli.converting.convert import convert
from offline_cli.datasets.manifest import Manifest
from offline_cli.storage.locations import open_location

ASSUMED = {
    "gap-in-t": 1,
    "missing-final-observation": 4,
    "missing-rewards": 18,
    "null-as-nan": 1,
    "unfinished-episode": 1,
    "unreadable-row": 1,
    "lost-episode-bad-row": 1,
}
MAPPED: dict[str, Any] = {
    "columns": {"eps_id": "run", "t": "t", "obs": ["x"], "actions": "a", "truncateds": "end"},
    "extra": {"v": "v"},
}


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Four episodes of a table, of which one lacks a row, one its end, one a value, and a fifth one is lost."""
    rows = [[f"run-{e}", t, e + t / 10, t % 2, 0.5, int(t == 3)] for e in range(5) for t in range(4)]
    del rows[1]
    rows[6][5], rows[9][4], rows[17][2] = 0, "", "east"
    path = tmp_path / "arm.csv"
    path.write_text("\n".join(["run,t,x,a,v,end", *(",".join(map(str, row)) for row in rows)]) + "\n")
    convert(path, tmp_path / "D", mapping=MAPPED, on_error="skip")
    return tmp_path / "D"


def counted(folder: Path) -> tuple[dict[str, int], int | None]:
    """What the manifest counts."""
    found = Manifest.read(open_location(str(folder)))
    return dict(found.assumptions), found.episodes_lost


def some(source: Path, out: Path) -> Any:
    return filter(source, out, where="length > 3")


def one_part(source: Path, out: Path) -> Any:
    return split(source, out.parent, fractions={out.name: 0.5})


def alone(source: Path, out: Path) -> Any:
    return merge([source], out)


def in_columns(source: Path, out: Path) -> Any:
    return repack(source, out, format="columns")


def again(source: Path, out: Path) -> Any:
    return convert(source, out)


@pytest.mark.parametrize("made", [some, one_part, alone, in_columns, again])
def test_a_dataset_made_of_another_counts_what_that_counts(made: Callable[[Path, Path], Any], dataset: Path) -> None:
    assert counted(dataset) == (ASSUMED, 1)
    copy, kept = dataset.parent / "copy", {"custom-data-not-kept"}  # `columns` counts something of its own
    told = made(dataset, copy).assumptions
    assumptions, lost = counted(copy)
    assert {kind: count for kind, count in assumptions.items() if kind not in kept} == ASSUMED
    assert lost == 1
    assert {kind: count for kind, count in told.items() if kind not in kept} == ASSUMED
    made(copy, copy.parent / "third")
    assert counted(copy.parent / "third") == (assumptions, lost)


def test_merging_and_appending_add_the_counts_of_all(dataset: Path) -> None:
    other = dataset.parent / "other"
    lines = (dataset.parent / "arm.csv").read_text().replace("run-", "ride-").splitlines()
    (dataset.parent / "other.csv").write_text("\n".join(lines) + "\n")
    convert(dataset.parent / "other.csv", other, mapping=MAPPED, on_error="skip")
    both = {kind: 2 * count for kind, count in ASSUMED.items()}
    merge([dataset, other], dataset.parent / "both")
    assert counted(dataset.parent / "both") == (both, 2)
    convert(other, dataset, append=True)
    assert counted(dataset) == (both, 2)
