"""Opens the policies of several agents by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from offline_cli.environments import Environment
from offline_cli.errors import BadConfig
from offline_cli.games import OBS, STATE, is_shown
from offline_cli.modules.rl_module import DEFAULT_MODULE_ID
from offline_cli.policies.agents_policy import AgentsPolicy, Player, assigned
from offline_cli.policies.by_name import ONNX, is_named, open_policy, stand_in
from offline_cli.policies.piped_policy import PipedPolicy, PlaySpec
from offline_cli.policies.policy import Policy
from offline_cli.trees import Tree

__all__ = ["open_agents"]


def open_agents(
    texts: Sequence[str],
    environment: Environment,
    *,
    pieces: PlaySpec,
    seed: int,
    rows: int,
    slots: int,
    records: bool,
    storage_options: Mapping[str, Any] | None,
    **kind: Any,
) -> AgentsPolicy:
    """The policies that `texts` name, for the agents of `environment`. `seed`: of the game that shows what observations look
    like; `rows`, `slots`, `records`: see AgentsPolicy; `kind`: see `open_policy`, which says what is raised. BadConfig for
    policies that play between pieces, or remember.
    """
    assert environment.agents is not None, "an environment of several agents"
    if not pieces.is_default:
        fix = "leave out --env-to-module and --module-to-env; wrappers of the environment see all agents: --wrapper"
        raise BadConfig("pieces go around the module of one agent, and several play", where=environment.name, fix=fix)
    agents = tuple(environment.agents)
    groups: dict[tuple[str, Any], list[str]] = {}
    module_of: dict[str, str] = {}
    given = assigned(texts, agents)
    for_all = len(texts) == 1 and set(given.values()) == {texts[0]}
    for agent, text in given.items():
        module_of[agent] = DEFAULT_MODULE_ID if for_all else agent
        groups.setdefault((text, repr(environment.agents[agent])), []).append(agent)
    shown: dict[str, Tree] = _shown(environment, seed)
    players = []
    for (text, _), alike in groups.items():
        example = next((shown[agent] for agent in alike if agent in shown), None)
        stored = not is_named(text) or text.startswith(ONNX)
        options = {**kind, "storage_options": storage_options if stored else None}
        policy = _opened(text, alike, environment, example, options)
        players.append(Player(policy, tuple(alike), environment.agents[alike[0]], module_of, example))
    return AgentsPolicy(players, agents, rows=rows, slots=slots, records=records)


def _opened(text: str, alike: Sequence[str], environment: Environment, example: Tree | None, options: dict[str, Any]) -> Policy:
    assert environment.agents is not None, "an environment of several agents"
    given: dict[str, Any] = {} if example is None else {"example": lambda: example}
    with stand_in(f"{environment.name}, agent {alike[0]}", environment.agents[alike[0]]) as alone:
        policy = open_policy(text, alone, **given, **options)
    if isinstance(policy, PipedPolicy):
        fix = "a policy that was trained without --pipeline and memory"
        what = "it plays between connector pieces or remembers, which several agents cannot yet"
        raise BadConfig(what, where=f"--policy {text} of agent {', '.join(alike)}", fix=fix)
    return policy


def _shown(environment: Environment, seed: int) -> dict[str, Tree]:
    """What the agents that are there first are shown in a game of this seed."""
    try:
        observations = environment.singles(1)[0].reset(seed=seed)[0]
    except Exception:  # noqa: BLE001  it is reported where it is played
        return {}
    return {agent: part[OBS] for agent, part in observations.items() if is_shown(np.asarray(part[STATE])[None])[0]}
