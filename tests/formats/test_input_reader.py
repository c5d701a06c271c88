"""Objects with RLlib's `InputReader.next()` and `OutputWriter.write()`, as on its page on offline data, read and write."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli.converting.convert import convert
from offline_cli.converting.reading import read_episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, NoData, UsageError
from offline_cli.trees import flatten

Call = Callable[..., tuple[int, dict[str, Any]]]
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
class Written:
    found = []
    def __init__(self, ioctx): ...
    def write(self, batch):
        self.found.append(batch)
class Full(Written):
    def write(self, batch):
        raise OSError("no space")
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


def test_reading_ends_with_none_and_with_stop_iteration(given: Any) -> None:
    first, second = steps(["a"], dones=[True]), steps(["b"], dones=[True])
    assert read(given, first, None, second).ids == ("a",)
    assert read(given, first, second).ids == ("a", "b")


def test_a_reader_that_begins_again_is_read_up_to_the_limit(given: Any) -> None:
    given.Reader.batches = [steps(["a", "b", "b"], dones=[True, False, True])]
    assert whole("any", from_="python:given_objects:Endless", limit=2).ids == ("a", "b")


def test_a_reader_that_begins_again_is_one_note(given: Any, caplog: pytest.LogCaptureFixture) -> None:
    one, other = steps(["a"], dones=[True]), steps(["b"], dones=[True])
    with caplog.at_level(logging.WARNING):
        read(given, one, other, other)
        assert not caplog.messages
        read(given, one, other, one, other, one)
    name = "python:given_objects:Reader"
    assert caplog.messages == [f"note: {name} gives its first batch again, and may never end: --limit ends it"]


def test_an_episode_goes_on_over_batches_and_no_final_observation_is_made_up(given: Any) -> None:
    found = read(given, steps(["a"] * 3, t=[0, 1, 2]), steps(["a"] * 2, t=[3, 4], terminateds=[False, True]))
    assert (found.ids, found.lengths.tolist()) == (("a",), [5])


def test_columns_that_are_trees_are_spaces_of_trees(given: Any) -> None:
    rows = np.arange(2.0)
    obs = {"place": rows[:, None], "speed": (rows, rows)}
    assert sorted(dict(read(given, {**steps(["a"] * 2, dones=[False, True]), "obs": obs}).obs)) == ["place", "speed"]


def test_several_agents_of_a_policy_have_an_episode_each(given: Any) -> None:
    found = read(given, steps(["a"] * 4, agent_index=[0, 0, 1, 1], dones=[False, True] * 2))
    assert found.agent_ids == ("0", "1")
    assert found.multi_agent_ids == ("a", "a")


def test_the_batches_of_a_multi_agent_batch_are_read_by_policy(given: Any) -> None:
    class MultiAgentBatch:
        policy_batches = {"left": steps(["a"], dones=[True]), "right": steps(["b"], dones=[True])}  # noqa: RUF012

    assert read(given, MultiAgentBatch()).module_ids == ("left", "right")


def test_columns_of_other_lengths_are_dropped_by_name_and_empty_batches_counted(given: Any) -> None:
    given.Reader.batches = [steps([]), steps(["a"], dones=[True], state_in=[1, 1], prev_actions=[0], count=1)]
    with read_episodes("any", from_="python:given_objects:Reader") as stream:
        assert [batch.ids for batch in stream] == [("a",)]
    lacking = dict.fromkeys(("state_in", "count"), "not one row a step")
    assert stream.tally.dropped_columns == {**lacking, "prev_actions": "of the step before"}
    assert stream.tally.assumptions["empty-batch"] == 1


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        ([1, 2], "next() gave list, which has no columns"),
        ({"obs": [0.0]}, "a batch without eps_id, actions, rewards"),
        (steps(["a"], actions=None), "a batch without actions"),
        (steps(["a"] * 2, obs=[[0.0], [0.0, 1.0]]), "column obs is no array"),
        (steps(["a"], obs=[object()]), "column obs holds Python objects"),
        (steps(["a"] * 2, obs=[[0.0]]), "column obs has other rows than the 2 rewards"),
        (steps(["a"] * 2, obs=np.float32(0)), "column obs has other rows than the 2 rewards"),
        (steps(["a"] * 2, infos=[{}]), "column infos has other rows than the 2 rewards"),
        (steps(["a"], rewards=["much"]), "column rewards is <U4[1], not one number a row"),
        (steps(["a"], rewards=[[1.0]]), "column rewards is float64[1, 1], not one number a row"),
        (steps(["a"], rewards={"x": [1.0]}), "column rewards is dict, not one number a row"),
        (steps(["a"], t=["first"]), "column t is <U5[1], not one number a row"),
        (steps(["a"], t=[-1]), "column t holds -1"),
        (steps(["a"] * 3, seq_lens=[1, 1]), "3 rows, of which 2 are steps by seq_lens"),
        (steps([["a"]]), "column eps_id is <U1[1, 1], not one number or text a row"),
        (steps(["a"], new_obs=[[0.0, 1.0]]), "obs are {'each': (1,)} and new_obs are {'each': (2,)}"),
        (steps(["a"], new_obs={"x": [0.0]}), "obs are {'each': (1,)} and new_obs are {'each.x': ()}"),
    ],
)
def test_a_batch_that_cannot_be_read_is_bad_data_by_its_number(given: Any, batch: Any, what: str) -> None:
    good = steps(["b"], dones=[True])
    with pytest.raises(BadData) as caught:
        read(given, good, batch)
    assert what in caught.value.what
    assert caught.value.where.startswith("python:given_objects:Reader batch 1")
    assert read(given, good, batch, steps(["c"], dones=[True]), steps(["d"], dones=[True]), on_error="skip").ids == ("b", "d")


def test_a_batch_that_is_lost_takes_the_episode_with_it_that_it_may_have_begun(given: Any) -> None:
    good, bad = steps(["a"], dones=[True]), steps(["b"], rewards=["much"])
    given.Reader.batches = [good, bad, steps(["b", "c"], dones=[True, True])]
    with read_episodes("any", from_="python:given_objects:Reader", on_error="skip") as stream:
        assert EpisodeBatch.concat(list(stream)).ids == ("a", "c")
    assert stream.lost_by_reason == {"lost-episode-unreadable": 1, "lost-episode-bad-row": 1}


def test_what_next_raises_is_bad_data_by_the_number_of_the_call(given: Any) -> None:
    with pytest.raises(BadData, match=r"next\(\) number 1 of python:given_objects:Reader raised RuntimeError\('torn'\)"):
        read(given, steps(["a"], dones=[True]), RuntimeError("torn"))


def test_a_reader_without_a_batch_is_no_data(given: Any) -> None:
    with pytest.raises(NoData):
        read(given)


def test_what_makes_no_reader_is_refused(given: Any) -> None:
    with pytest.raises(BadConfig, match=r"it makes Nothing, which has no next\(\)"):
        whole("any", from_="python:given_objects:Nothing")
    with pytest.raises(BadConfig, match="it is int, which makes no reader"):
        whole("any", from_="python:given_objects:NUMBER")


# ---- what write() gets ----


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Two episodes."""
    rows = ["a,0,0.5,1,1.0,0,0", "a,1,1.5,0,2.0,0,1", "b,0,2.5,0,1.0,1,0"]
    (tmp_path / "steps.csv").write_text("\n".join(["eps_id,t,obs,actions,rewards,terminateds,truncateds", *rows]))
    return str(tmp_path / "steps.csv")


def test_write_gets_each_episode_with_rllibs_columns(given: Any, table: str, tmp_path: Path) -> None:
    given.Written.found = []
    convert(table, tmp_path / "out", to="python:given_objects:Written")
    first, second = given.Written.found
    assert (first.count, second.count) == (2, 1)
    assert {name: column.tolist() for name, column in first.items() if name not in ("eps_id", "obs", "new_obs")} == {
        "t": [0, 1],
        "actions": [1, 0],
        "rewards": [1.0, 2.0],
        "terminateds": [False, False],
        "truncateds": [False, True],
    }
    assert second["terminateds"].tolist() == [True]
    assert all(str(name).endswith("-a") for name in first["eps_id"])
    assert np.array_equal(first["new_obs"][:-1], first["obs"][1:])


@pytest.mark.parametrize("option", ["resume", "overwrite"])
def test_a_writer_that_cannot_say_what_it_wrote_neither_resumes_nor_replaces(
    given: Any, table: str, tmp_path: Path, option: str
) -> None:
    with pytest.raises(UsageError, match=f"--{option} with a writer that does not report what it has written"):
        convert(table, tmp_path / "out", to="python:given_objects:Written", **{option: True})


def test_a_writer_does_not_touch_what_is_there(given: Any, table: str, tmp_path: Path, call: Call) -> None:
    (tmp_path / "out").write_text("mine")
    code, found = call("convert", table, "--out", tmp_path / "out", "--to", "python:given_objects:Written")
    assert (code, found["error"]["code"]) == (2, "output-exists")


def test_what_write_raises_is_bad_data_by_the_episode(given: Any, table: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"write\(\) of episode \w+-a raised OSError"):
        convert(table, tmp_path / "out", to="python:given_objects:Full")


def test_rows_set_aside_need_a_place(given: Any, table: str, tmp_path: Path) -> None:
    Path(table).write_text(Path(table).read_text() + "\nc,0,much,0,1.0,1,0\n")
    with pytest.raises(BadData, match="this writer has no place for them"):
        convert(table, tmp_path / "out", to="python:given_objects:Written", on_error="quarantine")


def test_a_dry_run_shows_the_first_episodes_to_the_writer_elsewhere(given: Any, table: str, tmp_path: Path) -> None:
    done = convert(table, tmp_path / "out", to="python:given_objects:Written", dry_run=True)
    assert (done.dry_run, done.episodes, done.shards) == (True, 2, 0)
    assert not (tmp_path / "out").exists()


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


RECORDINGS = pytest.mark.parametrize(
    ("recording", "env"),
    [
        ("sample_batch_cartpole_plain", "CartPole-v1"),
        ("sample_batch_cartpole_lz4", "CartPole-v1"),
        ("sample_batch_pendulum_lz4", "Pendulum-v1"),
        ("sample_batch_pendulum_trunc", "Pendulum-v1"),
    ],
)


@pytest.mark.nightly
@RECORDINGS
def test_what_rllibs_json_reader_gives_is_what_our_own_reader_reads(
    module: Any, real_data: Path, recording: str, env: str
) -> None:
    module("own_ray", OWN)
    source = str(real_data / recording)
    assert_same(whole(source, env=env, from_="python:own_ray:EachLine"), whole(source, env=env))


@pytest.mark.nightly
@RECORDINGS
def test_rllibs_json_reader_which_begins_again_at_its_end_is_read_up_to_the_limit(
    module: Any, real_data: Path, recording: str, env: str
) -> None:
    module("own_ray", OWN)
    file = str(min((real_data / recording).glob("*.json")))  # of several files it takes a random one first
    assert_same(whole(file, env=env, from_="python:own_ray:input_creator", limit=3), whole(file, env=env, limit=3))


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
