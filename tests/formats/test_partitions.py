"""Parts of a source, pickled and read by themselves, give together what the whole gives."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from read_partitions import Content, content_of, content_of_pickled

from offline_cli.converting.convert import convert
from offline_cli.formats.opening import open_sources
from offline_cli.formats.source import ReadOptions, Source
from offline_cli.tally import Tally

REPOSITORY = Path(__file__).resolve().parents[2]
SAMPLE = REPOSITORY / "sample_data" / "rllib_cartpole_expert"
RECORDINGS = (
    "rllib_columns_cartpole_expert",
    "rllib_episodes_cartpole_expert",
    "sample_batch_cartpole_lz4",
)


def opened(place: Path | str) -> Source:
    source = open_sources(str(place))[0]
    source.prepare(ReadOptions())
    return source


def assert_sum(parts: Iterable[Content], whole: Content) -> None:
    parts = list(parts)
    assert [one for part in parts for one in part.fragments] == whole.fragments
    tally, rejected, lost, incomplete = Tally(), 0, Counter[str](), dict[str, str]()
    for part in parts:
        tally.merge(part.tally)
        rejected += part.rejects.count
        lost.update(part.rejects.lost)
        incomplete |= part.rejects.incomplete
    assert tally == whole.tally
    assert (rejected, lost, incomplete) == (whole.rejects.count, whole.rejects.lost, whole.rejects.incomplete)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of ours, in several shards: a row an episode, and a row a step."""
    folder = tmp_path_factory.mktemp("datasets")
    for to in ("episodes", "columns"):
        convert(SAMPLE, folder / to, to=to, max_rows_per_file=3 if to == "episodes" else 1000)
    return [folder / "episodes", folder / "columns"]


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_parts_of_a_recording_give_together_what_it_gives(real_data: Path, name: str) -> None:
    source = opened(real_data / name)
    parts = source.partitions(4)
    assert 1 <= len(parts) <= 4
    assert_sum([content_of_pickled(pickle.dumps(part)) for part in parts], content_of(source))


@settings(max_examples=5, deadline=None)
@given(count=st.integers(1, 40), which=st.integers(0, 2))
def test_the_parts_of_what_is_divided_by_files_give_together_what_it_gives(
    datasets: list[Path], count: int, which: int
) -> None:
    source = opened([SAMPLE, *datasets][which])
    files = 20 if which == 0 else None
    parts = source.partitions(count)
    assert len(parts) <= count
    assert files is None or len(parts) == min(count, files)
    assert_sum([content_of_pickled(pickle.dumps(part)) for part in parts], content_of(source))


def test_what_is_rejected_in_parts_is_what_is_rejected_in_the_whole(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for number, file in enumerate(sorted(SAMPLE.iterdir())[:4]):
        table = pq.read_table(file)
        if number in (1, 2):
            table = table.set_column(0, "item", pa.array([b"torn"] * table.num_rows, pa.large_binary()))
        pq.write_table(table, tmp_path / file.name)
    source = opened(tmp_path)
    whole = content_of(source)
    assert whole.rejects.count == 2
    assert_sum([content_of_pickled(pickle.dumps(part)) for part in source.partitions(3)], whole)
