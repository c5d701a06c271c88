"""The modules of a run folder as connector pieces want them: the policy, and with it the values of its algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from offline_cli.errors import BadData
from offline_cli.modules.network import MLP, network_kind
from offline_cli.plugins import with_network
from offline_cli.policies.run_files import copy_into, part
from offline_cli.policies.run_policy import LoadedPolicy, load_policy
from offline_cli.storage.locations import Location
from offline_cli.training.algorithms.algorithm import POLICY, Algorithm, Task, algorithm_kind
from offline_cli.training.config import stored_config
from offline_cli.training.learner import Learner, saved_modules

__all__ = ["policy_with_values"]


def policy_with_values(
    place: Location,
    storage_options: Mapping[str, Any] | None,
    *,
    plugins: Sequence[str] = (),
    network: str | None = None,
) -> LoadedPolicy:
    """The policy of the run at `place`, whose module has `compute_values(batch)` where the run's algorithm gives pieces values.

    Values are those of the last checkpoint; without one there are none. `plugins`, `network`, and what is raised: see
    `load_policy`; BadConfig, with the option to give, for an algorithm of a package that is not named, BadData for a broken
    checkpoint.
    """
    loaded = load_policy(place, storage_options, plugins=plugins, network=network)
    saved = saved_modules(replace(place, cache=None))
    if saved is None:
        return loaded
    config, module = stored_config(saved[0]), loaded.module
    options = {name: value for name, value in config.algorithm.items() if name != "name"}
    algorithm = algorithm_kind(config.algorithm["name"], named=plugins)(options)
    if type(algorithm).rl_module is Algorithm.rl_module:
        return loaded
    name = config.network["name"]
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
