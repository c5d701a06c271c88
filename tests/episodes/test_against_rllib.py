"""Our SingleAgentEpisode and RLlib's, driven through the same random operations: no difference but those in DIFFERENCES.

Where RLlib raises, ours must raise an OfflineCliError; where it returns, ours must return equal values in the same structure
and dtype. A call that meets a known difference is not compared, and RLlib's episode is then rebuilt from ours.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from offline_cli.episodes.episode_spaces import space_tree
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import OfflineCliError
from offline_cli.trees import map_leaves

pytestmark = pytest.mark.ray
rllib = pytest.importorskip("ray.rllib.env.single_agent_episode", reason="needs the extra [ray]")
from_rllib = pytest.importorskip("ray.rllib.utils.serialization", reason="needs the extra [ray]")

DIFFERENCES = {
    # Documented: RLlib's behaviour is kept but for this.
    "rewards are float64": "numpy'ized rewards of ints or float32 keep their type in RLlib, and setters then truncate",
    "copies before writing": "slices and cuts of numpy'ized episodes share memory with the episode, and setters write through",
    "tells early": "RLlib takes a step before the reset, or with other extra outputs than before, and fails at some later call",
    # Defects of RLlib 2.60.
    "nested lookback": "the lookback of numpy'ized Dict and Tuple data is limited to the number of keys, not of steps",
    "nested set": "setters of numpy'ized Dict and Tuple data hold each leaf against the whole space, and always fail",
    "nested concat": "joining a numpy'ized chunk to lists appends its keys as steps; joining lists to a numpy'ized chunk fails",
    "wraps around": "neg_index_as_lookback before the lookback buffer reads numpy'ized arrays from their end",
    "filled range": "with fill, ranges beyond both ends are filled on the left only; steps and empty ranges give wrong counts",
    "filled list": "with fill, the first index of a list decides the dtype: rewards lose precision, or the call fails",
    "fill without space": "fill of numpy'ized data without a space, of rank 2 or nested, fails or gives a bare number",
    "one-hot start": "one_hot_discrete ignores the start of Discrete and MultiDiscrete",
    "one-hot of nothing": "one_hot_discrete of an empty numpy'ized range fails, or gives no one-hot axis",
    "range of nothing": "a range that ends before an empty buffer trips an internal assertion",
    "no indices": "an empty list of indices fails once numpy'ized",
    "slice bounds": "slices beyond the episode shift t_started, lose the flags, or have no observation",
    "slice step": "slices with a step drop rewards and leave t wrong, or fail, by luck of the length",
    "empty concat": "joining a chunk of no steps turns numpy'ized integer actions into float64, or fails",
    "empty extra state": "get_state puts live objects in place of extra model outputs without records",
    "unknown extra": "after from_state, asking for an unknown extra model output makes an empty one",
    "both flags": "joining a chunk that is terminated and truncated loses `truncated`",
    "empty set": "overwriting an empty range with nothing fails once numpy'ized and given a space",
    "empty data dict": "get_data_dict of no steps gives one flag",
    "agent lost": "cut and slices lose agent_id, module_id and multi_agent_episode_id",
}

SEQUENCES, OPERATIONS = 300, 60

SPACES: dict[str, gym.Space[Any]] = {
    "box": gym.spaces.Box(-1.0, 1.0, (3,), np.float32),
    "scalar box": gym.spaces.Box(-5.0, 5.0, (), np.float64),
    "image": gym.spaces.Box(0, 255, (2, 3, 1), np.uint8),
    "discrete": gym.spaces.Discrete(4),
    "discrete from 2": gym.spaces.Discrete(3, start=2),
    "multi-discrete": gym.spaces.MultiDiscrete([3, 2, 4]),
    "multi-binary": gym.spaces.MultiBinary(5),
    "dict": gym.spaces.Dict({"a": gym.spaces.Box(-1.0, 1.0, (2,)), "b": gym.spaces.Discrete(3)}),
    "tuple": gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Box(0.0, 1.0, (1, 2))]),
    "nested": gym.spaces.Dict(
        {"x": gym.spaces.Tuple([gym.spaces.MultiDiscrete([2, 3]), gym.spaces.Box(-1.0, 1.0, ())]), "y": gym.spaces.Discrete(5)}
    ),
}


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # RLlib lets gymnasium warn of every cast
            return "returns", call()
    except Exception as err:  # noqa: BLE001  the kind of error is what is compared
        return "raises", err


def difference(ours: Any, theirs: Any, path: str = "") -> str:
    """What differs in structure, dtype or value; empty when nothing does."""
    if isinstance(ours, dict) or isinstance(theirs, dict):
        if type(ours) is not type(theirs) or ours.keys() != theirs.keys():
            return f"{path}: {ours!r} against {theirs!r}"
        return next(filter(None, (difference(ours[key], theirs[key], f"{path}.{key}") for key in ours)), "")
    if isinstance(ours, (list, tuple)) or isinstance(theirs, (list, tuple)):
        if type(ours) is not type(theirs) or len(ours) != len(theirs):
            return f"{path}: {ours!r} against {theirs!r}"
        pairs = enumerate(zip(ours, theirs, strict=True))
        return next(filter(None, (difference(a, b, f"{path}[{i}]") for i, (a, b) in pairs)), "")
    if isinstance(ours, gym.Space):
        return "" if ours == theirs else f"{path}: {ours!r} against {theirs!r}"
    if type(ours) is not type(theirs) or np.asarray(ours).dtype != np.asarray(theirs).dtype:
        return f"{path}: {type(ours)} {np.asarray(ours).dtype} against {type(theirs)} {np.asarray(theirs).dtype}"
    if np.shape(ours) != np.shape(theirs) or not np.array_equal(ours, theirs):
        return f"{path}: {ours!r} against {theirs!r}"
    return ""


def plain(buffer: Any) -> dict[str, Any]:
    return {"data": buffer.data, "lookback": buffer.lookback, "finalized": buffer.finalized}


def whole(episode: Any) -> dict[str, Any]:
    """Everything an episode holds, clocks and spaces left out."""
    buffers = {name: getattr(episode, name) for name in ("observations", "actions", "rewards", "infos")}
    return {
        **{name: plain(buffer) for name, buffer in buffers.items()},
        "extra": {name: plain(buffer) for name, buffer in episode.extra_model_outputs.items()},
        "flags": [bool(episode.is_terminated), bool(episode.is_truncated), episode.is_numpy, episode.is_reset, episode.is_done],
        "t": [episode.t_started, episode.t, len(episode), episode.env_steps(), episode.agent_steps()],
        "id": episode.id_,
        "custom": episode.custom_data,
    }


class Driver:
    """One random sequence of operations on two episodes; `met` counts the known differences."""

    def __init__(self, seed: int, met: Counter[str]) -> None:
        self.rng, self.met, self.seed = random.Random(seed), met, seed
        names = list(SPACES)
        self.obs_space, self.action_space = (copy.deepcopy(SPACES[self.rng.choice(names)]) for _ in range(2))
        for offset, space in enumerate((self.obs_space, self.action_space)):
            space.seed(seed * 2 + offset)
        self.spaced = self.rng.random() < 0.8
        self.reward_kind = self.rng.choice([float, float, float, np.float64, np.float32, int])
        self.extras = self.rng.random() < 0.6
        self.infos = self.rng.random() < 0.5
        self.numpyized = False  # whether some chunk has been numpy'ized
        self.log: list[str] = []
        self.ours, self.theirs = self.both(lambda cls: cls(**self.arguments()), shared_seed=True)
        self.before: tuple[Any, Any] | None = None  # chunks that concat may join to

    # ---- values ----

    def arguments(self) -> dict[str, Any]:
        given: dict[str, Any] = {"id_": "e"}
        if self.spaced:
            given |= {"observation_space": self.obs_space, "action_space": self.action_space}
        if self.rng.random() < 0.3:
            given |= {"agent_id": "left", "module_id": "shared"}
        steps = self.rng.choice([None, None, 0, 1, 3, 6])
        if steps is None:
            return given
        given |= {
            "observations": [self.obs_space.sample() for _ in range(steps + 1)],
            "actions": [self.action_space.sample() for _ in range(steps)],
            "rewards": [self.reward() for _ in range(steps)],
            "len_lookback_buffer": self.rng.choice(["auto", 0, 0, 1, 2, 10]),
            "t_started": self.rng.choice([None, 0, 7]),
        }
        if self.infos:
            given["infos"] = [self.info() for _ in range(steps + 1)]
        if self.extras:
            rows = [self.extra() for _ in range(steps)]
            given["extra_model_outputs"] = {name: [row[name] for row in rows] for name in self.extra()}
        return given

    def reward(self) -> Any:
        return self.reward_kind(self.rng.randint(-5, 5) if self.reward_kind is int else self.rng.uniform(-2, 2))

    def info(self) -> dict[str, Any]:
        return {"k": self.rng.randint(0, 9)} if self.rng.random() < 0.5 else {}

    def extra(self) -> dict[str, Any]:
        logits = np.array([self.rng.random(), self.rng.random()], np.float32)
        return {"logits": logits, "logp": np.float32(self.rng.random()), "state": {"h": logits * 2, "c": logits[:1]}}

    def index(self) -> int:
        return self.rng.randint(-9, 9)

    def range(self) -> slice:
        bound = [None, *range(-9, 10)]
        return slice(self.rng.choice(bound), self.rng.choice(bound), self.rng.choice([None] * 5 + [1, 1, 2, -1]))

    # ---- running both ----

    def both(self, call: Callable[[Any], Any], *, shared_seed: bool = False) -> tuple[Any, Any]:
        state, spaces = self.rng.getstate(), copy.deepcopy((self.obs_space, self.action_space))
        ours = call(SingleAgentEpisode)
        if shared_seed:  # the same random arguments again
            self.rng.setstate(state)
            self.obs_space, self.action_space = spaces
        return ours, call(rllib.SingleAgentEpisode)

    def compare(self, name: str, call: Callable[[Any], Any], *known: str) -> tuple[Any, Any] | None:
        """The two results, or None where both raised; the differences named in `known` end the comparison."""
        self.log.append(name)
        ours, theirs = outcome(lambda: call(self.ours)), outcome(lambda: call(self.theirs))
        met = [name for name in known if name]
        if met:
            assert DIFFERENCES.keys() >= set(met)
            assert ours[0] == "returns" or isinstance(ours[1], OfflineCliError), (self.seed, self.log[-4:], ours)
            if len(met) == 1 and self.differ(ours, theirs):
                self.met[met[0]] += 1
            self.rebuild()
            return None
        assert ours[0] == theirs[0], (self.seed, self.log[-4:], ours, theirs)
        if ours[0] == "raises":
            assert isinstance(ours[1], OfflineCliError), (self.seed, self.log[-4:], ours, theirs)
            if isinstance(theirs[1], (IndexError, KeyError)) and name.startswith("get_"):  # callers may catch these
                assert isinstance(ours[1], type(theirs[1]).__mro__[0]), (self.seed, self.log[-4:], ours, theirs)
            self.rebuild()
            return None
        return ours[1], theirs[1]

    def differ(self, ours: tuple[str, Any], theirs: tuple[str, Any]) -> bool:
        if ours[0] != theirs[0] or difference(whole(self.ours), whole(self.theirs)):
            return True
        values = [whole(result) if hasattr(result, "t_started") else result for result in (ours[1], theirs[1])]
        return ours[0] == "returns" and bool(difference(*values))

    def same(self, name: str, call: Callable[[Any], Any], *known: str) -> None:
        results = self.compare(name, call, *known)
        if results is not None:
            assert not difference(*results), (self.seed, self.log[-4:], difference(*results))
        self.check_whole()

    def check_whole(self) -> None:
        ours, theirs = whole(self.ours), whole(self.theirs)
        if self.other_rewards():
            for side in (ours, theirs):
                side["rewards"]["data"] = np.asarray(side["rewards"]["data"], np.float64)
        assert not difference(ours, theirs), (self.seed, self.log[-4:], difference(ours, theirs))

    def other_rewards(self) -> str:
        return "rewards are float64" if self.numpyized and self.reward_kind in (int, np.float32) else ""

    def rebuild(self) -> None:
        """RLlib's episode made from ours, sharing nothing."""
        state = copy.deepcopy(self.ours.get_state())
        self.theirs = rllib.SingleAgentEpisode.from_state(state)

    # ---- operations ----

    def run(self, operations: int) -> None:
        self.check_whole()
        names = ["add"] * 4 + ["get"] * 8 + ["set"] * 4 + ["cut", "slice", "slice", "numpy", "concat", "state", "facts"]
        for _ in range(operations):
            getattr(self, self.rng.choice(names))()

    def add(self) -> None:
        if not self.ours.is_reset and self.rng.random() < 0.8:
            observation, info = self.obs_space.sample(), self.info() if self.infos else None
            self.same("add_env_reset", lambda episode: episode.add_env_reset(observation, info))
            return
        extra = self.extra() if self.extras else None
        if self.extras and self.rng.random() < 0.05:
            extra = {"other": np.float32(1)}
        step = {
            "observation": self.obs_space.sample(),
            "action": self.action_space.sample(),
            "reward": self.reward(),
            "infos": self.info() if self.infos else None,
            "terminated": self.rng.random() < 0.03,
            "truncated": self.rng.random() < 0.03,
            "extra_model_outputs": extra,
        }
        names = (extra or {}).keys()
        known = self.ours.extra_model_outputs.keys()
        early = not self.ours.is_reset or (names != known and (len(self.ours) or not names >= known))
        if self.ours.is_done:
            early = False
        self.same("add_env_step", lambda episode: episode.add_env_step(**step), "tells early" if early else "")

    def get(self) -> None:
        kind = self.rng.choice(["observations", "actions", "rewards", "infos", "extra_model_outputs"])
        options: dict[str, Any] = {"neg_index_as_lookback": self.rng.random() < 0.4}
        if kind != "infos" and self.rng.random() < 0.5:
            options["fill"] = self.rng.choice([0, 0.0, 1, 0.5])
        if kind in ("observations", "actions") and self.rng.random() < 0.3:
            options["one_hot_discrete"] = True
        choices: list[Any] = [None, self.index(), [self.index() for _ in range(self.rng.randint(0, 4))], self.range()]
        indices = self.rng.choice(choices)
        keys = [self.rng.choice(["logits", "logp", "state", "nothing"])] if kind == "extra_model_outputs" else []
        buffer = self.ours.extra_model_outputs.get(keys[0]) if keys else getattr(self.ours, kind)
        known = self.get_differences(kind, buffer, indices, options)
        self.same(
            f"get_{kind}({keys}, {indices}, {options})",
            lambda episode: getattr(episode, f"get_{kind}")(*keys, indices, **options),
            *known,
        )

    def get_differences(self, kind: str, buffer: Any, indices: Any, options: dict[str, Any]) -> list[str]:
        if buffer is None:
            return ["unknown extra"]
        length, filled = buffer.len_incl_lookback(), options.get("fill") is not None
        nested = not isinstance(buffer.data, (list, np.ndarray))
        simple = buffer.finalized and not nested
        found = [self.other_rewards()] if kind == "rewards" else []
        frame = (length, buffer.lookback, options["neg_index_as_lookback"])
        positions = [indices] if isinstance(indices, int) else indices if isinstance(indices, list) else []
        absolute = [i + (frame[1] if i >= 0 or frame[2] else frame[0]) for i in positions]
        outside = any(not 0 <= at < length for at in absolute)
        if simple and not filled and not options.get("one_hot_discrete") and any(-length <= at < 0 for at in absolute):
            found.append("wraps around")
        if isinstance(indices, list) and not indices and buffer.finalized:
            found.append("no indices")
        if isinstance(indices, list) and filled and buffer.finalized and outside:
            found.append("filled list")
        if isinstance(indices, slice) and filled:
            found.append(self.range_difference(indices, *frame))
        if isinstance(indices, slice) and not length:
            found.append("range of nothing")
        if filled and buffer.space is None and buffer.finalized and (nested or buffer.data.ndim > 1):
            found.append("fill without space")
        if options.get("one_hot_discrete"):
            found += self.one_hot_differences(buffer, indices, frame)
        return found

    @staticmethod
    def range_difference(part: slice, length: int, lookback: int, left: bool) -> str:
        start = lookback if part.start is None else part.start + (lookback if part.start >= 0 or left else length)
        stop = length if part.stop is None else part.stop + (lookback if part.stop >= 0 or left else length)
        odd = part.step not in (None, 1) or stop <= start or (start < 0 and stop > length)
        return "filled range" if odd else ""

    @staticmethod
    def one_hot_differences(buffer: Any, indices: Any, frame: tuple[int, int, bool]) -> list[str]:
        found = []

        def starts(space: gym.Space[Any]) -> bool:
            return isinstance(space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)) and bool(np.any(space.start))

        if buffer.space is not None and any(map(starts, _leaves(space_tree(buffer.space)))):
            found.append("one-hot start")
        if (buffer.finalized and indices is None) or (
            isinstance(indices, slice) and (buffer.finalized or buffer.space is None)
        ):
            part = slice(None) if indices is None else indices
            length, lookback, left = frame
            start = lookback if part.start is None else part.start + (lookback if part.start >= 0 or left else length)
            stop = length if part.stop is None else part.stop + (lookback if part.stop >= 0 or left else length)
            step = part.step or 1
            if not any(0 <= at < length for at in range(start, stop, step)):
                found.append("one-hot of nothing")
        return found

    def set(self) -> None:
        kind = self.rng.choice(["observations", "actions", "rewards"])
        buffer = getattr(self.ours, kind)
        sample = {"observations": self.obs_space.sample, "actions": self.action_space.sample, "rewards": self.reward}[kind]
        left = self.rng.random() < 0.3
        count = self.rng.randint(0, 4)
        indices: Any = self.rng.choice([None, self.index(), [self.index() for _ in range(count)], self.range()])
        if isinstance(indices, int):
            new: Any = sample()
        else:
            if indices is None or (isinstance(indices, slice) and self.rng.random() < 0.8):
                part = slice(0, None) if indices is None else indices
                count = (
                    len(outcome(lambda: buffer.get(part, neg_index_as_lookback=left and indices is not None))[1])
                    if (not buffer.finalized or isinstance(buffer.data, np.ndarray))
                    else self.rng.randint(0, 4)
                )
            items = [sample() for _ in range(count)]
            new = items if not buffer.finalized else _batch(items, buffer.data)
        known = self.set_differences(kind, buffer, indices, new, left, count)
        self.same(
            f"set_{kind}({indices}, {new}, left={left})",
            lambda episode: getattr(episode, f"set_{kind}")(
                new_data=copy.deepcopy(new), at_indices=indices, neg_index_as_lookback=left
            ),
            *known,
        )

    def set_differences(self, kind: str, buffer: Any, indices: Any, new: Any, left: bool, count: int) -> list[str]:
        found = [self.other_rewards()] if kind == "rewards" else []
        nested = not isinstance(buffer.data, (list, np.ndarray))
        if isinstance(indices, slice) and not buffer.len_incl_lookback():
            found.append("range of nothing")
        if nested and (buffer.space is not None or isinstance(indices, list)):
            found.append("nested set")
        elif buffer.finalized and not isinstance(indices, (int, list)) and count == 0:
            found.append("empty set")
        return found

    def cut(self) -> None:
        lookback = self.rng.randint(0, 5)
        nested = self.nested_lookback(len(self.ours), lookback)
        results = self.compare(f"cut({lookback})", lambda episode: episode.cut(lookback), nested)
        if results is not None:
            self.before = (self.ours, self.theirs) if self.rng.random() < 0.7 else None
            self.replace(results)

    def slice(self) -> None:
        part = self.range() if self.rng.random() < 0.4 else slice(*sorted(self.rng.choices(range(len(self.ours) + 1), k=2)))
        lookback = self.rng.choice([None, None, 0, 1, 4])
        size = len(self.ours)
        start = 0 if part.start is None else part.start + (size if part.start < 0 else 0)
        stop = size if part.stop is None else part.stop + (size if part.stop < 0 else 0)
        known = ["slice step" if part.step not in (None, 1) else "", self.nested_lookback(max(start, 0), lookback)]
        if not 0 <= start <= stop <= size or not self.ours.is_reset:
            known.append("slice bounds")
        results = self.compare(
            f"slice({part}, {lookback})", lambda episode: episode.slice(part, len_lookback_buffer=lookback), *known
        )
        if results is not None:
            self.replace(results)

    def replace(self, results: tuple[Any, Any]) -> None:
        ours, theirs = results
        if self.ours.is_numpy and np.shares_memory(theirs.rewards.data, self.theirs.rewards.data):
            self.met["copies before writing"] += 1
        if ours.agent_id != theirs.agent_id:
            self.met["agent lost"] += 1
            theirs.agent_id, theirs.module_id = ours.agent_id, ours.module_id
        self.ours, self.theirs = ours, copy.deepcopy(theirs)
        self.check_whole()

    def nested_lookback(self, start: int, lookback: int | None) -> str:
        for buffer in (self.ours.observations, self.ours.actions, *self.ours.extra_model_outputs.values()):
            kept = min(buffer.lookback if lookback is None else lookback, buffer.lookback + start)
            if not isinstance(buffer.data, (list, np.ndarray)) and kept > len(buffer.data):
                return "nested lookback"
        return ""

    def numpy(self) -> None:
        results = self.compare("to_numpy", lambda episode: episode.to_numpy() is episode)
        self.numpyized = self.numpyized or self.ours.is_numpy
        self.met["rewards are float64"] += bool(self.other_rewards())
        assert results in (None, (True, True))
        if results is None:
            return
        self.check_whole()

    def concat(self) -> None:
        if self.before is None or self.rng.random() < 0.2:
            other = (self.ours, self.theirs)  # a chunk that does not continue this one, in most cases
        else:
            other, (self.ours, self.theirs) = (self.ours, self.theirs), self.before
            self.before = None
            if self.rng.random() < 0.4:
                self.numpy()
        other = tuple(map(copy.deepcopy, other))
        chunk = other[0]
        pairs = [(self.ours.observations, chunk.observations), (self.ours.actions, chunk.actions)]
        pairs += [(mine, chunk.extra_model_outputs.get(name, mine)) for name, mine in self.ours.extra_model_outputs.items()]
        nested = any(
            mine.finalized != theirs.finalized and any(not isinstance(side.data, (list, np.ndarray)) for side in (mine, theirs))
            for mine, theirs in pairs
        )
        known = ["nested concat" if nested else "", "both flags" if chunk.is_terminated and chunk.is_truncated else ""]
        if not len(chunk) and self.ours.is_numpy:
            known.append("empty concat")
        known.append(self.other_rewards())
        chunks = {id(self.ours): other[0], id(self.theirs): other[1]}
        self.same("concat_episode", lambda episode: episode.concat_episode(chunks[id(episode)]), *known)

    def state(self) -> None:
        self.log.append("state")
        ours, theirs = self.ours.get_state(), self.theirs.get_state()
        assert ours.keys() == theirs.keys()
        empty = [name for name, buffer in self.ours.extra_model_outputs.items() if not len(buffer)]
        if empty:
            self.met["empty extra state"] += not isinstance(theirs["extra_model_outputs"][empty[0]], dict)
            self.rebuild()
            return
        for name in ("_start_time", "_last_step_time", *(["rewards"] if self.other_rewards() else [])):
            ours.pop(name), theirs.pop(name)
        assert not difference(_read_spaces(ours), _read_spaces(theirs)), (self.seed, self.log)
        ours, theirs = self.ours.get_state(), self.theirs.get_state()
        crossed = self.rng.random() < 0.5
        mine, other = (copy.deepcopy(theirs), copy.deepcopy(ours)) if crossed else (copy.deepcopy(ours), copy.deepcopy(theirs))
        self.ours, self.theirs = SingleAgentEpisode.from_state(mine), rllib.SingleAgentEpisode.from_state(other)
        if crossed and self.other_rewards() and self.ours.is_numpy:
            self.ours.rewards.data = np.asarray(self.ours.rewards.data, np.float64)
        self.check_whole()

    def facts(self) -> None:
        episode = self.ours
        assert np.isclose(episode.get_return(), self.theirs.get_return(), rtol=1e-6), (self.seed, self.log)
        rewards = self.other_rewards()
        self.same("get_data_dict", lambda episode: episode.get_data_dict(), rewards, "" if len(episode) else "empty data dict")
        self.same("episode[3]", lambda episode: episode[3])
        self.same("validate", lambda episode: episode.validate())


def _read_spaces(state: Any) -> Any:
    """`state` with spaces as RLlib reads them: their written forms may differ, what is read may not."""
    if not isinstance(state, dict):
        return state
    if "space" in state and "data" not in state:
        return from_rllib.gym_space_from_dict(state)
    return {key: _read_spaces(part) for key, part in state.items()}


def _leaves(tree: Any) -> list[Any]:
    found: list[Any] = []
    map_leaves(found.append, tree)
    return found


def _batch(items: list[Any], like: Any) -> Any:
    if isinstance(like, dict):
        return {key: _batch([item[key] for item in items], part) for key, part in like.items()}
    if isinstance(like, tuple):
        return tuple(_batch([item[i] for item in items], part) for i, part in enumerate(like))
    return np.array(items) if items else np.zeros((0, *like.shape[1:]), like.dtype)


def test_random_sequences_of_operations_give_what_rllib_gives_but_for_the_differences_named_and_each_of_them_is_real() -> None:
    met: Counter[str] = Counter()
    for seed in range(SEQUENCES):
        Driver(seed, met).run(OPERATIONS)
    assert {name for name in DIFFERENCES if not met[name]} == set()
