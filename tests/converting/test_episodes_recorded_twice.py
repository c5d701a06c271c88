"""Episodes that are recorded more than once cost no more than reading them, however many ids there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.checking.repair import repair
from offline_cli.converting.convert import ConvertResult, convert
from offline_cli.converting.stitching import Stitcher
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode
from offline_cli.formats.source import Fragments, Origins
from offline_cli.tally import OnError, Rejects, Tally

MANY = 24_000  # more ids than are kept as they are


def batch_of(names: Sequence[int]) -> EpisodeBatch:
    """Two-step episodes, whose values follow from their number."""
    number = np.asarray(names, np.int64)
    return EpisodeBatch(
        ids=tuple(f"e{name}" for name in names),
        starts=np.arange(len(number) + 1) * 2,
        obs=np.repeat(number, 3)[:, None].astype(np.float32) + np.tile(np.arange(3, dtype=np.float32), len(number))[:, None],
        actions=np.repeat(number % 2, 2),
        rewards=np.ones(2 * len(number)),
        terminated=np.ones(len(number), np.bool_),
        truncated=np.zeros(len(number), np.bool_),
    )


def stitched(batches: Sequence[EpisodeBatch], on_error: str = "fail") -> tuple[int, Stitcher]:
    """Episodes passed on, and the stitcher."""
    stitcher = Stitcher(Tally(), Rejects(OnError(on_error)))
    found = sum(len(out) for batch in batches for out in stitcher.feed(Fragments(batch), "f"))
    return found + sum(map(len, stitcher.finish())), stitcher


def processor_time(work: Callable[[], object], times: int = 2) -> float:
    """The least of several runs: other work on the machine makes each one longer, never shorter."""
    spent = []
    for _ in range(times):
        before = time.process_time()
        work()
        spent.append(time.process_time() - before)
    return min(spent)


def steps_table(names: Sequence[int]) -> pa.Table:
    batch = batch_of(names)
    obs, new_obs = batch.acted_obs(), batch.next_obs()
    terminateds, truncateds = batch.step_flags()
    return pa.table(
        {
            "eps_id": np.repeat(batch.ids, 2),
            "obs": pa.FixedSizeListArray.from_arrays(pa.array(obs.ravel()), 1),
            "new_obs": pa.FixedSizeListArray.from_arrays(pa.array(new_obs.ravel()), 1),
            "actions": batch.actions,
            "rewards": batch.rewards,
            "terminateds": terminateds,
            "truncateds": truncateds,
        }
    )


def converted(sources: Sequence[Path], out: Path) -> ConvertResult:
    return convert(sources, out, overwrite=out.exists())


def test_converting_many_episodes_twice_takes_at_most_four_times_as_long_as_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pq.write_table(steps_table(range(MANY)), tmp_path / f"{name}.parquet")
    once = processor_time(lambda: converted([tmp_path / "a.parquet"], tmp_path / "once"))
    result = converted([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "twice")
    assert (result.episodes, result.duplicates_dropped) == (MANY, MANY)
    twice = processor_time(lambda: converted([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "twice"), times=1)
    assert twice <= 4 * once


def batches(names: Sequence[int], size: int) -> list[EpisodeBatch]:
    return [batch_of(names[first : first + size]) for first in range(0, len(names), size)]


@pytest.mark.parametrize("repeats", [2, 3])
@pytest.mark.parametrize("size", [1_000, 7_001, 3 * MANY])
@pytest.mark.parametrize("beside", [False, True])
def test_stitching_episodes_again_takes_as_long_for_each_as_the_first_time(repeats: int, size: int, *, beside: bool) -> None:
    again = np.repeat(np.arange(MANY), repeats) if beside else np.tile(np.arange(MANY), repeats)
    first, parts = batches(range(MANY), size), batches(again.tolist(), size)
    once = processor_time(lambda: stitched(first))
    found, stitcher = stitched(parts)
    assert (found, stitcher.tally.duplicates_dropped) == (MANY, (repeats - 1) * MANY)
    assert processor_time(lambda: stitched(parts), times=1) <= 4 * repeats * once + 0.5


@pytest.mark.nightly
def test_stitching_two_hundred_thousand_episodes_twice_is_linear_too() -> None:
    once = processor_time(lambda: stitched(batches(range(200_000), 50_000)), times=1)
    assert processor_time(lambda: stitched(batches([*range(200_000)] * 2, 50_000)), times=1) <= 4 * once


def test_a_conflict_among_many_episodes_recorded_twice_names_both_places() -> None:
    one = batch_of(range(MANY))
    other = batch_of(range(MANY))
    other.rewards[2 * 20_000] = 5.0
    stitcher = Stitcher(Tally(), Rejects())
    places = [Origins((name,), np.zeros(MANY, np.int64), np.arange(MANY) * 2) for name in ("one.parquet", "two.parquet")]
    assert sum(map(len, stitcher.feed(Fragments(one, places[0]), "f"))) == MANY
    with pytest.raises(BadEpisode, match="two different episodes have the id e20000") as caught:
        list(stitcher.feed(Fragments(other, places[1]), "f"))
    assert caught.value.where == "one.parquet row 40000 and two.parquet row 40000"


def test_only_the_conflicting_ones_of_many_episodes_recorded_twice_are_left_out() -> None:
    other = batch_of(range(MANY))
    other.rewards[::2000] += 1
    found, stitcher = stitched([batch_of(range(MANY)), other], on_error="skip")
    conflicts = 2 * MANY // 2000
    assert (found, stitcher.tally.duplicates_dropped, stitcher.rejects.count) == (MANY, MANY - conflicts, 2 * conflicts)


def test_repairing_a_shard_of_many_episodes_is_linear(tmp_path: Path) -> None:
    pq.write_table(steps_table(range(MANY)), tmp_path / "a.parquet")
    out = tmp_path / "D"
    written = processor_time(lambda: converted([tmp_path / "a.parquet"], out))

    def repaired() -> None:
        (out / "manifest.json").unlink()
        assert repair(out).episodes == MANY

    assert processor_time(repaired, times=1) <= 5 * written + 1
