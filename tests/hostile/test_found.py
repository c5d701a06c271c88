"""What the corpus and fuzzing found once, each as the smallest input that showed it."""

from __future__ import annotations

import base64
import gzip
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import lz4.frame
import make_corpus
import msgpack
import numpy as np
import pyarrow as pa
import pytest
from fuzz_seeds import small_items
from fuzz_targets import File, Wrong, check

from offline_cli.checking.inspect import inspect
from offline_cli.connectors import ClipRewards, FlattenObservations, MeanStdFilter, OneHot
from offline_cli.connectors.pipeline_spec import PipelineSpec, Setting
from offline_cli.converting.reading import read_opened
from offline_cli.episodes import episode_spaces
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import arrays, decode, decode_batch
from offline_cli.errors import (
    BadConfig,
    BadData,
    BadEpisode,
    BadMapping,
    BadPiece,
    SpaceMismatch,
    UnsafeData,
    UnsupportedSpace,
)
from offline_cli.formats.packed import unpack, unpack_cells
from offline_cli.formats.sample_batch import SampleBatchSource
from offline_cli.formats.sample_batch.files import lines_of
from offline_cli.formats.sample_batch.values import column_of
from offline_cli.formats.tables import TableOptions, TableSource
from offline_cli.formats.tables.files import TableFile
from offline_cli.formats.tables.mapping import CsvForm, mapping_of
from offline_cli.json_documents import from_json
from offline_cli.modules.policy_modules import build_module
from offline_cli.parquet.safety import refuse_bomb
from offline_cli.policies.run_policy import load_policy
from offline_cli.spaces import infer_space, space_from_json, space_from_rllib, space_to_json
from offline_cli.tally import OnError, Rejects, Tally

CORPUS = Path(__file__).resolve().parent / "corpus"


# ---- spaces ----


@pytest.mark.parametrize("dtype", ["f4,O", "(2,)f4", "f4,f4", "M8[s]", "U4"])
def test_a_dtype_of_a_space_is_one_number_and_never_parsed_further(dtype: str) -> None:
    with pytest.raises(UnsupportedSpace, match="dtype"):
        space_from_json({"type": "Discrete", "n": 2, "dtype": dtype}, where="test")
    with pytest.raises(BadEpisode, match="dtype"):
        space_from_rllib({"space": "discrete", "n": 2, "dtype": dtype}, where="test")


@pytest.mark.parametrize("node", [7, "box", np.float64(1.0), [1], np.zeros(3)], ids=repr)
def test_a_part_of_a_space_that_is_no_map_is_refused(node: Any) -> None:
    with pytest.raises(BadEpisode, match="where a space belongs"):
        space_from_rllib({"space": "dict", "spaces": {"a": node}}, where="test")
    with pytest.raises(UnsupportedSpace, match="where a space belongs"):
        space_from_json({"type": "Tuple", "spaces": [node]}, where="test")


def test_the_bounds_of_all_parts_share_one_limit() -> None:
    box = {"type": "Box", "shape": [3 << 20], "dtype": "float32", "low": 0, "high": 1}
    assert space_from_json({"type": "Dict", "spaces": [["a", box], ["b", box]]}, where="test")["b"].shape == (3 << 20,)
    with pytest.raises(UnsupportedSpace, match="over 64 MiB"):
        space_from_json({"type": "Dict", "spaces": [[str(i), box] for i in range(4)]}, where="test")


def test_a_box_of_nothing_may_not_have_sides_without_end() -> None:
    box = {"type": "Box", "shape": [3, 0], "dtype": "uint8", "low": 0, "high": 1}
    assert space_from_json(box, where="test").shape == (3, 0)
    with pytest.raises(UnsupportedSpace, match="over 64 MiB"):  # as JSON, its bounds would be lists of as many empty lists
        space_from_json({**box, "shape": [1 << 59, 0]}, where="test")


def test_bounds_of_bytes_that_become_wider_numbers_count_as_these() -> None:
    space = make_corpus.huge_space(5 << 20)
    assert space_from_rllib(space, where="test").shape == (5 << 20,)
    with pytest.raises(UnsafeData, match="bounds over 64 MiB"):
        space_from_rllib({**space, "dtype": "<f8"}, where="test")


def test_spaces_and_values_are_nested_at_most_16_deep() -> None:
    space: dict[str, Any] = {"type": "Discrete", "n": 2}
    tree: Any = np.zeros((2, 1))
    for _ in range(17):
        space, tree = {"type": "Tuple", "spaces": [space]}, {"a": tree}
    with pytest.raises(UnsupportedSpace, match="deeper than 16"):
        space_from_json(space, where="test")
    with pytest.raises(UnsupportedSpace, match="deeper than 16"):
        infer_space(tree, discrete=False)


def test_large_spaces_are_not_all_kept_for_later() -> None:
    for number in range(6):
        episode_spaces.known_space_from_rllib({**make_corpus.huge_space(5 << 20), "x": number}, where="test")
    kept = sum(space.low.nbytes + space.high.nbytes for _, space in episode_spaces._read if space.shape == (5 << 20,))
    assert 0 < kept <= episode_spaces.KEPT_BYTES


# ---- episodes ----


@pytest.mark.parametrize(
    "rewards", [{"a": np.zeros(2)}, np.zeros((2, 1)), np.array(["a", "b"]), [1.0, "x"], [1.0, [2.0]]], ids=repr
)
def test_rewards_that_are_not_one_number_per_step_are_no_episode(rewards: Any) -> None:
    buffer = {"data": rewards, "lookback": 0, "finalized": not isinstance(rewards, list), "space": None}
    with pytest.raises(BadEpisode, match="rewards"):
        decode(arrays.pack(msgpack_state(rewards=buffer)), where="test")


def test_rewards_in_a_list_that_is_called_finished_are_no_episode() -> None:
    buffer = {"data": [np.zeros(2)], "lookback": 0, "finalized": True, "space": None}
    with pytest.raises(BadEpisode, match="rewards"):
        decode(arrays.pack(msgpack_state(rewards=buffer)), where="test")


def test_steps_that_are_lists_of_several_lengths_are_no_episode() -> None:
    steps = {"data": [np.zeros(1, np.float32), [[1.0], 2.0], np.zeros(1, np.float32)], "lookback": 0, "finalized": False}
    with pytest.raises(BadEpisode, match="shapes differ"):
        decode(arrays.pack(msgpack_state(observations=steps)), where="test").to_numpy()


def msgpack_state(**changes: Any) -> dict[Any, Any]:
    return make_corpus.state(**changes)


@pytest.mark.parametrize("value", [b"\x80", b"\x90", b"\x81\x01\x01"], ids=["maps", "lists", "full maps"])
def test_maps_and_lists_may_take_a_multiple_of_their_bytes_in_memory(value: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    item = make_corpus.in_custom_data(b"\xdc\x13\x88" + value * 5000)
    decode(item, where="test")
    monkeypatch.setattr(arrays, "SMALL_MEMORY", 1 << 10)
    with pytest.raises(UnsafeData, match="far more memory"):
        decode(item, where="test")


def test_extra_outputs_without_leaves_keep_batches_apart() -> None:
    def batch(name: str, extra: dict[str, Any]) -> EpisodeBatch:
        return EpisodeBatch(
            ids=(name,), starts=np.array([0, 1]), obs=np.zeros((2, 1)), actions=np.zeros(1), rewards=np.zeros(1),
            terminated=np.array([True]), truncated=np.array([False]), extra=extra,
        )  # fmt: skip

    with pytest.raises(BadEpisode, match="extra model outputs"):
        EpisodeBatch.concat([batch("a", {"x": {}}), batch("b", {})])


# ---- packed cells ----


def test_a_small_frame_may_not_unfold_without_end() -> None:
    text = make_corpus.cell(np.zeros(40 << 20, np.uint8))
    with pytest.raises(UnsafeData, match=r"declares|unfolds"):
        unpack(text, where="test")
    noise = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
    frame = base64.b64encode(lz4.frame.compress(pickle.dumps(np.tile(noise, 30))))
    assert len(unpack(frame, where="test")) == 30 << 20  # a large frame may be large


def test_cells_that_cannot_all_be_as_large_as_the_first_are_refused_before_room_is_made() -> None:
    cells = [make_corpus.cell(np.zeros(10 << 20, np.uint8)), *([make_corpus.cell(np.zeros(1, np.uint8))] * 100_000)]
    with pytest.raises(BadEpisode, match="as large as the first"):
        unpack_cells(cells, where=str)


# ---- SampleBatch ----


def test_long_texts_do_not_take_the_room_of_the_longest_each() -> None:
    column = column_of(["e" * (1 << 20), *["f"] * 5000], None, where="test")
    assert column.tree.dtype == object  # an array of text would take 20 GiB
    assert not column.is_numeric
    nested = column_of([[["x" * 400_000]], [["y"] * 5000]], None, where="test")
    assert not nested.is_numeric


def test_an_id_of_a_megabyte_is_refused_where_it_would_fill_the_memory() -> None:
    rejects = Rejects()
    source = SampleBatchSource([File(make_corpus._many_ids())], "test")
    with pytest.raises(BadData, match="not numbers"):
        read_opened([source], on_error=OnError.FAIL)
    assert rejects.count == 0


def test_a_column_of_empty_objects_is_dropped() -> None:
    lines = make_corpus.batch(terminateds=[False, False], extra=[{}, {}]) + b"\n" + make_corpus.batch(t=[2, 3])
    (batch,) = read_opened([SampleBatchSource([File(lines)], "test")])
    assert batch.lengths.tolist() == [4]
    assert not batch.extra


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("member_without_a_name.zip", "damaged"),
        ("overlapping_members.zip", "overlap"),
        ("lzma.zip", "method 14"),
        ("encrypted.zip", "encrypted"),
        ("cut.zip", "damaged"),
        ("gzip_with_a_broken_sum.json.gz", "damaged"),
    ],
)
def test_a_broken_archive_is_refused_by_what_is_broken(name: str, says: str) -> None:
    with pytest.raises(BadData, match=says) as caught:
        list(lines_of(File((CORPUS / "lines" / name).read_bytes(), name), Rejects()))
    assert caught.value.where == name


def test_a_place_before_the_start_of_an_archive_is_damage() -> None:
    archive = bytearray((CORPUS / "lines" / "escaping_names.zip").read_bytes())
    at = archive.rindex(b"PK\x05\x06") + 16  # where the directory begins
    archive[at : at + 4] = b"\xff\xff\xff\x7f"
    with pytest.raises(BadData, match="damaged"):
        list(lines_of(File(bytes(archive)), Rejects()))


def test_a_line_of_a_small_packed_file_is_bounded_and_the_next_one_is_read() -> None:
    rejects = Rejects(OnError.SKIP)
    data = gzip.compress(b" " * (9 << 20) + b"\n" + make_corpus.batch())
    assert len(list(lines_of(File(data), rejects))) == 1
    assert rejects.first[0].reason == "a line of more than 8 MiB"


# ---- tables ----


def table_of(data: bytes, kind: str) -> list[EpisodeBatch]:
    return list(read_opened([TableSource([File(data)], "test", options=TableOptions(), kind=kind)]))


@pytest.mark.parametrize(
    "text",
    [
        b"a = " + b"[" * 5000,
        b"[columns]\nobs" + b".a" * 5000 + b" = 1",
        b"[spaces]\nobservation = " + b"{a = " * 300 + b"1" + b"}" * 300,
    ],
    ids=["lists", "tables", "inline"],
)
def test_a_mapping_nested_without_end_is_no_mapping(text: bytes) -> None:
    with pytest.raises(BadMapping, match=r"nested|not TOML"):
        mapping_of(text, "test")


def test_a_date_that_is_none_is_no_toml() -> None:
    with pytest.raises(BadMapping, match="not TOML"):
        mapping_of("x = 2024-02-31", "test")


def test_a_row_of_csv_that_is_skipped_may_not_hide_text_that_is_not_utf8(capfd: pytest.CaptureFixture[str]) -> None:
    table = TableFile(File((CORPUS / "tables" / "long_row_not_utf8.csv").read_bytes()), "csv")
    with pytest.raises(BadData, match="not UTF-8") as caught:
        list(table.chunks(None, CsvForm(), chunk_bytes=1 << 12, temp_dir=None))
    assert "latin-1" in caught.value.fix
    assert capfd.readouterr().err == ""  # the parser's own complaint would be a traceback


def test_a_letter_cut_in_two_by_a_block_is_a_letter() -> None:
    cells = "é" * 300_000
    rows = make_corpus.csv(*(f"{cells[:60_000]}{i},0,0.5,1,1.0,True,False" for i in range(20)))
    table = TableFile(File(rows), "csv")
    chunks = list(table.chunks(None, CsvForm(), chunk_bytes=1 << 12, temp_dir=None))
    assert sum(chunk.table.num_rows for chunk in chunks) == 20


@pytest.mark.parametrize(
    "line", [b'{"a": "\\ud800", "b": NaN}', b'{"\\udfff": 1, "b": NaN}', b'{"a": "\xed\xa0\x80", "b": NaN}'], ids=repr
)
def test_half_a_letter_is_no_json(line: bytes) -> None:
    table = TableFile(File(line + b'\n{"b": 1}\n'), "json")
    (chunk,) = table.chunks(None, CsvForm(), chunk_bytes=1 << 12, temp_dir=None)
    assert [bad.row for bad in chunk.bad] == [0]
    with pytest.raises(ValueError):  # noqa: PT011  any of them: that is what callers catch
        from_json(line)


def test_a_whole_letter_in_two_escapes_is_json() -> None:
    assert from_json('{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def test_a_vector_that_only_some_blocks_have_makes_the_other_rows_bad() -> None:
    lines = make_corpus.json_rows({}, {}, {"extra": [1.0, 2.0]})
    with pytest.raises(BadEpisode, match="extra has no value"):
        table_of(lines, "json")


def test_objects_nested_in_lines_have_an_end() -> None:
    with pytest.raises(BadData, match="nested deeper than 60"):
        table_of((CORPUS / "tables" / "object_nested_deep.jsonl").read_bytes(), "json")


@pytest.mark.parametrize("depth", [600, 1000])
@pytest.mark.parametrize(("opening", "closing"), [('{"a":', "}"), ("[", "]")], ids=["objects", "lists"])
@pytest.mark.parametrize("before", ["", '"x": "]]]]}}}}", '], ids=["plain", "brackets in a text"])
def test_nesting_that_would_end_polars_and_the_process_is_a_bad_line(
    depth: int, opening: str, closing: str, before: str
) -> None:
    deep = f'{{{before}"a": {opening * depth}1{closing * depth}}}'.encode()
    table = TableFile(File(deep + b'\n{"b": 1}\n'), "json")
    (chunk,) = table.chunks(None, CsvForm(), chunk_bytes=1 << 15, temp_dir=None)
    assert [bad.row for bad in chunk.bad] == [0]
    assert chunk.table.column("b").to_pylist() == [1]


def test_many_brackets_in_a_line_that_is_not_nested_are_no_offence() -> None:
    image = [[[0.5] * 3] * 40] * 40
    line = json.dumps({"image": image, "says": "[" * 100}).encode()
    table = TableFile(File(line + b"\n"), "json")
    (chunk,) = table.chunks(None, CsvForm(), chunk_bytes=1 << 20, temp_dir=None)
    assert chunk.table.num_rows == 1
    assert not chunk.bad


def test_a_name_of_a_column_has_at_most_1024_letters() -> None:
    with pytest.raises(BadData, match="a column whose name has 1048576 letters"):
        table_of(make_corpus.json_rows({"k" * (1 << 20): 1}), "json")


def test_a_file_that_breaks_off_before_its_first_row_is_not_called_empty() -> None:
    with pytest.raises(BadData, match="not UTF-8"):
        table_of(make_corpus.csv("\udcff,0,0.5,1,1.0,True,False").replace(b"\xed\xb3\xbf", b"\xff"), "csv")


# ---- Parquet ----


def test_runs_of_equal_numbers_are_counted_as_they_will_be_in_memory() -> None:
    import io
    from contextlib import nullcontext

    import pyarrow.parquet as pq

    stream = io.BytesIO(make_corpus.parquet({"x": pa.array(np.zeros(1_000_000))}))
    metadata = pq.read_metadata(stream)
    assert metadata.row_group(0).total_byte_size < 10_000
    found = refuse_bomb(lambda: nullcontext(stream), metadata, stream.getbuffer().nbytes, where="test")
    assert (found.nbytes, found.apart, found.most) == (8_000_000, False, 8_000_000)


@pytest.mark.parametrize("size", [200, 4000])
def test_texts_that_a_dictionary_repeats_are_added_up(size: int) -> None:
    import io
    from contextlib import nullcontext

    import pyarrow.parquet as pq

    texts = pa.DictionaryArray.from_arrays(np.zeros(size, np.int32), pa.array([b"x" * (1 << 20)], pa.binary()))
    stream = io.BytesIO(make_corpus.parquet({"item": texts}, store_schema=False))
    metadata = pq.read_metadata(stream)
    with pytest.raises(UnsafeData, match="unfold to at least"):
        refuse_bomb(lambda: nullcontext(stream), metadata, 1000, where="test")
    refuse_bomb(lambda: nullcontext(stream), metadata, size << 20, where="test")  # not in a file that large


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ids_not_utf8", "UTF8"),
        ("infos_not_utf8", "UTF8"),
        ("infos_nested_deep", "nested too deeply"),
        ("infos_half_a_letter", "not JSON"),
        ("ray_tensor_of_a_huge_shape", "shape"),
        ("ray_tensor_of_an_empty_shape", "shape"),
        ("ray_variable_tensor_that_is_none", r"is called a tensor|metadata of a column"),
        ("two_columns_of_one_name", "two columns are called 'obs'"),
        ("obs_struct_nested_deep", "nested deeper than 16"),
        ("rows_by_the_million", "unfold"),
        ("text_repeated_by_a_dictionary", "unfold"),
    ],
)
def test_a_hostile_file_of_columns_is_refused_for_what_is_hostile(name: str, says: str) -> None:
    with pytest.raises((BadData, UnsupportedSpace), match=says):
        inspect(str(CORPUS / "columns" / f"{name}.parquet"))


# ---- pipelines, and what their pieces learned ----


@pytest.mark.parametrize(
    "text",
    [b"kind = " + b"[" * 5000, b'kind = "learner"\na' + b".a" * 500 + b" = 1", b'x = "\xff"', b"x = 2024-02-31"],
    ids=["lists", "tables", "not UTF-8", "no date"],
)
def test_a_pipeline_file_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(BadConfig, match=r"nested|not TOML"):
        PipelineSpec.from_bytes(text, where="test")


@pytest.mark.parametrize(("size", "listed"), [(10, 121), (1000, 9), (50_000, 2)])
def test_an_error_lists_mistakes_as_long_as_there_is_room_and_counts_the_rest(size: int, listed: int) -> None:
    error = BadConfig.of(["x" * size] * 121, where="test", fix="test")
    assert error.what.startswith("121 mistakes")
    assert len(error.details["problems"]) == listed
    assert error.what.endswith("more") == (listed < 121)
    assert len(error.what) < 10_000


def test_a_pipeline_has_at_most_100_pieces() -> None:
    piece = {"name": "clip_rewards"}
    assert len(PipelineSpec.from_document({"kind": "learner", "pieces": [piece] * 100}, where="test").entries()) == 100
    with pytest.raises(BadConfig, match="101 pieces"):
        PipelineSpec.from_document({"kind": "learner", "pieces": [piece] * 101}, where="test")


@pytest.mark.parametrize(
    "options",
    [
        {"name": "frame_stacking", "num_frames": 1 << 31},
        {"name": "prev_actions_prev_rewards", "n_prev_actions": 1 << 40},
        {"name": "prev_actions_prev_rewards", "n_prev_rewards": 1 << 40},
        {"name": "gymnasium_wrapper", "wrapper": "ResizeObservation", "options": {"shape": [1 << 16, 1 << 16]}},
    ],
    ids=lambda options: "-".join(options),
)
def test_a_piece_whose_observations_would_fill_the_memory_is_not_made(options: dict[str, Any]) -> None:
    file = PipelineSpec.from_document({"kind": "learner", "pieces": [options]}, where="test", plugins=())
    space = gym.spaces.Box(0, 255, (4, 4, 3), np.uint8)
    with pytest.raises(SpaceMismatch, match="64 MiB"):
        file.build(Setting(space, gym.spaces.Discrete(2)))


@pytest.mark.parametrize("piece", [OneHot, FlattenObservations])
def test_as_many_choices_as_memory_has_bytes_are_not_made_numbers(piece: Any) -> None:
    with pytest.raises(SpaceMismatch, match="64 MiB"):
        piece(gym.spaces.Discrete(1 << 40), gym.spaces.Discrete(2))


@pytest.mark.parametrize(
    "state",
    [
        5,
        "text",
        [1],
        np.zeros(3),
        {"shared": 5, "own": {}},
        {"shared": {"obs": {"count": -1, "mean": np.zeros(3), "m2": np.zeros(3)}}, "own": {}},
        {"shared": {"obs": {"count": 1, "mean": np.zeros(3), "m2": -np.ones(3)}}, "own": {}},
        {"shared": {"obs": {"count": 1, "mean": np.zeros(5), "m2": np.zeros(5)}}, "own": {}},
        {"shared": {"obs": {"count": "x", "mean": {}, "m2": None}}, "own": {}},
        {"shared": {"obs": np.zeros(3)}, "own": {}},
    ],
    ids=["number", "text", "list", "array", "no leaves", "count", "squares", "shape", "words", "moments"],
)
def test_a_state_that_no_filter_learned_from_such_observations_is_refused(state: Any) -> None:
    piece = MeanStdFilter(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2))
    with pytest.raises(BadPiece, match="a state"):
        piece.set_state(state)
    with pytest.raises(BadPiece, match="no state"):
        ClipRewards(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)).set_state(state)


# ---- policies, errors, links ----


def test_a_network_that_no_machine_holds_is_not_begun() -> None:
    with pytest.raises(BadConfig, match="1001 hidden layers"):
        build_module(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2), hidden=[8] * 1001)
    with pytest.raises(BadConfig, match="a network of"):
        build_module(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(1 << 40))


@pytest.mark.parametrize(
    "name", ["policy_of_terabytes", "policy_of_gigabytes", "policy_of_many_actions", "policy_of_many_layers"]
)
def test_a_policy_is_not_made_larger_than_its_weights(name: str) -> None:
    with pytest.raises(BadData, match="bytes of weights"):
        load_policy(str(CORPUS / "runs" / name))


def test_a_place_in_an_error_is_short_however_long_an_id_is() -> None:
    assert len(BadData("x", where="e" * (1 << 20), fix="y").where) < 3000


def test_the_fuzzer_takes_no_storage_error_and_no_nameless_error_for_an_answer() -> None:
    from offline_cli.errors import StorageError

    def fail(error: Exception) -> Callable[[bytes], None]:
        def target(_: bytes) -> None:
            raise error

        return target

    assert check(fail(BadData("a", where="b", fix="c")), b"") == "bad-data"
    for error in (
        StorageError("a", where="b", fix="c"),
        BadData("a", where="", fix="c"),
        BadData("a" * 30_000, where="b", fix="c"),
    ):
        with pytest.raises(Wrong):
            check(fail(error), b"")


def test_a_shard_that_is_a_link_to_another_file_gives_nothing_of_it_away(tmp_path: Path) -> None:
    folder, secret = tmp_path / "D", tmp_path / "secret.txt"
    shutil.copytree(CORPUS / "datasets" / "good", folder)
    shard = folder / make_corpus.SHARD
    secret.write_bytes(b"a secret word ".ljust(shard.stat().st_size, b"."))
    shard.unlink()
    os.symlink(secret, shard)
    from offline_cli.checking.validate import validate

    told = json.dumps([problem.as_dict() for problem in validate(str(folder)).problems])
    assert "shard-hash" in told
    assert "secret word" not in told


def test_overwriting_touches_no_link_and_not_what_it_points_to(tmp_path: Path) -> None:
    from offline_cli.converting.convert import convert
    from offline_cli.errors import OutputExists

    folder, other = tmp_path / "D", tmp_path / "other.parquet"
    shutil.copytree(CORPUS / "datasets" / "good", folder)
    shard = folder / make_corpus.SHARD
    shutil.move(shard, other)
    os.symlink(other, shard)
    with pytest.raises(OutputExists, match="no dataset put there"):
        convert(str(CORPUS / "recordings" / "good.parquet"), str(folder), overwrite=True)
    assert other.read_bytes() == (CORPUS / "datasets" / "good" / make_corpus.SHARD).read_bytes()
    assert shard.is_symlink()


def test_a_msgpack_item_is_what_the_corpus_starts_from() -> None:
    assert len(decode(msgpack.packb(make_corpus.state()), where="test")) == 2


def test_a_box_of_more_dimensions_than_flat_iterators_know_is_described_and_read_again() -> None:
    box = gym.spaces.Box(-1, 1, (1,) * 50 + (2,), np.float32)
    assert space_from_json(space_to_json(box), where="test") == box


def test_an_episode_of_parts_nested_hundreds_deep_is_set_aside_among_sound_ones() -> None:
    nested: Any = np.zeros((3, 2), np.float32)
    for _ in range(500):
        nested = [nested]
    deep = arrays.pack(msgpack_state(observations={"data": nested, "lookback": 0, "finalized": True}))
    rejects = Rejects(OnError.SKIP)
    sound = small_items()[0]
    batches = list(decode_batch([sound, deep, sound], where=lambda i: f"item {i}", rejects=rejects, tally=Tally()))
    assert sum(map(len, batches)) == 2
    assert rejects.count == 1
