"""Our MultiAgentEpisode and another class, driven through the same random operations: no difference but those in DIFFERENCES.

Two to four agents act in turns, all at once or as they like; they come late, skip steps, wait and end. Where the other raises,
ours must raise an OfflineCliError; where it returns, ours must return equal values. A call that meets a known difference is not
compared, and the other episode is then rebuilt from ours, so that later calls start from the same data again. `trail` keeps
what the other answered, `foresight` which calls meet a known difference.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from multi_agent_compared import Outcome, difference, outcome, whole
from multi_agent_differences import DIFFERENCES, Foresight
from rllib_answers import Trail, brief, brief_error

from offline_cli.episodes.multi_agent.multi_agent_episode import MultiAgentEpisode
from offline_cli.errors import OfflineCliError

__all__ = ["Driver", "module_of"]

AGENTS = ["a", "b", "c", "d"]
OBS = {name: gym.spaces.Box(-9.0, 9.0, (2,) if name < "c" else (), np.float32) for name in AGENTS}
ACTIONS = {name: gym.spaces.Discrete(4) if name != "b" else gym.spaces.Box(-1.0, 1.0, (1,), np.float32) for name in AGENTS}
READS = ("get_observations", "get_actions", "get_rewards", "get_infos", "is_numpy", "slice")  # RLlib's others may write


def module_of(agent: str, episode: Any) -> str:
    return f"m-{agent}"


class Driver(Foresight):
    """One random sequence of operations on two episodes; `met` counts the known differences."""

    def __init__(self, rng: random.Random, met: Counter[str], kind: Any, foreseen: str = "") -> None:
        """`kind`: the other class; where it is ours too, `foreseen` is the `foresight` of such a sequence with RLlib."""
        self.rng, self.met, self.kind = rng, met, kind
        self.trail: Trail = []
        self.foresight, self.foreseen = "", iter(foreseen)
        self.style = rng.choice(["parallel", "turns", "ragged", "ragged"])
        self.agents = AGENTS[: rng.randint(2, 4)]
        self.extras, self.infos = rng.random() < 0.6, rng.random() < 0.4
        self.rewarding = rng.random() < 0.7  # whether agents get rewards when they have not acted
        self.count = 0
        self.log: list[str] = []
        self.before: MultiAgentEpisode | None = None  # the chunk that ours continues
        self.ours, self.theirs = self.fresh(MultiAgentEpisode), self.fresh(kind)

    def fresh(self, cls: Any) -> Any:
        return cls(id_="e", observation_space=OBS, action_space=ACTIONS, agent_to_module_mapping_fn=module_of)

    def observation(self, agent: str) -> Any:
        self.count += 1
        return np.full(OBS[agent].shape, self.count % 9, np.float32)

    def action(self, agent: str) -> Any:
        return self.rng.randint(0, 3) if agent != "b" else np.array([self.rng.randint(-4, 4) / 4], np.float32)

    def outputs(self, agent: str) -> dict[str, Any]:
        if self.rng.random() < 0.02:
            return {"other": np.float32(1)}
        found = {"logp": np.float32(self.rng.randint(0, 8)), "logits": np.array([self.count, 1.0], np.float32)}
        return found if agent != "b" else {"logp": found["logp"]}

    def foresee(self, known: Callable[[], list[str]]) -> list[str]:
        """The known differences that a call is going to meet; any of them where RLlib, which tells, is not there."""
        if self.kind is MultiAgentEpisode:
            return [*DIFFERENCES][: int(next(self.foreseen))]
        found = [name for name in known() if name]
        self.foresight += str(int(bool(found)))
        return found

    def compare(self, name: str, call: Callable[[Any], Any], *known: str) -> tuple[Any, Any] | None:
        """The two results, or None where both raised; the differences named in `known` end the comparison."""
        self.log.append(name)
        ours, theirs = outcome(lambda: call(self.ours)), outcome(lambda: call(self.theirs))
        met, reads = [name for name in known if name], name.startswith(READS)
        assert DIFFERENCES.keys() >= set(met)
        assert ours[0] == "returns" or isinstance(ours[1], OfflineCliError), (self.log[-6:], ours)
        if met:
            if len(met) == 1 and self.differ(ours, theirs, reads):
                self.met[met[0]] += 1
            if not reads:
                self.rebuild()
            return None
        assert ours[0] == theirs[0], (self.log[-6:], ours, theirs)
        if ours[0] == "raises":
            assert (
                not name.startswith("get_")
                or isinstance(ours[1], (IndexError, KeyError))
                or not isinstance(theirs[1], (IndexError, KeyError))
            ), (self.log[-6:], ours, theirs)
            self.trail.append((name, brief_error(theirs[1], kind_matters=False)))
            if not reads:
                self.rebuild()
            return None
        return ours[1], theirs[1]

    def differ(self, ours: Outcome, theirs: Outcome, reads: bool) -> bool:
        if ours[0] != theirs[0] or (not reads and self.differ_whole()):
            return True
        values = [
            outcome(lambda value=value: whole(value)) if hasattr(value, "env_t") else value for value in (ours[1], theirs[1])
        ]
        return ours[0] == "returns" and bool(difference(*values))

    def differ_whole(self) -> str:
        return difference(whole(self.ours), whole(self.theirs))

    def same(self, name: str, call: Callable[[Any], Any], *known: str) -> None:
        results = self.compare(name, call, *known)
        if results is not None:
            assert not difference(*results), (self.log[-6:], difference(*results))
            self.trail.append((name, brief(results[1])))
        if not name.startswith(READS):
            self.check_whole()

    def check_whole(self) -> None:
        self.ours.validate()
        assert not self.differ_whole(), (self.log[-6:], self.differ_whole())
        self.trail.append(("the episode now", brief(whole(self.theirs))))

    def rebuild(self) -> None:
        """RLlib's episode made from ours, with what its from_state forgets."""
        self.theirs = self.kind.from_state(copy.deepcopy(self.ours.get_state()))
        if self.kind is MultiAgentEpisode:
            return
        self.theirs._len_lookback_buffers = self.ours._lookback
        for part in self.theirs.agent_episodes.values():
            part._last_added_observation, part._last_added_infos = part.get_observations(-1), part.get_infos(-1)

    def run(self, operations: int) -> None:
        names = (
            ["step"] * 10
            + ["get"] * 10
            + ["cut", "slice", "slice", "numpy", "numpy", "concat", "state", "facts", "set", "construct"]
        )
        for _ in range(operations):
            getattr(self, self.rng.choice(names))()

    def step(self) -> None:
        if self.ours.is_done and self.rng.random() < 0.4:
            self.ours, self.theirs, self.before = self.fresh(MultiAgentEpisode), self.fresh(self.kind), None
        if not self.ours.is_reset and not self.ours.env_t and self.rng.random() < 0.9:
            self.reset()
            return
        step = self.some_step()
        self.same(
            f"add_env_step({step})",
            lambda episode: episode.add_env_step(**copy.deepcopy(step)),
            *self.foresee(lambda: self.step_differences(step)),
        )

    def reset(self) -> None:
        first = self.agents if self.style == "parallel" else self.rng.sample(self.agents, self.rng.randint(1, len(self.agents)))
        observations = {agent: self.observation(agent) for agent in first}
        infos = {agent: {"n": self.count} for agent in first} if self.infos else None
        self.same("add_env_reset", lambda episode: episode.add_env_reset(observations=observations, infos=infos))

    def some_step(self) -> dict[str, Any]:
        step: dict[str, Any] = {
            name: {} for name in ("observations", "actions", "rewards", "infos", "terminateds", "truncateds")
        }
        step["extra_model_outputs"] = {}
        for agent in self.agents:
            self.share(agent, step)
        if self.rng.random() < 0.04:
            for name in self.rng.choice([["terminateds"], ["truncateds"], ["terminateds", "truncateds"]]):
                step[name]["__all__"] = True
        if self.rng.random() < 0.04:
            flags = step[self.rng.choice(["terminateds", "truncateds"])]
            flags.update({agent: True for agent, part in self.ours.agent_episodes.items() if not part.is_done})
        if self.rng.random() < 0.04:  # what cannot be
            agent = self.rng.choice(self.agents)
            if self.rng.random() < 0.5:
                step["actions"][agent] = self.action(agent)
            else:
                step["observations"][agent] = self.observation(agent)
        return step

    def share(self, agent: str, step: dict[str, Any]) -> None:
        part, rng = self.ours.agent_episodes.get(agent), self.rng
        if part is not None and part.is_done:
            return
        if part is None:
            if rng.random() < (0.15 if self.style != "parallel" else 0.02):
                step["observations"][agent] = self.observation(agent)
            sees, acted = agent in step["observations"], False
        else:
            hangs = agent in self.ours._hanging_actions_end
            acts = not hangs and rng.random() < {"parallel": 1.0, "turns": 0.95, "ragged": 0.7}[self.style]
            acted = acts or hangs
            sees = acted and rng.random() < {"parallel": 1.0, "turns": 0.3, "ragged": 0.6}[self.style]
            if acts:
                step["actions"][agent] = self.action(agent)
                if self.extras:
                    step["extra_model_outputs"][agent] = self.outputs(agent)
            if sees:
                step["observations"][agent] = self.observation(agent)
        if sees and self.infos:
            step["infos"][agent] = {"n": self.count}
        if (
            (sees and acted and agent in step["actions"])
            or (self.rewarding and rng.random() < 0.4)
            or (acted and (sees or self.rewarding) and rng.random() < 0.5)
        ):
            step["rewards"][agent] = float(rng.randint(-3, 3))
        if rng.random() < 0.05:
            step["terminateds"][agent] = True
        if rng.random() < 0.03 and (sees or rng.random() < 0.1):
            step["truncateds"][agent] = True

    def indices(self) -> Any:
        rng, low, high = self.rng, -len(self.ours) - self.ours._lookback - 2, len(self.ours) + 2
        bound = [None, *range(low, high + 1)]
        choices = [None, rng.randint(low, high), [rng.randint(low, high) for _ in range(rng.randint(1, 4))]]
        return rng.choice([*choices, slice(rng.choice(bound), rng.choice(bound))])

    def get(self) -> None:
        rng = self.rng
        kind = rng.choice(["observations", "actions", "rewards", "infos", "extra_model_outputs"])
        options: dict[str, Any] = {"env_steps": rng.random() < 0.7, "neg_index_as_lookback": rng.random() < 0.3}
        if self.ours.is_numpy and rng.random() < 0.3:
            options |= {"env_steps": False, "neg_index_as_lookback": True}
        if kind != "infos" and rng.random() < 0.3:
            options["fill"] = rng.choice([0, 0.0, 1])
        if options["env_steps"] and rng.random() < 0.3:
            options["return_list"] = True
        if kind in ("observations", "actions") and rng.random() < 0.2:
            options["one_hot_discrete"] = True
        if rng.random() < 0.3:
            options["agent_ids"] = rng.choice([self.agents[0], self.agents[:2], [], tuple(self.agents[-2:])])
        keys = [rng.choice([None, "logp", "logits", "nothing"])] if kind == "extra_model_outputs" else []
        indices = self.indices()
        self.same(
            f"get_{kind}({keys}, {indices}, {options})",
            lambda episode: getattr(episode, f"get_{kind}")(*keys, indices, **options),
            *self.foresee(lambda: self.get_differences(kind, keys, indices, options)),
        )

    def take(self, results: tuple[Any, Any] | None) -> bool:
        if results is None:
            return False
        self.ours, self.theirs = results[0], copy.deepcopy(results[1])
        self.check_whole()
        return True

    def cut(self) -> None:
        lookback = self.rng.randint(0, 4)
        ours, known = self.ours, self.foresee(lambda: self.cut_differences(lookback))
        before = copy.deepcopy(ours)
        results = self.compare(f"cut({lookback})", lambda episode: episode.cut(lookback), *([] if ours.is_done else known))
        if not ours.is_done and (results is not None or any(known)):
            self.before = before if self.rng.random() < 0.7 else None
            if not self.take(results):
                self.ours = self.ours.cut(lookback)
                self.rebuild()

    def slice(self) -> None:
        ours = self.ours
        bounds = sorted(self.rng.choices(range(len(ours) + 1), k=2))
        part = slice(*bounds) if self.rng.random() < 0.8 else slice(self.rng.randint(-9, 9), self.rng.randint(-9, 9))
        lookback = self.rng.choice([None, None, 0, 1, 3])
        start, stop, _ = part.indices(len(ours))
        known = self.foresee(lambda: ["slices backwards"] if stop < start else self.slice_differences(start, stop, lookback))
        results = self.compare(
            f"slice({part}, {lookback})", lambda episode: episode.slice(part, len_lookback_buffer=lookback), *known
        )
        if results is None:
            return
        self.met["(slices compared)"] += 1
        assert not difference(*map(whole, results)), (self.log[-6:], difference(*map(whole, results)))
        self.trail.append((self.log[-1], brief(whole(results[1]))))
        if self.rng.random() < 0.2:
            self.before = None
            self.take(results)

    def concat(self) -> None:
        if self.before is None or self.rng.random() < 0.1:
            other = self.ours  # a chunk that does not continue this one, in most cases
            if not len(other) and not other.is_done:
                return
            known = []
        else:
            other, self.ours, self.before = self.ours, self.before, None
            self.rebuild()
            known = self.foresee(lambda: self.concat_differences(other))
        chunk = self.kind.from_state(copy.deepcopy(other.get_state()))
        other = copy.deepcopy(other)
        chunks = {id(self.ours): other, id(self.theirs): chunk}
        self.met["(concats compared)"] += not any(known)
        self.same("concat_episode", lambda episode: episode.concat_episode(chunks[id(episode)]), *known)

    def numpy(self) -> None:
        if not self.rng.random() < 0.3:
            return
        results = self.compare("to_numpy", lambda episode: episode.to_numpy() is episode)
        assert results in (None, (True, True))
        self.check_whole()

    def set(self) -> None:
        if not self.ours.agent_episodes:
            return
        agent = self.rng.choice(sorted(self.ours.agent_episodes))
        part = self.ours.agent_episodes[agent]
        index = self.rng.randint(-len(part) - 1, len(part))
        value = float(self.rng.randint(-3, 3))
        known = "wraps around" if part.rewards.finalized else ""
        self.same(
            f"set_rewards({agent}, {index})",
            lambda episode: episode.set_rewards(new_data={agent: value}, at_indices=index),
            known if not -part.rewards.len_incl_lookback() <= index < len(part) else "",
        )
        self.same("set nobody", lambda episode: episode.set_actions(new_data={"nobody": 1}, at_indices=0))

    def state(self) -> None:
        self.log.append("state")
        ours, theirs = self.ours.get_state(), self.theirs.get_state()
        assert ours.keys() == theirs.keys()
        empty = [
            part
            for part in self.ours.agent_episodes.values()
            for buffer in part.extra_model_outputs.values()
            if not len(buffer)
        ]
        if empty:
            live = [state["extra_model_outputs"] for _, state in theirs["agent_episodes"]]
            self.met["empty extra state"] += any(not isinstance(part, dict) for some in live for part in (some or {}).values())
            self.rebuild()
            return
        crossed = self.rng.random() < 0.5
        mine, other = (theirs, ours) if crossed else (ours, theirs)
        self.ours = MultiAgentEpisode.from_state(copy.deepcopy(mine))
        self.theirs = self.kind.from_state(copy.deepcopy(other))
        self.check_whole()

    def facts(self) -> None:
        ours, theirs = self.ours, self.theirs
        ours.custom_data["seen"] = theirs.custom_data["seen"] = [self.count]
        assert ours.agent_ids == theirs.agent_ids
        assert ours.get_terminateds() == theirs.get_terminateds()
        if ours.get_truncateds() != theirs.get_truncateds():
            self.met["all truncated"] += 1
            assert {**ours.get_truncateds(), "__all__": 0} == {**theirs.get_truncateds(), "__all__": 0}
        assert np.isclose(ours.get_return(), theirs.get_return())
        assert np.isclose(ours.get_return(True), theirs.get_return(True))
        if ours.agent_episodes:
            assert ours.get_agents_that_stepped() == theirs.get_agents_that_stepped()
            assert ours.get_agents_to_act() == theirs.get_agents_to_act()
            asked = [theirs.get_terminateds(), theirs.get_agents_that_stepped(), theirs.get_agents_to_act()]
            self.trail.append(("get_terminateds, get_agents_that_stepped, get_agents_to_act", brief(asked)))
        assert {agent: ours.module_for(agent) for agent in self.agents} == {
            agent: theirs.module_for(agent) for agent in self.agents
        }
        self.same("is_numpy", lambda episode: episode.is_numpy, "partly numpy" if self.partly_numpy() else "")
        self.same("episode[3]", lambda episode: episode[3])

    def construct(self) -> None:
        """The lists of the episode as it is, given to both constructors."""
        ours, parts = self.ours, self.ours.agent_episodes
        if not parts or ours._lookback or ours.env_t_started or any(map(self.has_arrays, parts)):
            return
        given = {
            name: getattr(ours, f"get_{name}")(return_list=True)
            for name in ("observations", "infos", "actions", "rewards", "extra_model_outputs")
        }
        given |= {"id_": "e", "observation_space": OBS, "action_space": ACTIONS, "agent_to_module_mapping_fn": module_of}
        given |= {"terminateds": ours.get_terminateds(), "truncateds": ours.get_truncateds()}
        given |= {"len_lookback_buffer": self.rng.choice(["auto", 0, 1, 2]), "env_t_started": self.rng.choice([None, 5])}
        given |= {"agent_t_started": dict.fromkeys(parts, 3) if self.rng.random() < 0.5 else None}
        known = self.foresee(lambda: self.construct_differences(ours, given["len_lookback_buffer"]))
        results = self.compare("construct", lambda episode: type(episode)(**copy.deepcopy(given)), *known)
        if results is not None:
            self.met["(constructions compared)"] += 1
            assert not difference(*map(whole, results)), (self.log[-6:], difference(*map(whole, results)))
            self.trail.append(("construct", brief(whole(results[1]))))
