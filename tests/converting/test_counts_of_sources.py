"""What several sources together are counted is the sum of what each is counted alone: no source takes from another's counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from offline_cli.converting.reading import read_episodes

Row = Mapping[str, Any]


def row(eps_id: str, t: int, obs: float, new_obs: float | None, *, end: bool = False) -> Row:
    step = {"eps_id": eps_id, "t": t, "obs": [obs], "actions": t % 2, "rewards": 1.0, "terminateds": end, "truncateds": False}
    return step if new_obs is None else {**step, "new_obs": [new_obs]}


SOURCES: Mapping[str, Sequence[Row]] = {
    # other rows stand between those of an episode, so that stitching joins them, over a chain that is broken
    "broken": [row("a", 0, 5, 5), row("b", 0, 1, 2, end=True), row("a", 1, 7, 8, end=True)],
    "no_final": [row("c", 0, 1, None), row("c", 1, 2, None, end=True)],
    "no_final_apart": [row("d", 0, 1, None), row("e", 0, 1, None, end=True), row("d", 1, 2, None, end=True)],
    "unfinished": [row("f", 0, 1, None), row("f", 1, 2, None)],
    "still": [row("g", 0, 3, 3), row("h", 0, 3, 3, end=True), row("g", 1, 3, 3, end=True)],
}
ALONE: Mapping[str, Mapping[str, int]] = {
    "broken": {"broken-chain": 1},
    "no_final": {"missing-final-observation": 1},
    "no_final_apart": {"missing-final-observation": 2},
    "unfinished": {"missing-final-observation": 1, "unfinished-episode": 1},
    "still": {},
}


KINDS = ("sample-batch", "rllib-columns", "table")


def written(folder: Path, name: str, kind: str) -> Path:
    """A source of its own: SampleBatch JSON lines, a Parquet table of steps as RLlib writes them, or anybody's CSV."""
    place = folder / f"{name}-{kind}"
    place.mkdir(exist_ok=True)
    steps = [dict(step) for step in SOURCES[name]]
    if kind == "rllib-columns":
        pq.write_table(pa.Table.from_pylist(steps), place / "part.parquet")
    elif kind == "table":
        flat = [{key: value[0] if isinstance(value, list) else value for key, value in step.items()} for step in steps]
        csv.write_csv(pa.Table.from_pylist(flat), place / "part.csv")
    else:
        lines = [{key: [value] for key, value in step.items()} for step in steps]
        text = "".join(json.dumps({"type": "SampleBatch", **line}) + "\n" for line in lines)
        (place / "part.json").write_text(text, encoding="utf-8")
    return place


def counts(sources: Sequence[Path]) -> dict[str, int]:
    stream = read_episodes(sources, action_scale="env")
    assert sum(map(len, stream))
    return {kind: times for kind, times in stream.tally.assumptions.items() if kind not in ("dtype-inferred", "null-as-false")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SOURCES)
def test_a_source_alone_is_counted_what_is_wrong_with_it(name: str, kind: str, tmp_path: Path) -> None:
    assert counts([written(tmp_path, name, kind)]) == ALONE[name]


TOGETHER = [tuple(SOURCES)[:3], tuple(SOURCES), tuple(SOURCES)[::-1]]


@pytest.mark.parametrize(("names", "kind"), [(names, [*KINDS][number % len(KINDS)]) for number, names in enumerate(TOGETHER)])
def test_sources_together_are_counted_the_sum_of_each(names: Sequence[str], kind: str, tmp_path: Path) -> None:
    wanted: Counter[str] = Counter()
    for name in names:
        wanted.update(ALONE[name])
    assert counts([written(tmp_path, name, kind) for name in names]) == wanted
