"""An algorithm with its modules, for one run: made from configuration and spaces, moved, saved and restored as a whole.

`Start`: the run whose policy, and maybe other modules, they begin with. What its connector pieces had learned is kept too, and
learned no further: with other statistics its policy would see other numbers than it was trained on.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.errors import BadConfig, BadData, UsageError
from offline_cli.meanings import Meanings, joined
from offline_cli.modules.distributions import ActionHead
from offline_cli.modules.images import reads_alike
from offline_cli.modules.network import MLP, Mlp, Network, network_kind
from offline_cli.modules.rl_module import RLModule, initial_state
from offline_cli.plugins import PYTHON
from offline_cli.policies.run_files import CONFIG, MODULES, checkpoint_bytes, copy_into, part
from offline_cli.policies.run_policy import MEANINGS, NETWORK, LoadedPolicy, load_policy
from offline_cli.spaces import Space, describe, same_space
from offline_cli.storage.locations import Location, Sources, open_location
from offline_cli.training.algorithms.algorithm import BC, POLICY, Algorithm, Group, Task, algorithm_kind, own_algorithms
from offline_cli.training.config_model import BCConfig

__all__ = ["Learner", "Setup", "Start", "cloning_learner", "saved_modules"]

ASIDE: Final = ("dropout", "max_seq_len", "burn_in", "images")  # options that no weight depends on; the last by what it reads


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
        options = {name: value for name, value in config.algorithm.items() if name != "name"}
        algorithm = algorithm_kind(config.algorithm["name"])(options)
        if config.streaming and algorithm.refresh_every is not None:
            what = f"{config.algorithm['name']} recomputes its columns from episodes in memory"
            once = "--set refresh_every=0 to compute them once; or " * ("refresh_every" in options)
            raise BadConfig(what, where="--streaming", fix=f"{once}leave out --streaming")
        network = network_kind(config.network["name"])(config.network_options)
        return cls(algorithm, network, config.seed, log_std=(config.log_std_min, config.log_std_max))

    def starting(
        self, config: BCConfig, storage_options: Mapping[str, Any] | None, plugins: Sequence[str], *, out: str, beside: Sources
    ) -> Self:
        """To begin as `config.init_from` says. Arguments, and what is raised: see `Start.of`."""
        start = Start.of(config, storage_options, plugins, out=out, beside=beside)
        trained = start.loaded.trained
        return replace(self, start=start, learned=None if trained is None else trained.state)

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


def saved_modules(run: Location) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """The configuration of a run, unchecked, and the modules of its last checkpoint, by `module.name`; None: it has none.

    Raises BadData for broken files.
    """
    last = checkpoint_bytes(run)
    try:
        config = tomllib.loads(run.join(CONFIG).read_bytes().decode())
        return None if last is None else (config, part(load(last[1]), MODULES))
    except (ValueError, SafetensorError) as err:
        raise BadData(f"the run cannot be read: {err}", where=run.url, fix="train again, or name another run") from err


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
        assert config.init_from is not None, "a run is named"
        place = replace(open_location(config.init_from, storage_options, beside=beside), cache=None)
        if place.url == out:
            fix = "another --out; or --resume, to train that run for longer"
            raise UsageError("a run cannot begin with what it replaces", where=f"--init-from {place.url}", fix=fix)
        name = config.network["name"]  # what the user named for this run, that run may have
        loaded = load_policy(place, storage_options, plugins=plugins, network=name if name.startswith(PYTHON) else None)
        theirs, others = saved_modules(place) or ({}, {})
        is_same = theirs.get("algorithm", {}).get("name", BC) == config.algorithm["name"]
        return cls(place.url, loaded, others if is_same else {}, {"name": name, **config.network_options})

    def check(self, task: Task, learner: Learner, pieces: str) -> None:
        """Raise BadConfig, naming all that differs, where the run's policy is not one of this run's."""
        told, theirs, trained = self.loaded.description, self.loaded.module, self.loaded.trained
        pairs: dict[str, tuple[Any, Any]] = {
            "network": (_in_words(told[NETWORK]), _in_words(self.network)),
            "action scale": (told["action_scale"], task.action_scale),
            "form of Box actions": (_form(theirs.action_head), _form(learner.policy.action_head)),
            "learner pipeline": ("none" if trained is None else trained.in_words, pieces or "none"),
        }
        if isinstance(task.network, Mlp) and told[NETWORK]["name"] == MLP:
            forms = Mlp(told[NETWORK]).images, task.network.images
            if not reads_alike(task.observation_space, *forms):
                pairs["images"] = forms[0].layout, forms[1].layout
        spaces = {
            "observations": (theirs.observation_space, task.observation_space),
            "actions": (theirs.action_space, task.action_space),
        }
        for name, (one, other) in spaces.items():
            if not same_space(one, other):
                shown = describe(one), describe(other)
                pairs[name] = shown if shown[0] != shown[1] else (str(one), str(other))
        wrong = [f"{name}: the run has {one}, this one {other}" for name, (one, other) in pairs.items() if one != other]
        if wrong:
            fix = "train with the data, network and pipeline of that run, or leave out --init-from"
            raise BadConfig.of(wrong, where=f"--init-from {self.url}", fix=fix)

    def check_meanings(self, meanings: Meanings, where: str) -> None:
        """Raise BadConfig, naming both and the first difference, where observations or actions of the data mean something else
        than those that the run learned from. Rewards may be others.
        """
        theirs = Meanings.of(self.loaded.description.get(MEANINGS, {}), self.url)
        joined(
            [(place, one.of_columns(Columns.OBS, Columns.ACTIONS)) for place, one in ((self.url, theirs), (where, meanings))]
        )

    def shared(self, learner: Learner) -> dict[str, dict[str, Tensor]]:
        """The modules beside the policy that the run has in the same form, each as its tensors."""
        held = {name: part(self.others, f"{name}.") for name in learner.modules if name != POLICY}
        return {name: one for name, one in held.items() if _forms(one) == _forms(learner.modules[name].state_dict())}


def _forms(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def _in_words(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(options.items()) if name not in ASIDE)


def _form(head: ActionHead) -> str:
    forms = head.forms()
    return f"{forms[0].mean} mean, log σ in {list(forms[0].log_std)}" if forms else "none"


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
        grouped = [name for group in groups for name in group.modules]
        losses = [name for group in groups for name in group.losses]
        wrong = [name for name in grouped if name not in modules]
        wrong += [name for name in (*grouped, *losses) if grouped.count(name) > 1 or losses.count(name) > 1]
        if wrong or not groups:
            named = f"names {wrong[0]!r} twice, or there is no such module" if wrong else "gives none"
            fix = f"modules among {', '.join(modules)}, each in one group, and another name for each loss"
            raise BadConfig(f"{kind}.groups {named}", where=where, fix=fix)
        learner = cls(algorithm, modules, groups, task.made, task.made.is_stateful())
        stepped = [parameter.data_ptr() for group in groups for _, parameter in learner.parameters_of(group)]
        if len(set(stepped)) < len(stepped):
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

    def to(self, device: torch.device) -> None:
        """Move every module there, ready to train."""
        self.whole.to(device).train()

    def parameters_of(self, group: Group) -> list[tuple[str, nn.Parameter]]:
        """Each parameter that requires a gradient, once, with a name for errors. Raises BadConfig for none."""
        prefixed = len(self.modules) > 1
        named = [
            (f"{module}.{name}" if prefixed else name, parameter)
            for module in group.modules
            for name, parameter in self.modules[module].named_parameters()
            if parameter.requires_grad
        ]
        if not named:
            what = f"the group of {', '.join(group.modules)} has no parameter to train"
            raise BadConfig(what, where=f"algorithm {type(self.algorithm).__name__}", fix="leave that group out")
        return list({id(parameter): (name, parameter) for name, parameter in named}.values())

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
