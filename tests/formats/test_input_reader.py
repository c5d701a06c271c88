"""Objects with RLlib's `InputReader.next()` and `OutputWriter.write()`, as on its page on offline data, read and write."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli.converting.convert import convert
from offline_cli.converting.reading import read_episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig
from offline_cli.trees import flatten

PAGE = """
import json
class InputReader: ...
class OutputWriter: ...
class ShuffledInput(InputReader):
    def __init__(self, child, n=0):
        self.child = child
    def next(self):
        return self.child.next()

# ---- as on the page ----
class CustomInputReader(InputReader):
    def __init__(self, ioctx):
        self.batches = (json.loads(line) for name in ioctx.input_config["input_files"] for line in open(name))
    def next(self):
        return next(self.batches, None)
def input_creator(ioctx):
    return ShuffledInput(CustomInputReader(ioctx))
class CustomOutputWriter(OutputWriter):
    def __init__(self, ioctx):
        self.file = open(ioctx.output_config["path"], "w")
    def write(self, sample_batch):
        plain = {name: getattr(column, "tolist", lambda: column)() for name, column in sample_batch.items()}
        self.file.write(json.dumps({"type": "SampleBatch", **plain}) + "\\n")
    def close(self):
        self.file.close()
"""
GIVEN = """
class Reader:
    batches = []
    def __init__(self, ioctx):
        self.left = iter(self.batches)
    def next(self):
        found = next(self.left)
        if isinstance(found, Exception):
            raise found
        return found
class Endless(Reader):
    def next(self):
        return self.batches[0]
class Nothing:
    def __init__(self, ioctx): ...
NUMBER = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Any]:
    """Puts a module into the current folder, and imports it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def put(name: str, code: str) -> Any:
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return __import__(name)

    return put


@pytest.fixture
def given(module: Callable[[str, str], Any], tmp_path: Path) -> Any:
    """The module of GIVEN, whose readers want some file."""
    (tmp_path / "any").write_text("some words\n")
    return module("given_objects", GIVEN)


def whole(*args: Any, **said: Any) -> EpisodeBatch:
    with read_episodes(*args, **said) as stream:
        return EpisodeBatch.concat(list(stream))


def assert_same(one: EpisodeBatch, other: EpisodeBatch) -> None:
    """The same episodes in any order, value for value, in the dtypes of `other`: lists of numbers in JSON have none."""
    assert sorted(one.ids) == sorted(other.ids)
    one, other = (batch.select(np.argsort(batch.ids)) for batch in (one, other))
    assert np.array_equal(one.starts, other.starts)
    assert np.array_equal(one.terminated, other.terminated)
    assert np.array_equal(one.truncated, other.truncated)
    for mine, theirs in ((one.obs, other.obs), (one.actions, other.actions), (one.extra, other.extra)):
        leaves = dict(flatten(theirs))
        assert dict(flatten(mine)).keys() == leaves.keys()
        for path, leaf in flatten(mine):
            assert np.array_equal(leaf.astype(leaves[path].dtype), leaves[path]), path
    assert np.array_equal(one.rewards, other.rewards)


def steps(eps: Sequence[Any], **more: Any) -> dict[str, Any]:
    """A batch with a row for each id; observations count up from 0."""
    rows = np.arange(len(eps), dtype=np.float32)
    return {"eps_id": np.array(eps), "obs": rows[:, None], "actions": np.zeros(len(eps), np.int64), "rewards": rows, **more}


def read(given: Any, *batches: Any, **said: Any) -> EpisodeBatch:
    given.Reader.batches = batches
    return whole("any", from_="python:given_objects:Reader", **said)


# ---- as the page has it ----


def test_the_custom_input_of_the_page_reads_what_our_reader_reads(module: Any, real_data: Path) -> None:
    module("custom_io", PAGE)
    source = str(real_data / "sample_batch_cartpole_plain")
    mine = whole(source, env="CartPole-v1")
    assert len(mine) > 5
    for name in ("CustomInputReader", "input_creator"):
        assert_same(whole(source, env="CartPole-v1", from_=f"python:custom_io:{name}"), mine)


def test_the_custom_output_of_the_page_writes_what_is_read_back_equal(module: Any, real_data: Path, tmp_path: Path) -> None:
    module("custom_io", PAGE)
    source = str(real_data / "sample_batch_cartpole_plain")
    done = convert(source, tmp_path / "out.json", to="python:custom_io:CustomOutputWriter", env="CartPole-v1")
    mine = whole(source, env="CartPole-v1")
    assert (done.format, done.episodes, done.steps) == ("python:custom_io:CustomOutputWriter", len(mine), mine.num_steps)
    assert_same(whole(str(tmp_path / "out.json"), env="CartPole-v1"), mine)


# ---- what next() gives ----


def test_a_reader_that_begins_again_is_read_up_to_the_limit(given: Any) -> None:
    given.Reader.batches = [steps(["a", "b", "b"], dones=[True, False, True])]
    assert whole("any", from_="python:given_objects:Endless", limit=2).ids == ("a", "b")


def test_the_batches_of_a_multi_agent_batch_are_read_by_policy(given: Any) -> None:
    class MultiAgentBatch:
        policy_batches = {"left": steps(["a"], dones=[True]), "right": steps(["b"], dones=[True])}  # noqa: RUF012

    assert read(given, MultiAgentBatch()).module_ids == ("left", "right")


def test_what_next_raises_is_the_users_own(given: Any, call: Any) -> None:
    given.Reader.batches = [steps(["a"], dones=[True]), RuntimeError("torn")]
    code, told = call("inspect", "any", "--from", "python:given_objects:Reader")
    assert (code, "raised RuntimeError" in told["error"]["what"]) == (3, True)


def test_what_makes_no_reader_is_refused(given: Any) -> None:
    with pytest.raises(BadConfig):
        whole("any", from_="python:given_objects:Nothing")
    with pytest.raises(BadConfig):
        whole("any", from_="python:given_objects:NUMBER")


# ---- RLlib's own ----


OWN = """
from ray.rllib.offline import InputReader, IOContext, JsonReader, JsonWriter, ShuffledInput
class EachLine(InputReader):
    def __init__(self, ioctx):
        files = ioctx.input_config["paths"]
        self.lines = JsonReader(files, IOContext(ioctx.log_dir, ioctx.config)).read_all_files()
    def next(self):
        return next(self.lines)
class CustomJsonReader(JsonReader):
    def __init__(self, ioctx):
        super().__init__(ioctx.input_config["input_files"], ioctx)
def input_creator(ioctx):
    return ShuffledInput(CustomJsonReader(ioctx))
def plain_writer(ioctx):
    return JsonWriter(ioctx.output_config["path"], ioctx, compress_columns=[])
def packed_writer(ioctx):
    return JsonWriter(ioctx.output_config["path"], ioctx)
"""


@pytest.mark.integration
@pytest.mark.parametrize("writer", ["plain_writer", "packed_writer"])
@pytest.mark.parametrize(
    ("recording", "env"), [("sample_batch_cartpole_plain", "CartPole-v1"), ("rllib_episodes_pendulum", "Pendulum-v1")]
)
def test_what_rllibs_json_writer_writes_is_read_back_equal(
    module: Any, real_data: Path, tmp_path: Path, writer: str, recording: str, env: str
) -> None:
    module("own_ray", OWN)
    source = str(real_data / recording)
    convert(source, tmp_path / "out", to=f"python:own_ray:{writer}", env=env)
    assert_same(whole(str(tmp_path / "out"), env=env), whole(source, env=env))
