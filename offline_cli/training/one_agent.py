"""One agent of a game: the spaces it sees, who plays the other agents in checks, and a target for its own return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from offline_cli.environments import Environment
from offline_cli.errors import BadConfig, UsageError
from offline_cli.modules.devices import choose_device
from offline_cli.policies.agents_policy import AgentsPolicy
from offline_cli.policies.by_name import files_of, open_policies
from offline_cli.policies.policy import Policy, PolicyOptions, RandomPolicy, stand_in
from offline_cli.policies.rllib_policy import RLLIB
from offline_cli.training.config_model import BCConfig

__all__ = ["files_of_others", "open_others", "seen_by", "target_of"]


def target_of(given: float | str | None) -> tuple[str | None, float | None]:
    """The agent, if one is named, and the return that `--until-return` asks for: `450`, `hunter=3`. Raises UsageError."""
    agent, _, number = ("" if given is None else str(given)).rpartition("=")
    try:
        return agent or None, None if given is None else float(number)
    except ValueError as err:
        raise UsageError(f"{number!r} is no number", where="--until-return", fix="--until-return 450, or AGENT=450") from err


def files_of_others(policies: Sequence[str] | None) -> list[str]:
    """The places that `--policy AGENT=P` names, which storage options may be for."""
    return [place for text in policies or () for place in files_of([text.partition("=")[2]])]


def seen_by(agent: str | None, environment: Environment) -> Environment:
    """The environment, of a game what the agent sees of it: its spaces, which cannot be played."""
    if environment.agents is None or agent is None:
        return environment
    alone = stand_in(f"{environment.name}, agent {agent}", environment.agents[agent])
    alone.spec = environment.spec
    return alone


def open_others(
    config: BCConfig, environment: Environment, plugins: Sequence[str], storage_options: Mapping[str, Any] | None
) -> Mapping[str, Policy]:
    """Who plays the other agents of a game, by agent, ready to play; empty where it is no game.

    Raises what `open_policies` raises; BadConfig for a game without the agent that learns, and for policies without a game;
    UsageError for checkpoints of RLlib.
    """
    _check_agent(environment, config)
    if environment.agents is None or config.agent is None:
        return {}
    texts = ("*=random", *(config.policy or ()))
    pickled = [text for text in texts if text.partition("=")[2].startswith(RLLIB)]
    if pickled:
        what = f"{pickled[0]}: RLlib's checkpoints are pickles, whose code would run"
        raise UsageError(what, where="--policy", fix="export that policy to a file, AGENT=onnx:FILE")
    if not any("://" in place for place in files_of_others(texts)):
        storage_options = None  # they are for data that is elsewhere
    options = PolicyOptions(device=choose_device(config.device).type, plugins=plugins, storage_options=storage_options)
    learner = RandomPolicy(seen_by(config.agent, environment))  # stands in until the first check
    game = open_policies(texts, environment, options, seed=config.seed, given={config.agent: learner})
    assert isinstance(game, AgentsPolicy)
    return game.of_agents


def _check_agent(environment: Environment, config: BCConfig) -> None:
    """Raise BadConfig for a game without the agent that learns, and for policies of others where there are none."""
    agents, name = environment.agents, environment.name
    if agents is not None and config.agent not in agents:
        what = f"{name} is an environment of several agents"
        what += f", and none is called {config.agent!r}" if config.agent is not None else ""
        fix = f"--agent NAME: which one learns, and is checked; the agents are {', '.join(agents)}"
        raise BadConfig(what, where="--env" if config.agent is None else "--agent", fix=fix)
    if agents is None and config.policy:
        what = f"--policy AGENT=P is for several agents, and {name} is of one"
        raise BadConfig(what, where="--policy", fix="leave it out")
