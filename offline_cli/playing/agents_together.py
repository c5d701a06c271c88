"""Plays the modules of several agents together, while they learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from offline_cli.converting.fitting import misfits
from offline_cli.environments import Environment
from offline_cli.errors import BadConfig, SpaceMismatch
from offline_cli.modules.rl_module import RLModule, evaluating
from offline_cli.playing.plan import BLOCK, EvaluationPlan
from offline_cli.playing.returns import Played, played_with
from offline_cli.playing.slots import Purpose
from offline_cli.policies.agents_policy import AgentsPolicy, Player
from offline_cli.policies.module_policy import ModulePolicy

__all__ = ["AgentsTogether"]


class AgentsTogether:
    """Modules in an environment of several agents, greedily, as they are at each call."""

    def __init__(self, environment: Environment, module_of: Mapping[str, str], modules: Mapping[str, RLModule]) -> None:
        """`module_of`: by agent. Raises SpaceMismatch, with every difference; BadConfig for modules with a memory."""
        assert environment.agents is not None, "an environment of several agents"
        self._environment, self._module_of, self._modules = environment, module_of, modules
        problems = []
        for agent, (observations, actions) in environment.agents.items():
            module = modules[module_of[agent]]
            found = misfits(module.observation_space, observations, inferred=False, what="observations")
            found += misfits(module.action_space, actions, inferred=False, what="actions")
            problems += [f"agent {agent}: {text}" for text in found]
            if module.is_stateful():
                fix = "leave out --env, or the memory"
                raise BadConfig(
                    "modules that remember cannot yet be played together", where=f"--env {environment.name}", fix=fix
                )
        if problems:
            fix = "name the environment that the data is from, made and wrapped as it was"
            raise SpaceMismatch.of(problems, where=f"--env {environment.name}", fix=fix)

    def play(self, games: int, *, seed: int, purpose: Purpose, round_: int) -> Played:
        """Whole games. Raises what `play` raises."""
        first = next(iter(self._modules.values()))
        plan = EvaluationPlan(
            env=self._environment.name,
            env_kwargs=self._environment.spec.kwargs,
            wrappers=self._environment.spec.wrappers,
            policy="",
            explore=False,
            seed=seed,
            vectorize="sync",
            num_envs=BLOCK,
            runners=1,
            device=next(first.parameters()).device.type,
            episodes=games,
            threads=None,
            purpose=purpose,
            round_=round_,
        )
        with ExitStack() as held:
            for module in self._modules.values():
                held.enter_context(evaluating(module))
            policy = AgentsPolicy(self._players(), tuple(self._module_of), rows=plan.block, slots=plan.num_envs)
            return played_with(plan, policy, self._environment)

    def _players(self) -> Sequence[Player]:
        agents = self._environment.agents or {}
        groups: dict[tuple[str, str], list[str]] = {}
        for agent, name in self._module_of.items():
            groups.setdefault((name, repr(agents[agent])), []).append(agent)
        players = []
        for (name, _), alike in groups.items():
            module = self._modules[name]
            policy = ModulePolicy(module, explore=False, device=next(module.parameters()).device, fingerprint=name)
            policy.play_in(agents[alike[0]][1])
            players.append(Player(policy, tuple(alike), agents[alike[0]], dict(self._module_of)))
        return players
