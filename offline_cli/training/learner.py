"""An algorithm with its modules, for one run: made from configuration and spaces, moved, saved and restored as a whole.

`Start`: the run whose policy, and maybe other modules, they begin with. What its connector pieces had learned is kept too, and
learned no further: with other statistics its policy would see other numbers than it was trained on.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import gymnasium as gym
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.errors import BadConfig, BadData, UsageError
from offline_cli.meanings import Meanings, joined
from offline_cli.modules.network import MLP, Network, network_kind
from offline_cli.modules.rl_module import RLModule, initial_state
from offline_cli.plugins import PYTHON, with_network
from offline_cli.policies.run_files import CONFIG, MODULES, checkpoint_bytes, copy_into, part
from offline_cli.policies.run_policy import MEANINGS, NETWORK, LoadedPolicy, load_policy
from offline_cli.spaces import Space, same_space
from offline_cli.storage.locations import Location, Sources, open_location
from offline_cli.training.algorithms.algorithm import BC, POLICY, Algorithm, Group, Task, algorithm_kind, own_algorithms
from offline_cli.training.config import BCConfig, stored_config

__all__ = ["Learner", "Setup", "Start", "cloning_learner", "policy_with_values"]

ASIDE: Final = ("dropout", "max_seq_len", "burn_in")  # options of networks that no weight depends on


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """What a run learns by, known before any data."""

    algorithm: Algorithm
    network: Network
    seed: int = 0
    start: Start | None = None  # None: fresh weights
    learned: Mapping[str, Any] | None = None  # the state that connector pieces keep, by name; None: they learn from the data
    log_std: tuple[float | None, float | None] = (None, None)  # see Task

    @classmethod
    def of(cls, config: BCConfig) -> Self:
        """What a resolved configuration names. Raises BadConfig for an algorithm that cannot stream."""
        algorithm = _algorithm(config)
        if config.streaming and algorithm.refresh_every is not None:
            what = f"{config.algorithm['name']} recomputes its columns from episodes in memory"
            fix = "leave out --streaming, or have columns computed once, as by --set refresh_every=0"
            raise BadConfig(what, where="--streaming", fix=fix)
        network = network_kind(config.network["name"])(config.network_options)
        return cls(algorithm, network, config.seed, log_std=(config.log_std_min, config.log_std_max))

    def learner(self, observation_space: Space, action_space: Space, action_scale: str, pieces: str = "") -> Learner:
        """Modules for these spaces, which follow from the seed, and from `start`. `pieces`: what the policy plays through.

        Raises BadConfig, naming all that keeps the modules from beginning as `start` says; UnsupportedSpace.
        """
        self.algorithm.check(observation_space, action_space)
        task = Task(observation_space, action_space, action_scale, self.network, self.seed, log_std=self.log_std)
        learner = Learner.of(self.algorithm, task)
        if self.start is None:
            return learner
        self.start.check(task, learner, pieces)
        learner = Learner.of(self.algorithm, replace(task, weights=self.start.loaded.module.state_dict()))
        for name, tensors in self.start.shared(learner).items():
            copy_into(learner.modules[name].state_dict(), tensors)
        return learner

    def told(self, learner: Learner) -> dict[str, Any]:
        """Where the modules are from, as JSON values; empty: they are fresh."""
        if self.start is None:
            return {}
        taken = [POLICY, *self.start.shared(learner)]
        fresh = [name for name in learner.modules if name not in taken]
        return {"run": self.start.url, "sha256": self.start.loaded.sha256, "modules": taken, "fresh": fresh}


def _algorithm(config: BCConfig, **named: Any) -> Algorithm:
    options = {name: value for name, value in config.algorithm.items() if name != "name"}
    return algorithm_kind(config.algorithm["name"], **named)(options)


# ---- modules of another run ----


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """The run to begin with: its policy, and further modules of its last checkpoint where it is by the same algorithm."""

    url: str
    loaded: LoadedPolicy
    others: Mapping[str, Tensor]  # by `module.name`; empty: it is by another algorithm
    network: Mapping[str, Any]  # that is asked for

    @classmethod
    def of(
        cls, config: BCConfig, storage_options: Mapping[str, Any] | None, plugins: Sequence[str], *, out: str, beside: Sources
    ) -> Self:
        """What `init_from` names. `out`: the URL of the run to be. `beside`: see `open_location`. Raises what `load_policy`
        raises, BadData for a broken checkpoint, UsageError for `out` itself.
        """
        place = replace(open_location(config.init_from or "", storage_options, beside=beside), cache=None)
        if place.url == out:
            fix = "another --out; or --resume, to train that run for longer"
            raise UsageError("a run cannot begin with what it replaces", where=f"--init-from {place.url}", fix=fix)
        name = config.network["name"]  # what the user named for this run, that run may have
        loaded = load_policy(place, storage_options, plugins=plugins, network=name if name.startswith(PYTHON) else None)
        theirs, others = _saved_modules(place) or ({}, {})
        is_same = theirs.get("algorithm", {}).get("name", BC) == config.algorithm["name"]
        return cls(place.url, loaded, others if is_same else {}, {"name": name, **config.network_options})

    def check(self, task: Task, learner: Learner, pieces: str) -> None:
        """Raise BadConfig, naming all that differs, where the run's policy is not one of this run's."""
        theirs, told, trained = self.loaded.module, self.loaded.description, self.loaded.trained
        pairs: dict[str, tuple[Any, Any]] = {
            "observations": (theirs.observation_space, task.observation_space),
            "actions": (theirs.action_space, task.action_space),
            "action scale": (told["action_scale"], task.action_scale),
            "form of Box actions": (theirs.action_head.forms(), learner.policy.action_head.forms()),
            "learner pipeline": ("none" if trained is None else trained.in_words, pieces or "none"),
        }
        options = {**dict.fromkeys((*told[NETWORK], *self.network)), **told[NETWORK]}
        pairs |= {f"network {name}": (one, self.network.get(name)) for name, one in options.items() if name not in ASIDE}
        wrong = [
            f"{name}: the run has {one}, this one {other}"
            for name, (one, other) in pairs.items()
            if not (same_space(one, other) if isinstance(one, gym.Space) else one == other)
        ]
        if wrong:
            fix = "train with the data, network and pipeline of that run, or leave out --init-from"
            raise BadConfig.of(wrong, where=f"--init-from {self.url}", fix=fix)

    def check_meanings(self, meanings: Meanings, where: str) -> None:
        """Raise BadConfig, naming both and the first difference, where observations or actions of the data mean something else
        than those that the run learned from. Rewards may be others.
        """
        both = ((self.url, Meanings.of(self.loaded.description.get(MEANINGS, {}), self.url)), (where, meanings))
        joined([(place, one.of_columns(Columns.OBS, Columns.ACTIONS)) for place, one in both])

    def shared(self, learner: Learner) -> dict[str, dict[str, Tensor]]:
        """The modules beside the policy that the run has in the same form, each as its tensors."""
        held = {name: part(self.others, f"{name}.") for name in learner.modules if name != POLICY}
        return {name: one for name, one in held.items() if _forms(one) == _forms(learner.modules[name].state_dict())}


def _forms(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def _saved_modules(run: Location) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """The configuration of a run, unchecked, and the modules of its last checkpoint, by `module.name`; None: it has none.

    Raises BadData for broken files.
    """
    last = checkpoint_bytes(run)
    try:
        config = tomllib.loads(run.join(CONFIG).read_bytes().decode())
        return None if last is None else (config, part(load(last[1]), MODULES))
    except (ValueError, SafetensorError) as err:
        raise BadData(f"the run cannot be read: {err}", where=run.url, fix="train again, or name another run") from err


def policy_with_values(
    place: Location,
    storage_options: Mapping[str, Any] | None,
    *,
    plugins: Sequence[str] = (),
    network: str | None = None,
) -> LoadedPolicy:
    """The policy of the run at `place`, whose module has `compute_values(batch)` where the run's algorithm gives pieces values.

    Values are those of the last checkpoint; without one there are none. `plugins`, `network`, and what is raised: see
    `load_policy`; BadConfig for an algorithm of a package that is not named, BadData for a broken checkpoint.
    """
    loaded = load_policy(place, storage_options, plugins=plugins, network=network)
    saved = _saved_modules(replace(place, cache=None))
    if saved is None:
        return loaded
    config, module = stored_config(saved[0]), loaded.module
    algorithm, name = _algorithm(config, named=plugins), config.network["name"]
    if type(algorithm).rl_module is Algorithm.rl_module:
        return loaded
    task = Task(
        module.observation_space,
        module.action_space,
        loaded.description["action_scale"],
        network_kind(name, named=None if name == MLP else with_network(plugins, network))(config.network_options),
        weights=module.state_dict(),
        log_std=(config.log_std_min, config.log_std_max),
    )
    learner = Learner.of(algorithm, task)
    try:
        for other, made in learner.modules.items():
            if other != POLICY:
                copy_into(made.state_dict(), part(saved[1], f"{other}."))
    except (KeyError, RuntimeError) as err:
        what = f"the checkpoint has no modules of the form that the algorithm makes: {err}"
        raise BadData(what, where=place.url, fix="train again, or name another run") from err
    given = algorithm.rl_module(learner.modules)
    if hasattr(given, "compute_values"):
        given.eval()
        module.compute_values = given.compute_values
    return loaded


# ---- the modules of a run ----


@dataclass(frozen=True, slots=True, eq=False)
class Learner:
    """An algorithm and the modules it has made."""

    algorithm: Algorithm
    modules: Mapping[str, nn.Module]
    groups: Sequence[Group]
    policy: RLModule  # the first of the modules
    is_stateful: bool  # whether the policy has a memory

    @classmethod
    def of(cls, algorithm: Algorithm, task: Task) -> Self:
        """Raises BadConfig for an algorithm whose modules and groups do not fit together, which is its author's mistake."""
        modules = algorithm.modules(task)
        kind = type(algorithm).__name__
        where = f"algorithm {kind}"
        if next(iter(modules), None) != POLICY or modules[POLICY] is not task.made:
            fix = f"return {{{POLICY!r}: task.policy(), ...}}: run folders keep what is made there"
            raise BadConfig(f"{kind}.modules gives no {POLICY!r} first, made by task.policy()", where=where, fix=fix)
        if task.made.is_stateful() and not algorithm.learns_sequences:
            fix = "leave out memory, or learn with the algorithm bc"
            raise BadConfig(f"{kind} learns from single steps, and the network has a memory", where="[network]", fix=fix)
        groups = list(algorithm.groups(modules))
        learner = cls(algorithm, modules, groups, task.made, task.made.is_stateful())
        grouped = [name for group in groups for name in group.modules]
        if (
            not groups
            or len({*grouped}) < len(grouped)
            or len({*learner.losses}) < len(learner.losses)
            or {*grouped} - {*modules}
        ):
            what = f"{kind}.groups gives groups of {grouped} with losses {learner.losses}"
            fix = f"modules among {', '.join(modules)}, each in one group, and another name for each loss"
            raise BadConfig(what, where=where, fix=fix)
        stepped = [parameter.data_ptr() for group in groups for _, parameter in learner.parameters_of(group)]
        if len({*stepped}) < len(stepped):
            fix = "modules that share parameters belong in one group"
            raise BadConfig(f"{kind} has a parameter stepped by two groups", where=where, fix=fix)
        return learner

    def before_sequences(self) -> dict[str, Any]:
        """`state_in` of a policy with memory, leaves (...) for one row; empty for others.

        Each sequence begins with the initial state: what a recording has of states is of the network that played there.
        """
        return {Columns.STATE_IN: initial_state(self.policy)} if self.is_stateful else {}

    @property
    def losses(self) -> list[str]:
        """The names of all losses."""
        return [name for group in self.groups for name in group.losses]

    @property
    def whole(self) -> nn.Module:
        """All modules as one, to count or move their weights."""
        return nn.ModuleList(self.modules.values())

    def parameters_of(self, group: Group) -> list[tuple[str, nn.Parameter]]:
        """Each parameter that requires a gradient, once, with a name for errors. Raises BadConfig for none."""
        named = {
            id(parameter): (f"{module}.{name}" if len(self.modules) > 1 else name, parameter)
            for module in group.modules
            for name, parameter in self.modules[module].named_parameters()
            if parameter.requires_grad
        }
        if not named:
            what = f"the group of {', '.join(group.modules)} has no parameter to train"
            raise BadConfig(what, where=f"algorithm {type(self.algorithm).__name__}", fix="leave that group out")
        return list(named.values())

    def state(self) -> dict[str, Tensor]:
        """Parameters and persistent buffers of all modules, by `module.name`, in place: `copy_` into them."""
        states = {module: part.state_dict() for module, part in self.modules.items()}
        return {f"{module}.{name}": tensor for module, state in states.items() for name, tensor in state.items()}

    def others(self) -> dict[str, Tensor]:
        """Of `state` what belongs to no group: target copies and buffers."""
        stepped = {parameter.data_ptr() for group in self.groups for _, parameter in self.parameters_of(group)}
        return {name: tensor for name, tensor in self.state().items() if tensor.data_ptr() not in stepped}


def cloning_learner(policy: RLModule) -> Learner:
    """Behaviour cloning of an existing policy."""
    algorithm = own_algorithms(BC)[BC]({})
    modules = {POLICY: policy}
    return Learner(algorithm, modules, algorithm.groups(modules), policy, policy.is_stateful())
