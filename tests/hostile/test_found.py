"""What the corpus and fuzzing found once, each as the smallest input that showed it."""

from __future__ import annotations

import base64
import gzip
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import lz4.frame
import make_corpus
import numpy as np
import pytest
from fuzz_seeds import small_items
from fuzz_targets import File

from offline_cli import convert
from offline_cli.connectors import ClipRewards, MeanStdFilter
from offline_cli.episodes.codec import arrays, decode_batch
from offline_cli.errors import (
    BadData,
    BadEpisode,
    BadPiece,
    NoData,
    UnsafeData,
    UnsupportedSpace,
)
from offline_cli.formats.rllib.json_lines import lines_of
from offline_cli.formats.rllib.packed import unpack
from offline_cli.schema_files import from_json
from offline_cli.spaces import infer_space, space_from_json, space_from_rllib
from offline_cli.tally import OnError, Rejects, Tally

CORPUS = Path(__file__).resolve().parent / "corpus"


# ---- spaces ----


@pytest.mark.parametrize("dtype", ["f4,O", "(2,)f4", "M8[s]"])
def test_a_dtype_of_a_space_is_one_number_and_never_parsed_further(dtype: str) -> None:
    with pytest.raises(UnsupportedSpace):
        space_from_json({"type": "Discrete", "n": 2, "dtype": dtype}, where="test")
    with pytest.raises(BadEpisode):
        space_from_rllib({"space": "discrete", "n": 2, "dtype": dtype}, where="test")


def test_spaces_and_values_are_nested_at_most_16_deep() -> None:
    space: dict[str, Any] = {"type": "Discrete", "n": 2}
    tree: Any = np.zeros((2, 1))
    for _ in range(17):
        space, tree = {"type": "Tuple", "spaces": [space]}, {"a": tree}
    with pytest.raises(UnsupportedSpace):
        space_from_json(space, where="test")
    with pytest.raises(UnsupportedSpace):
        infer_space(tree, discrete=False)


# ---- episodes ----


def msgpack_state(**changes: Any) -> dict[Any, Any]:
    return make_corpus.state(**changes)


# ---- packed cells ----


def test_a_small_frame_may_not_unfold_without_end() -> None:
    text = make_corpus.cell(np.zeros(40 << 20, np.uint8))
    with pytest.raises(UnsafeData):
        unpack(text, where="test")
    noise = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
    frame = base64.b64encode(lz4.frame.compress(pickle.dumps(np.tile(noise, 30))))
    assert len(unpack(frame, where="test")) == 30 << 20  # a large frame may be large


# ---- SampleBatch ----


@pytest.mark.parametrize("name", ["overlapping_members.zip", "encrypted.zip", "gzip_with_a_broken_sum.json.gz"])
def test_a_broken_archive_is_refused_by_its_name(name: str) -> None:
    *_, last = lines_of(File((CORPUS / "lines" / name).read_bytes(), name))
    assert isinstance(last, BadData)
    assert last.where == name


def test_a_line_of_a_small_packed_file_is_bounded_and_the_next_one_is_read() -> None:
    error, line = lines_of(File(gzip.compress(b" " * (9 << 20) + b"\n" + make_corpus.batch())))
    assert isinstance(error, UnsafeData)
    assert not isinstance(line, BadData)


# ---- tables ----


def rejected(folder: Path, line: bytes) -> list[str]:
    """The lines that are set aside, of a line and a good one after it."""
    (folder / "a.jsonl").write_bytes(line + b'\n{"b": 1}\n')
    mapping = {"columns": {"obs": "b", "actions": "b"}}
    done = convert(folder / "a.jsonl", folder / "D", mapping=mapping, rows_as_episodes=True, on_error="skip")
    assert done.episodes == 1
    return [str(one["where"]).rpartition(" ")[2] for one in done.rejected]


@pytest.mark.parametrize("line", [b'{"a": "\\ud800", "b": NaN}', b'{"a": "\xed\xa0\x80", "b": NaN}'])
def test_half_a_letter_is_no_json(line: bytes, tmp_path: Path) -> None:
    assert rejected(tmp_path, line) == ["1"]
    with pytest.raises(ValueError):  # noqa: PT011  any of them: that is what callers catch
        from_json(line)


@pytest.mark.parametrize(("opening", "closing", "before"), [('{"a":', "}", ""), ("[", "]", '"x": "]]]]}}}}", ')])
def test_nesting_that_would_end_polars_and_the_process_is_a_bad_line(
    opening: str, closing: str, before: str, tmp_path: Path
) -> None:
    deep = f'{{{before}"a": {opening * 600}1{closing * 600}}}'.encode()
    assert rejected(tmp_path, deep) == ["1"]


# ---- pipelines, and what their pieces learned ----


@pytest.mark.parametrize(
    "state",
    [
        5,
        {"obs": 5},
    ],
    ids=["number", "no leaves"],
)
def test_a_state_that_no_filter_learned_is_refused(state: Any) -> None:
    piece = MeanStdFilter(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2))
    with pytest.raises(BadPiece):
        piece.set_state(state)
    with pytest.raises(BadPiece):
        ClipRewards(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)).set_state(state)


# ---- policies, errors, links ----


def test_a_shard_that_is_a_link_to_another_file_gives_nothing_of_it_away(tmp_path: Path) -> None:
    folder, secret = tmp_path / "D", tmp_path / "secret.txt"
    shutil.copytree(CORPUS / "datasets" / "good", folder)
    shard = folder / make_corpus.SHARD
    secret.write_bytes(b"a secret word ".ljust(shard.stat().st_size, b"."))
    shard.unlink()
    os.symlink(secret, shard)
    from offline_cli.checking.validate import validate

    told = json.dumps([problem.as_dict() for problem in validate(str(folder), deep=True).problems])
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
    with pytest.raises(OutputExists):
        convert(str(CORPUS / "recordings" / "good.parquet"), str(folder), overwrite=True)
    assert other.read_bytes() == (CORPUS / "datasets" / "good" / make_corpus.SHARD).read_bytes()
    assert shard.is_symlink()


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


def test_rows_without_a_readable_vector_come_before_those_that_have_one(tmp_path: Path) -> None:
    lines = (
        b'eps_id,t,obs,actions,rewards,terminateds,truncateds,infos,active\x00"": 1}","-0.5"\n'
        b'"","-0"""a""","1.0""b""","1","[0.5, -1.0]","1","1.0","false","falwe"5."{""lives"": 1}","-0.5"\n'
        b'"""a""","2","[1.0, -1.0]","0",infos,active\x00"": 1"1","true","fal3e","{""lives"": 2}","-0.5"'
    )
    (tmp_path / "t.csv").write_bytes(lines)
    with pytest.raises(NoData):
        convert(tmp_path / "t.csv", tmp_path / "D", on_error="skip")
