"""Lines of SampleBatch JSON that are read together give what each gives by itself: batches, places, counts, rejects, errors."""

from __future__ import annotations

import gc
import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, StorageError
from offline_cli.files.locations import open_location
from offline_cli.formats.sample_batch import SampleBatchSource
from offline_cli.formats.sample_batch import files as module
from offline_cli.formats.sample_batch.files import lines_of
from offline_cli.spaces import Space
from offline_cli.tally import OnError, Rejects, Tally

TUPLE = gym.spaces.Tuple([gym.spaces.Discrete(4), gym.spaces.Discrete(4)])


def batch(start: int, **changes: Any) -> dict[str, Any]:
    """Two steps of episode 7."""
    columns = {
        "obs": [[start, 0.1], [start + 1.0, 0.1]],
        "new_obs": [[start + 1.0, 0.1], [start + 2.0, 0.1]],
        "actions": [1, 0],
        "prev_actions": [0, 1],
        "rewards": [1.0, 0.5],
        "terminateds": [False, False],
        "t": [start, start + 1],
        "eps_id": [7, 7],
        "vf_preds": [0.5, 0.25],
        "unroll_id": [0, 0],
        "infos": [{}, {"a": 1}],
    }
    return {name: value for name, value in {**columns, **changes}.items() if value is not ...}


CHANGES: list[dict[str, Any]] = [
    {},
    {},
    {"rewards": [1, 2]},
    {"rewards": [1, None]},
    {"actions": [2**40, 1], "prev_actions": [5, 5]},
    {"vf_preds": [0.1, 0.2]},
    {"vf_preds": [1, 2]},
    {"vf_preds": ["1", "2"]},
    {"vf_preds": [2**63, 1]},
    {"terminateds": [False, True], "eps_id": [9, 9]},
    {"terminateds": [0, 1], "eps_id": [11, 11]},
    {"eps_id": ["x", "y"]},
    {"eps_id": ...},
    {"obs": [[0.5, 0.1]]},
    {"obs": [[0.5], [0.5, 0.1]]},
    {"new_obs": ...},
    {"actions": [[1, 2], [3, 0]], "prev_actions": ...},
    {"rewards": [], "eps_id": []},
    {"infos": ...},
    {"infos": [1.5, 2]},
    {"infos": [[1], [2]]},
]


def lines_by(seed: int) -> list[str]:
    draw = random.Random(seed)
    lines = []
    for number in range(30):
        columns = batch(2 * number, **draw.choice(CHANGES))
        several = {"type": "MultiAgentBatch", "policy_batches": {"a": columns, "b": batch(2 * number, **draw.choice(CHANGES))}}
        text = json.dumps(draw.choice([{"type": "SampleBatch", **columns}, several, {"value": {**columns}}]))
        lines.append(draw.choice([text] * 9 + [text[:-9], text.replace("0.5", "NaN"), "[1]"]))
    return lines


def seen(batch_: EpisodeBatch) -> tuple[Any, ...]:
    return batch_.ids, str(batch_), [batch_.digest(episode) for episode in range(len(batch_))], batch_.infos, batch_.agent_ids


def read(files: list[Path], *, action_space: Space | None = None) -> Any:
    tally, rejects = Tally(), Rejects(OnError.QUARANTINE)
    source = SampleBatchSource([open_location(file) for file in files], "test")
    source.info = replace(source.info, action_space=action_space)
    found = []
    for one in source.fragments(tally, rejects):
        assert one.origins is not None
        found.append((seen(one.batch), [one.origins[entry] for entry in range(len(one.batch))]))
    return found, tally, rejects


@pytest.mark.parametrize("space", [None, TUPLE], ids=["no space", "a tuple of actions"])
@pytest.mark.parametrize("seed", range(12))
def test_lines_give_together_what_they_give_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, space: Space | None
) -> None:
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for number, file in enumerate(files):
        file.write_text("\n".join(lines_by(2 * seed + number)))
    together = read(files, action_space=space)
    monkeypatch.setattr(module, "TOGETHER_BYTES", 1)
    alone = read(files, action_space=space)
    monkeypatch.setattr("offline_cli.formats.sample_batch.lines.arrays_of", lambda lists, narrow: None)
    assert together == alone == read(files, action_space=space)


def test_infos_that_are_numbers_stay_what_they_are(tmp_path: Path) -> None:
    file = tmp_path / "lines.json"
    file.write_text(json.dumps(batch(0, infos=[1.5, 2], terminateds=[False, True])) + "\n")
    tally = Tally()
    found = next(SampleBatchSource([open_location(file)], "test").fragments(tally, Rejects())).batch
    assert tally.assumptions["info-not-a-dict"] == 2
    assert found.infos is not None
    assert [info["info"] for info in found.infos if info] == [1.5, 2]


def test_a_type_that_is_a_list_of_numbers_is_told_as_no_batch(tmp_path: Path) -> None:
    file = tmp_path / "lines.json"
    file.write_text(json.dumps(batch(0)) + "\n" + json.dumps({"type": [1, 2], **batch(2)}) + "\n")
    source = SampleBatchSource([open_location(file)], "test")
    with pytest.raises(BadData, match=r"a line of type \[1, 2\]"):
        list(source.fragments(Tally(), Rejects()))


def test_the_first_of_several_bad_places_is_the_one_that_is_named(tmp_path: Path) -> None:
    file = tmp_path / "bad.json.gz"
    file.write_bytes(gzip.compress(("\n".join([json.dumps(batch(0)), "[1]", json.dumps(batch(2))]) + "\n").encode())[:-12])
    with pytest.raises(BadData, match="holds a list") as caught:
        list(SampleBatchSource([open_location(file)], "test").fragments(Tally(), Rejects()))
    assert caught.value.where.endswith("line 2")


def test_a_source_that_is_read_in_part_leaves_the_search_for_cycles_on(tmp_path: Path) -> None:
    file = tmp_path / "lines.json"
    file.write_text(json.dumps(batch(0)) + "\n")
    found = next(SampleBatchSource([open_location(file)], "test").fragments(Tally(), Rejects())).batch
    assert gc.isenabled()
    np.testing.assert_array_equal(found.rewards, [1.0, 0.5])


def test_what_is_lost_between_lines_is_told_in_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offline_cli.formats.sample_batch.files.MAX_LINE_BYTES", 2000)
    file = tmp_path / "lines.json"
    file.write_text("\n".join([json.dumps(batch(0)), "[1]", "x" * 3000, "[2]", json.dumps(batch(2))]) + "\n")
    _, tally, rejects = read([file])
    assert [reject.where.rpartition(" ")[2] for reject in rejects.first] == ["2", "3", "4"]
    assert tally.rows_in == 4


def test_lines_before_a_storage_that_fails_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lines.json"
    file.write_text(json.dumps(batch(0)) + "\n[1]\n" + json.dumps(batch(2)) + "\n")

    def broken(location: Any, rejects: Rejects, scope: Any) -> Iterator[Any]:
        yield from list(lines_of(location, rejects, scope))[:2]
        raise StorageError("the disk is gone", where=location.url, fix="look for it")

    monkeypatch.setattr(module, "lines_of", broken)
    source, rejects = SampleBatchSource([open_location(file)], "test"), Rejects(OnError.SKIP)
    with pytest.raises(StorageError):
        list(source.fragments(Tally(), rejects))
    assert rejects.count == 1
