"""Opens the policies of several agents by name, and says which module of a run with several an agent plays by.

Such a run has `modules.json` beside a run folder for each module in `modules/`. It says what each agent of the data was learned
as, and the patterns that were given: an agent that the data did not have plays by these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np

from offline_cli.environments import Environment
from offline_cli.errors import BadConfig, BadData
from offline_cli.files.locations import Location, open_location
from offline_cli.files.staging import whole_file
from offline_cli.games import OBS, STATE, is_shown
from offline_cli.modules.rl_module import DEFAULT_MODULE_ID
from offline_cli.policies.agents_policy import AgentsPolicy, Player, assigned
from offline_cli.policies.by_name import ONNX, is_named, open_policy, stand_in
from offline_cli.policies.piped_policy import PipedPolicy, PlaySpec
from offline_cli.policies.policy import Policy
from offline_cli.policies.run_files import MODULES_FILE, MODULES_FOLDER, json_object
from offline_cli.trees import Tree

__all__ = ["RunModules", "is_module_name", "modules_of_run", "names_run", "open_agents"]

FORMAT: Final = "offline-cli-modules"
KEYS: Final = frozenset(("format", "version", "modules", "module_of", "agents"))
VERSION: Final = 1
NAME: Final = re.compile(r"[\w.@+-]+")  # of a module, which names a folder


@dataclass(frozen=True, slots=True)
class RunModules:
    """What `modules.json` says."""

    modules: tuple[str, ...]
    module_of: tuple[str, ...]  # `AGENT=MODULE`, as it was given; agents may be patterns
    agents: Mapping[str, str]  # the module of each agent that the data had

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        told = {"modules": [*self.modules], "module_of": [*self.module_of], "agents": dict(self.agents)}
        return {"format": FORMAT, "version": VERSION, **told}

    @classmethod
    def read(cls, content: bytes) -> RunModules:
        """Raises ValueError for what is not one."""
        told, _ = json_object(content, KEYS)
        if told.get("format") != FORMAT or told.get("version") != VERSION:
            raise ValueError(f"format {told.get('format')!r} of version {told.get('version')!r}")
        modules, agents = told["modules"], told["agents"]
        if not (isinstance(modules, list) and modules and isinstance(agents, dict) and isinstance(told["module_of"], list)):
            raise ValueError("modules, module_of or agents is missing")
        strange = [name for name in [*modules, *agents.values()] if not is_module_name(name) or name not in modules]
        if strange or not all(isinstance(text, str) for text in told["module_of"]):
            raise ValueError(f"{strange} for the name of a module")
        return cls(tuple(modules), tuple(told["module_of"]), agents)

    def of(self, agents: Sequence[str], where: str) -> dict[str, str]:
        """The module of each of these. Raises BadConfig for one that no pattern is for."""
        found = {}
        for agent in agents:
            patterns = [text.partition("=") for text in reversed(self.module_of)]
            by_pattern = [value for pattern, equals, value in patterns if equals and fnmatchcase(agent, pattern)]
            module = self.agents.get(agent) or next(iter(by_pattern), None)
            module = module or (self.modules[0] if len(self.modules) == 1 else None)
            if module is None:
                what = f"agent {agent!r} has no module in this run, which has {', '.join(self.modules)}"
                raise BadConfig(what, where=where, fix=f"--policy '{agent}={where}/{MODULES_FOLDER}/{self.modules[0]}'")
            found[agent] = module
        return found


def is_module_name(name: Any) -> bool:
    """Whether it can name a module of a run, whose folder is called so."""
    return isinstance(name, str) and NAME.fullmatch(name) is not None and not name.startswith(".")


def modules_of_run(place: Location) -> RunModules | None:
    """What the run at `place` has; None: it is not one of several modules. Raises BadData."""
    content = whole_file(place.join(MODULES_FILE)) if place.join(MODULES_FILE).is_file() else None
    if content is None:
        return None
    try:
        return RunModules.read(content)
    except (ValueError, KeyError) as err:
        fix = "train again with --overwrite"
        raise BadData(f"{MODULES_FILE} cannot be read: {err}", where=place.url, fix=fix) from err


def names_run(text: str) -> bool:
    """Whether a policy's name means a run folder."""
    return not is_named(text)


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
        run = modules_of_run(open_location(text, storage_options)) if names_run(text) else None
        module_of[agent] = DEFAULT_MODULE_ID if for_all else agent
        if run is not None:
            module_of[agent] = run.of([agent], text)[agent]
            text = f"{text.rstrip('/')}/{MODULES_FOLDER}/{module_of[agent]}"
        groups.setdefault((text, repr(environment.agents[agent])), []).append(agent)
    shown: dict[str, Tree] = _shown(environment, seed)
    players = []
    for (text, _), alike in groups.items():
        example = next((shown[agent] for agent in alike if agent in shown), None)
        stored = names_run(text) or text.startswith(ONNX)
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
