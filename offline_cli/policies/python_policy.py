"""The policies `python:package.module:attribute` (a function, a class, an RLModule or a model) and `sb3:FILE`.

The attribute may be

* a function of observations, for a batch (leaves (B, *shape)) or for one observation: the first call tries a batch of three,
  then a single one if that returns no batch of actions. It returns actions, or a dict with `actions` and extra model outputs
  by name. The optional parameters are `explore`, and `rng`: a numpy Generator (for a batch a list of B) seeded from episode and
  step.
* a class, constructed without arguments, or any other callable: called like the function.
* an RLModule: plays like the module of a run; or an RLlib-style class of modules, constructed with the environment's spaces.
* an object with `predict(observations, deterministic=...)`, such as a model of stable-baselines3.

If it has `observation_space` and `action_space`, they are compared with the environment's.

`sb3:FILE` is a model of stable-baselines3, played through `predict`. A model file holds pickled Python objects, so loading it
can run any code. It is loaded only because the user named the file: no dataset, manifest or run folder can cause it.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.environments import Environment
from offline_cli.episodes.episode_spaces import space_tree
from offline_cli.episodes.fit import category_check, fitted
from offline_cli.errors import BadConfig, BadData, MissingPackage, OfflineCliError, SpaceMismatch, StorageNotFound
from offline_cli.import_path import PYTHON, named_object
from offline_cli.modules.rl_module import RLModule, hash_of_weights
from offline_cli.policies.module_policy import open_module
from offline_cli.policies.policy import RAISED, Acted, Policy, PolicyOptions, State, fitting, seeded
from offline_cli.spaces import Space, describe, tree_from_lists
from offline_cli.trees import Tree, leaves, map_leaves, rows_of, stacked_rows

__all__ = ["SB3", "FunctionPolicy", "model_policy", "open_model", "open_python"]


Function = Callable[[Tree, State, bool], Any]
THREE: Final = np.zeros(3, np.int64)  # test batch for a user's function


def open_python(name: str, environment: Environment | None, options: PolicyOptions) -> Policy:
    """Open the policy `python:module:attribute`.

    Raises BadConfig, MissingPackage, SpaceMismatch; BadData if importing or constructing it raises.
    """
    where, form = f"--policy {name}", f"{PYTHON}package.module:attribute, importable from the current folder"
    found = named_object(name.removeprefix(PYTHON), where=where, form=form, raised=BadData)
    if inspect.isclass(found):
        found = _made(found, environment, name)
    if isinstance(found, RLModule):
        return open_module(found, name, environment, options, fingerprint=hash_of_weights(found))
    options.refuse_pieces(name)
    if callable(getattr(found, "predict", None)):
        return model_policy(found, environment, name, name)
    if not callable(found):
        raise BadConfig(f"{name} is a {type(found).__name__}, which cannot be called", where=where, fix="name a function")
    return UserFunction(found, fitting_model(found, name, environment), name)


def _made(kind: type[Any], environment: Environment | None, name: str) -> Any:
    """Construct the class: without arguments, or with the environment's spaces if it is an RLModule."""
    try:
        if not issubclass(kind, RLModule):
            return kind()
        environment = fitting((None, None), name, environment)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # initial weights must be the same in each process
            return kind(environment.observation_space, environment.action_space)
    except OfflineCliError:
        raise
    except RAISED as err:
        fix = "test the policy in Python"
        raise BadData(f"constructing the policy raised {err!r}", where=f"--policy {name}", fix=fix) from err


# ---- functions ----


class FunctionPolicy(Policy):
    """A policy from a function of observations (B, ...), state and `explore`, which returns actions (B, ...) in the
    environment's units, or a dict of `actions` and extra model outputs.
    """

    def __init__(self, function: Function, environment: Environment, fingerprint: str, name: str) -> None:
        """`name`: for messages."""
        super().__init__(environment, fingerprint)
        self.function, self.where = function, f"--policy {name}"
        self._like, self._check = space_tree(self.spaces[1]), category_check(self.spaces[1], "the action")

    def act(self, observations: Tree, state: State, explore: bool) -> Acted:
        """See Policy. Raises SpaceMismatch for actions outside the space; exceptions of the function pass through."""
        answer = self.function(map_leaves(np.array, observations), state, explore)  # copies: it may overwrite them
        count, extras = len(state.t), dict[str, Tree]()
        of_space = isinstance(self._like, dict) and Columns.ACTIONS in self._like
        if isinstance(answer, Mapping) and Columns.ACTIONS in answer and not of_space:
            extras = {str(key): map_leaves(np.asarray, value) for key, value in answer.items() if key != Columns.ACTIONS}
            answer = answer[Columns.ACTIONS]

        def typed(space: Space, leaf: Any) -> NDArray[Any]:
            values = np.asarray(leaf)
            if values.shape != (count, *(space.shape or ())):
                raise ValueError(f"actions of shape {values.shape} for {count} observations")
            return fitted(values, space.dtype, "actions")

        try:
            actions = map_leaves(typed, self._like, tree_from_lists(answer, self.spaces[1]))
            self._check(actions)
            if any(leaf.shape[:1] != (count,) for leaf in leaves(extras)):
                raise ValueError("extra model outputs whose length differs from that of the actions")
        except ValueError as err:
            what = f"the policy returns {err}; the environment takes {describe(self.spaces[1])}"
            fix = "return actions of the environment's action space"
            raise SpaceMismatch(what, where=self.where, fix=fix) from err
        return Acted(actions, actions, extras)


class UserFunction(FunctionPolicy):
    """A user's function of a batch or of one observation, determined at the first call; `explore` and `rng` are optional."""

    def __init__(self, user: Callable[..., Any], environment: Environment, name: str) -> None:
        super().__init__(self._at_once, environment, name, name)
        self._user, self._is_known = user, False
        try:
            self._wanted = set(inspect.signature(user).parameters)
        except (TypeError, ValueError):  # some built-in functions have no signature
            self._wanted = set()

    def act(self, observations: Tree, state: State, explore: bool) -> Acted:
        """See Policy. Raises BadData if the function raises both for a batch and for one observation."""
        if not self._is_known:
            three = rows_of(observations, THREE), replace(state, episodes=THREE, t=THREE), explore
            try:
                super().act(*three)
            except Exception as batched:  # noqa: BLE001  a function of one observation may raise anything for a batch
                self.function = self._one_by_one
                try:
                    super().act(*three)
                except SpaceMismatch:
                    raise
                except Exception as alone:
                    what = f"the policy raises for a batch of observations ({batched!r}) and for one ({alone!r})"
                    raise BadData(what, where=self.where, fix="test the policy in Python") from alone
            self._is_known = True
        return super().act(observations, state, explore)

    def _at_once(self, observations: Tree, state: State, explore: bool) -> Any:
        return self._call(observations, explore, self._generators(state))

    def _one_by_one(self, observations: Tree, state: State, explore: bool) -> Any:
        generators = self._generators(state)
        return stacked_rows([self._call(rows_of(observations, row), explore, rng) for row, rng in enumerate(generators)])

    def _generators(self, state: State) -> list[Any]:
        wanted = "rng" in self._wanted
        return [np.random.default_rng(seed) for seed in state.seeds()] if wanted else [None] * len(state.t)

    def _call(self, observations: Tree, explore: bool, rng: Any) -> Any:
        options = {"explore": explore, "rng": rng}
        return self._user(observations, **{name: value for name, value in options.items() if name in self._wanted})


# ---- models with `predict` ----


def model_policy(model: Any, environment: Environment | None, fingerprint: str, name: str) -> FunctionPolicy:
    """The policy of a model with `predict`, which samples with global generators, seeded per step. Raises SpaceMismatch."""

    def act(observations: Tree, state: State, explore: bool) -> Any:
        if not explore:
            return model.predict(observations, deterministic=True)[0]
        with seeded(state) as seed:
            if isinstance(drawn_from := getattr(model, "action_space", None), gym.Space):  # DQN samples from its space
                drawn_from.seed(seed % (1 << 31))
            return model.predict(observations, deterministic=False)[0]

    policy = FunctionPolicy(act, fitting_model(model, name, environment), fingerprint, name)
    policy.needs_finite = True
    return policy


def fitting_model(model: Any, name: str, environment: Environment | None) -> Environment:
    """Like `fitting`, for models that may lack spaces, or have channels-first image spaces from stable-baselines3."""
    seen = getattr(model, "observation_space", None)
    if isinstance(seen, gym.Space) and environment is not None:
        seen = _with_channels_last(seen, environment.observation_space)
    return fitting((seen, getattr(model, "action_space", None)), name, environment)


def _with_channels_last(model: Space, environment: Space) -> Space:
    """The model's space, but the environment's for images that stable-baselines3 turned channels-first, also in a Dict."""
    if isinstance(model, spaces.Dict) and isinstance(environment, spaces.Dict):
        ours = environment.spaces
        return spaces.Dict({key: _with_channels_last(one, ours[key]) if key in ours else one for key, one in model.items()})
    if not (isinstance(model, spaces.Box) and isinstance(environment, spaces.Box)) or len(environment.shape) != 3:
        return model
    height, width, channels = environment.shape
    is_turned = model.shape == (channels, height, width) and model.dtype == environment.dtype == np.uint8
    return environment if is_turned else model


# ---- stable-baselines3 ----


SB3: Final = "sb3:"
ALGORITHMS: Final = {  # class that loads a model, by the module of its policy class; DDPG uses TD3's policies
    "stable_baselines3.common.policies": "PPO",
    **{f"stable_baselines3.{name.lower()}.policies": name for name in ("PPO", "A2C", "DQN", "SAC", "TD3")},
}
NORMALIZING: Final = "*vec*normalize*.pkl"  # file names in stable-baselines3's guide, callbacks and zoo


def open_model(name: str, environment: Environment | None, options: PolicyOptions) -> FunctionPolicy:
    """Open the policy `sb3:FILE`, written by `model.save`. Unpickles the file, which can run code.

    Raises StorageNotFound, MissingPackage, SpaceMismatch; BadConfig for unknown algorithms, and if a VecNormalize file lies
    next to it; BadData for other files.
    """
    options.refuse_pieces(name)
    file, where = name.removeprefix(SB3), f"--policy {name}"
    path = Path(file) if Path(file).is_file() else Path(f"{file}.zip")  # `save` appends .zip
    if not path.is_file():
        raise StorageNotFound(f"{file} does not exist", where=where, fix="check the path")
    try:
        with zipfile.ZipFile(path) as archive:  # `data` is JSON
            home = str(json.loads(archive.read("data"))["policy_class"]["__module__"])
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError) as err:
        fix = "name a file that model.save of stable-baselines3 wrote"
        raise BadData(f"not a model of stable-baselines3: {err}", where=where, fix=fix) from err
    if home not in ALGORITHMS:
        what, fix = f"the model's policy is from {home}, not from {', '.join(ALGORITHMS)}", "python:package.module:attribute"
        raise BadConfig(what, where=where, fix=f"load the model in Python, and use {fix}")
    # In stable-baselines3's zoo ENV_1/ENV.zip lies beside ENV_1/ENV/vecnormalize.pkl.
    beside = path.parent, path.parent / path.stem, path.parent / path.parent.resolve().name.rpartition("_")[0]
    if found := [one for folder in beside for one in sorted(folder.glob(NORMALIZING))]:
        what = f"{found[0]} lies next to the model, so it was trained on normalized observations, but would get raw ones"
        fix = "use python:module:attribute, an object whose predict() calls normalize_obs(); or move the file away"
        raise BadConfig(what, where=where, fix=fix)
    # Without this package gym, which stable-baselines3 imports if it is installed, does not print that it is unmaintained.
    sys.modules.setdefault("gym_notices", None)  # type: ignore[arg-type]
    try:
        kind = getattr(importlib.import_module("stable_baselines3"), ALGORITHMS[home])
        # The replay buffer of training would take gigabytes.
        model = kind.load(str(path), device=options.device, custom_objects={"buffer_size": 1})
    except ModuleNotFoundError as err:
        raise MissingPackage(f"the package {err.name} is missing", where=where, fix="pip install 'offline-cli[sb3]'") from err
    except Exception as err:  # loading may run any code and raise anything
        fix = "save it again with the installed version of stable-baselines3"
        raise BadData(f"the model cannot be loaded: {err!r}", where=where, fix=fix) from err
    return model_policy(model, environment, hashlib.sha256(path.read_bytes()).hexdigest(), name)
