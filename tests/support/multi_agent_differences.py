"""Where RLlib 2.60's MultiAgentEpisode and ours are known to differ, and when; refuses to drive either."""

from __future__ import annotations

from typing import Any

from multi_agent_compared import nonzero, outcome

from offline_cli.episodes.multi_agent.multi_agent_episode import MultiAgentEpisode

__all__ = ["DIFFERENCES", "Foresight"]

DIFFERENCES = {
    # Steps.
    "truncated made terminated": "once all agents are done, agents truncated at that step are marked terminated as well",
    "newcomer ended": "a step that ends all agents ends the one that comes in at that step too",
    "never came": "a reward, in the step that ends all agents, of one that never came is forgotten, earlier ones are not",
    "nobody yet": "a step before any agent has come terminates the episode",
    "ended while waiting": "an agent that ends without an action under way is not marked done, and loses its last reward",
    "repeated observation": "an agent terminated without an observation gets a timeline that is one too long",
    "repeated observation lost": "the same in a chunk, or after from_state: the agent's last step is lost",
    "late in a chunk": "the timeline of an agent that comes late in a chunk is as long as the whole episode, or lacks lookback",
    "rewards while waiting": "rewards between an observation and the action are lost, or added to a later step",
    "tells early": "other extra model outputs than before are taken, and fail at some later call",
    "acts twice": "an agent that acts again before its next observation: the first action stays, and is used later",
    "acts before seeing": "an action of an agent that has not seen anything hangs",
    # Construction.
    "flags for all": "terminateds=True fails, and __all__ does not reach the agents' episodes",
    "short timelines": "agents that ended early have a shorter timeline, so that -1 is another moment for them",
    "last actions count": "with as many actions as observations, the episode is one step longer than it is",
    "modules forgotten": "the mapping function's answer is not remembered: later answers may differ",
    "acts later": "an action after the timestep of the observation is ignored, and the agent taken for terminated",
    # Pieces.
    "cut loses agents": "cut without lookback loses agents whose action hangs; agents that wait are lost or terminated",
    "lookback too long": "cut looks back further than to the last observation of agents whose action hangs",
    "lookback beyond data": "a lookback longer than the episode is not lowered but filled with skips",
    "hanging rewards twice": "after cut, rewards that hang are both at the beginning and at the end, and get_return adds both",
    "done agents' time": "agents that are done start at timestep 0 after cut",
    "cut of arrays": "cut of a numpy'ized episode gives lists",
    "slices backwards": "slices that stop before they start have a length below 0, or fail",
    "slices need one lookback": "slices fail where agents have lookback buffers of different lengths, or with no agents",
    "slices lose the end": "slices are done where all agents end at their last timestep in one way, not where the episode is",
    "slices lose first rewards": "slices lose the rewards of agents before their first observation",
    "slices end agents": "slices terminate agents that wait for their turn, and those that were truncated early",
    "slices shift agents": "agents' timesteps in slices of chunks, and of agents seen in the lookback buffer only, are wrong",
    "slices lose infos": "slices have empty infos",
    "slices of arrays": "in slices of numpy'ized episodes, data of agents without steps is lists",
    "concat keeps what was answered": "after concat_episode, actions and rewards hang that the second chunk had answered",
    "concat loses skips": "after concat_episode, timelines of agents that ended, or came in the second chunk, are too short",
    "concat loses first rewards": "concat_episode loses rewards of agents before their first observation",
    "concat loses a flag": "joining a chunk that is terminated and truncated loses `truncated`",
    "concat of arrays": "joining numpy'ized chunks changes dtypes, or fails",
    # Getters.
    "actions in chunks": "an agent that has not acted yet is not told from others by actions, rewards and outputs of a chunk",
    "rewards without action": "rewards of agents that have not acted count as rewards of a step",
    "lists beyond data": "return_list gives empty dicts beyond the ends of the episode, instead of an IndexError or nothing",
    "list of one": "return_list of a single index fails",
    "hanging in all": "all of the agents' own steps do not include the one that hangs, other than all of the environment's",
    "hanging in a range": "a range of the agents' own steps with one that hangs is an array of objects, or flattened, or fails",
    "hanging in arrays": "numpy'ized data with a step that hangs is flattened, or fails",
    "all outputs": "all extra model outputs of several steps, or of the agents' own steps, fail",
    "outputs by agents' steps": "one extra model output, by the agents' own steps, fails for agents whose action does not hang",
    "filled outputs": "filled extra model outputs of several steps fail",
    "range of nothing": "a range that ends before an empty buffer trips an internal assertion",
    "outputs of some": "an extra model output that one agent does not have fails for all",
    "filled arrays": "filled numpy'ized data has another dtype, or fails",
    "filled range": "with fill or return_list, ranges that are empty or go beyond both ends have wrong counts",
    "hanging before lookback": "neg_index_as_lookback before the lookback buffer gives the agent's step that hangs",
    "no steps": "agents without any of the steps asked for are there with empty arrays once numpy'ized",
    "wraps around": "neg_index_as_lookback before the lookback buffer reads numpy'ized arrays from their end",
    "no agents": "agent_ids=[] means all agents, a set of them fails",
    "all truncated": "get_truncateds gives `terminated` under __all__",
    "partly numpy": "is_numpy fails while agents without steps are there, or with no agents at all",
    # States.
    "empty extra state": "get_state puts live objects in place of extra model outputs without records",
}


class Foresight:
    """Which of DIFFERENCES a call is going to meet, told from our episode and the call before it is made."""

    ours: MultiAgentEpisode
    theirs: Any
    agents: list[str]

    def step_differences(self, step: dict[str, Any]) -> list[str]:
        ours, found = self.ours, []
        if ours.is_done:
            return []
        everybody = bool(step["terminateds"].get("__all__") or step["truncateds"].get("__all__"))
        done = {agent for name in ("terminateds", "truncateds") for agent, flag in step[name].items() if flag}
        parts = ours.agent_episodes
        if not parts:
            found.append("nobody yet")
        elif all(part.is_done or agent in done for agent, part in parts.items()):
            terminated = any(part.is_terminated or step["terminateds"].get(agent) for agent, part in parts.items())
            if not terminated or any(step["truncateds"].get(agent) for agent in (done & parts.keys()) | {"__all__"}):
                found.append("truncated made terminated")
            if any(agent not in parts and agent not in done for agent in step["observations"]):
                found.append("newcomer ended")
            elif any(
                agent not in parts and agent not in done and (reward or ours._hanging_rewards_begin.get(agent))
                for agent, reward in step["rewards"].items()
            ):
                found.append("never came")
        for agent in self.agents:
            found += self.agent_differences(agent, step, agent in done or everybody)
        return found

    def agent_differences(self, agent: str, step: dict[str, Any], done: bool) -> list[str]:
        ours, part = self.ours, self.ours.agent_episodes.get(agent)
        sees, acts = agent in step["observations"], agent in step["actions"]
        hangs = agent in ours._hanging_actions_end
        if part is None:
            late = sees and not acts and not done
            return [
                "acts before seeing" if acts else "",
                "late in a chunk"
                if late and (ours.env_t != ours.moments - 1 or self.theirs._len_lookback_buffers != ours._lookback)
                else "",
            ]
        if part.is_done:
            return ["ended while waiting"] if done and ours._hanging_rewards_end.get(agent) else []
        forgot = self.theirs.agent_episodes[agent]._last_added_observation is None
        return [
            "acts twice" if hangs and acts else "",
            "tells early"
            if acts and not hangs and self.other_outputs(part, step["extra_model_outputs"].get(agent) or {})
            else "",
            "ended while waiting" if done and not acts and not hangs else "",
            ("repeated observation lost" if forgot else "repeated observation")
            if done and not sees and (acts or hangs)
            else "",
            "rewards while waiting" if acts and ours._hanging_rewards_end.get(agent) and not hangs else "",
        ]

    @staticmethod
    def other_outputs(part: Any, outputs: dict[str, Any]) -> bool:
        known = part.extra_model_outputs.keys()
        return outputs.keys() != known and (len(part) > 0 or not outputs.keys() >= known)

    def get_differences(self, kind: str, keys: list[Any], indices: Any, options: dict[str, Any]) -> list[str]:
        ours, found = self.ours, []
        asked = options.get("agent_ids", self.agents)
        agents = [agent for agent in ours.agent_episodes if agent in asked]
        hanging = [agent for agent in agents if agent in ours._hanging_actions_end]
        filled, arrays = options.get("fill") is not None, any(self.has_arrays(agent) for agent in agents)
        if asked == []:
            found.append("no agents")
        if keys:
            found += self.output_differences(keys[0], agents, indices, options)
        if options["env_steps"]:
            found += self.moment_differences(kind, agents, indices, options)
        else:
            if hanging and kind not in ("observations", "infos"):
                found.append(
                    "hanging in all" if indices is None else "hanging in a range" if isinstance(indices, slice) else ""
                )
            if arrays and (indices is None or isinstance(indices, slice)):
                found.append("no steps")
            if isinstance(indices, slice) and any(not self.frame(kind, agent)[0] for agent in agents):
                found.append("range of nothing")
            if isinstance(indices, slice) and filled:
                found += [self.range_difference(self.frame(kind, agent), indices, options) for agent in agents]
            if hanging and options["neg_index_as_lookback"] and isinstance(indices, (int, list)):
                asked_for = [indices] if isinstance(indices, int) else indices
                lookbacks = [ours.agent_episodes[agent].actions.lookback for agent in hanging]
                if kind not in ("observations", "infos") and min(asked_for) < -min(lookbacks):
                    found.append("hanging before lookback")
        if kind == "rewards" and any(agent not in ours._hanging_actions_end for agent in self.theirs._hanging_rewards_end):
            found.append("rewards without action")
        if hanging and kind not in ("observations", "infos") and arrays:
            found.append("hanging in arrays")
        if arrays and filled:
            found.append("filled arrays")
        elif filled and self.partly_numpy():
            found.append("partly numpy")
        if (
            arrays
            and not options["env_steps"]
            and options["neg_index_as_lookback"]
            and not isinstance(indices, slice)
            and indices is not None
        ):
            found.append("wraps around")
        return found

    def has_arrays(self, agent: str) -> bool:
        part = self.ours.agent_episodes[agent]
        return part.observations.finalized or part.rewards.finalized

    def output_differences(self, key: Any, agents: list[str], indices: Any, options: dict[str, Any]) -> list[str]:
        names = {agent: self.output_names(agent) for agent in agents}
        if key is None:
            some = options.get("return_list") or (isinstance(indices, int) and options["env_steps"])
            some = some and all(names.values()) and options.get("fill") is None
            return [] if some else ["all outputs"]
        if agents and not all(key in some for some in names.values()):
            return ["outputs of some"]
        if (
            options["env_steps"]
            and options.get("fill") is not None
            and not isinstance(indices, int)
            and not options.get("return_list")
        ):
            return ["filled outputs"]
        hang = all(agent in self.ours._hanging_actions_end for agent in agents)
        return [] if options["env_steps"] or hang else ["outputs by agents' steps"]

    def output_names(self, agent: str) -> set[str]:
        buffers = self.ours.agent_episodes[agent].extra_model_outputs
        return {name for name, buffer in buffers.items() if buffer.len_incl_lookback()}

    def moment_differences(self, kind: str, agents: list[str], indices: Any, options: dict[str, Any]) -> list[str]:
        ours, found = self.ours, []
        acted = kind not in ("observations", "infos")
        length = ours.moments - acted
        asked = self.moments(indices, length, options["neg_index_as_lookback"])
        outside = [at for at in asked if not 0 <= at < length]
        if options.get("return_list"):
            if isinstance(indices, int):
                found.append("list of one")
            elif outside and options.get("fill") is None:
                found.append("lists beyond data")
        if isinstance(indices, slice) and (options.get("return_list") or options.get("fill") is not None):
            found.append(self.range_difference((length, ours._lookback), indices, options))
        if isinstance(indices, slice) and not length:
            found.append("range of nothing")
        for agent in agents if acted else ():
            part, tags = ours.agent_episodes[agent], ours.env_t_to_agent_t[agent].data
            offset = part.t_started - part.observations.lookback
            count = part.actions.len_incl_lookback() + (agent in ours._hanging_actions_end)
            shown = [tags[at] for at in asked if 0 <= at < length and tags[at] != "S"]
            if any((tag == count) != (tag - offset == count) for tag in shown) or (
                options.get("return_list") and any(tag - offset == count for tag in shown)
            ):
                found.append("actions in chunks")
        return found

    def frame(self, kind: str, agent: str) -> tuple[int, int]:
        part = self.ours.agent_episodes[agent]
        hangs = kind not in ("observations", "infos") and agent in self.ours._hanging_actions_end
        buffer = part.rewards if kind == "extra_model_outputs" else getattr(part, kind)
        return buffer.len_incl_lookback() + hangs, buffer.lookback

    @staticmethod
    def range_difference(frame: tuple[int, int], part: slice, options: dict[str, Any]) -> str:
        length, lookback = frame
        below = lookback if options["neg_index_as_lookback"] else length
        start = lookback if part.start is None else part.start + (lookback if part.start >= 0 else below)
        stop = length if part.stop is None else part.stop + (lookback if part.stop >= 0 else below)
        return "filled range" if stop <= start or (start < 0 and stop > length) else ""

    def moments(self, indices: Any, length: int, left: bool) -> list[int]:
        lookback = self.ours._lookback

        def at(index: int) -> int:
            return index + (lookback if index >= 0 or left else length)

        if indices is None:
            return list(range(lookback, length))
        if isinstance(indices, slice):
            start = lookback if indices.start is None else at(indices.start)
            return list(range(start, length if indices.stop is None else at(indices.stop)))
        return [at(index) for index in ([indices] if isinstance(indices, int) else indices)]

    def cut_differences(self, lookback: int) -> list[str]:
        ours, known = self.ours, []
        live = [agent for agent, part in ours.agent_episodes.items() if not part.is_done]
        for agent in live:
            tags = ours.env_t_to_agent_t[agent].data
            if agent not in ours._hanging_actions_end:
                known.append("cut loses agents" if tags[-1] == "S" else "")
            elif lookback == 0 and tags[ours._lookback] != "S":
                known.append("cut loses agents")
        kept, far = self.lookbacks(lookback, live)
        if far > max(kept, lookback):
            known.append("lookback too long")
        if lookback > ours.moments - 1:
            known.append("lookback beyond data")
        if any(part.is_done for part in ours.agent_episodes.values()):
            known.append("done agents' time")
        if nonzero(ours._hanging_rewards_end) or nonzero(ours._hanging_rewards_begin):
            known.append("hanging rewards twice")
        if any(map(self.has_arrays, ours.agent_episodes)):
            known.append("cut of arrays")
        return known

    def lookbacks(self, lookback: int, live: list[str]) -> tuple[int, int]:
        """What our cut keeps, and what RLlib's keeps for agents whose action hangs."""
        reach, far, ours = 0, lookback, self.ours
        for agent in live:
            tags = ours.env_t_to_agent_t[agent].data
            back = [i for i in range(1, len(tags) + 1) if tags[-i] != "S"]
            reach = max(reach, back[0] - 1)
            if agent in ours._hanging_actions_end:
                far = max([far, *(i - 1 for i in back if i >= max(lookback, 1))][:2])
        return min(max(lookback, reach), ours.moments - 1), far

    def slice_differences(self, start: int, stop: int, lookback: int | None) -> list[str]:
        """What RLlib gets wrong for this slice, agent by agent."""
        ours, parts = self.ours, self.ours.agent_episodes
        buffers = [
            buffer
            for part in parts.values()
            for buffer in (part.observations, part.actions, *part.extra_model_outputs.values())
        ]
        if len({buffer.lookback for buffer in buffers}) != 1:
            return ["slices need one lookback"]
        kept = min(ours._lookback if lookback is None else lookback, ours._lookback + start)
        timelines = [ours.env_t_to_agent_t[agent].data for agent in parts]
        ends = [
            (part.is_terminated, part.is_truncated) if tags[ours._lookback + stop] == len(part) else (False, False)
            for part, tags in zip(parts.values(), timelines, strict=True)
        ]
        whole_end = (ours.is_terminated, ours.is_truncated) if stop == len(ours) else (False, False)
        if whole_end != tuple(map(all, zip(*ends, strict=True))):
            return ["slices lose the end"]
        found = ["partly numpy" if self.partly_numpy() else ""]
        if any(map(self.has_arrays, parts)) and outcome(lambda: self.theirs.is_numpy) != ("returns", True):
            found.append("slices of arrays")
        if start == 0 and nonzero(ours._hanging_rewards_begin):
            found.append("slices lose first rewards")
        if ours._lookback and any(part.actions.lookback != ours._lookback for part in parts.values()):
            found.append("slices need one lookback")
        first = ours._lookback + start
        for agent, part in parts.items():
            found += self.agent_slice(agent, part, range(first - kept, ours._lookback + stop + 1), first)
        return list(dict.fromkeys(found))

    def agent_slice(self, agent: str, part: Any, window: range, first: int) -> list[str]:
        tags = self.ours.env_t_to_agent_t[agent].data
        shown = [at for at in window if tags[at] != "S"]
        if not shown:
            return []
        found, last = [], shown[-1]
        waits = tags[last] == part.t and agent not in self.ours._hanging_actions_end
        if last < window[-1] and waits and (not part.is_done or part.is_truncated):
            found.append("slices end agents")
        elif last < window[-1] and waits:
            found.append("short timelines")
        if self.has_arrays(agent) and sum(at >= first for at in shown) <= 1:
            found.append("slices of arrays")
        if part.t_started:
            found.append("slices shift agents")
        if last < first:
            found.append("slices shift agents")
        if any(part.infos.get(tags[at] - part.t_started, neg_index_as_lookback=True) for at in shown):
            found.append("slices lose infos")
        if agent in self.theirs._hanging_rewards_end and waits:
            found.append("rewards without action")
        if self.has_arrays(agent) and agent in self.ours._hanging_actions_end:
            found.append("hanging in arrays")
        return found

    def concat_differences(self, other: MultiAgentEpisode) -> list[str]:
        ours, parts = self.ours, self.ours.agent_episodes
        both = [agent for agent in other.agent_episodes if agent in parts and not parts[agent].is_done]
        arrays = [part.observations.finalized for part in [*parts.values(), *other.agent_episodes.values()]]
        rewards = [nonzero(side) for side in (ours._hanging_rewards_end, other._hanging_rewards_end)]
        if any(part.is_terminated and part.is_truncated for part in [other, *other.agent_episodes.values()]):
            return ["concat loses a flag"]
        return [
            "concat keeps what was answered"
            if any(agent in ours._hanging_actions_end and agent not in other._hanging_actions_end for agent in both)
            or any(rewards[0].get(agent) != rewards[1].get(agent) for agent in both if agent not in other._hanging_actions_end)
            else "",
            "concat loses skips"
            if len(other)
            and (any(part.is_done for part in parts.values()) or any(agent not in parts for agent in other.agent_episodes))
            else "",
            "concat loses first rewards"
            if nonzero(other._hanging_rewards_begin) or nonzero(ours._hanging_rewards_begin)
            else "",
            "concat of arrays" if any(arrays) else "",
        ]

    def partly_numpy(self) -> bool:
        return len({part.is_numpy for part in self.ours.agent_episodes.values()}) != 1

    def construct_differences(self, ours: MultiAgentEpisode, lookback: Any) -> list[str]:
        last = ours.moments - 1
        early = [
            agent
            for agent in ours.agent_episodes
            if ours.env_t_to_agent_t[agent].data[last] == "S" and agent not in ours._hanging_actions_end
        ]
        return [
            "short timelines" if early else "",
            "flags for all" if ours.is_done else "",
            "lookback beyond data" if lookback not in ("auto", 0) and lookback > last else "",
            "rewards without action" if nonzero(ours._hanging_rewards_end).keys() - ours._hanging_actions_end.keys() else "",
        ]
