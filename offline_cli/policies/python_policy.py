"""`python:package.module:attribute` as a policy: a function, a class, a module or a model.

The attribute may be

* a function of observations. Whether it takes a batch (leaves (B, *shape)) or one observation is found out at its first call,
  with a batch of three, and with one if that returns no batch of actions. It returns actions, or a dict with `actions` and
  extra model outputs by name. A parameter called `explore` gets that flag; one called `rng` gets a numpy Generator, or for a
  batch a list of B, that follows from the episode and the step.
* a class, which is made without arguments, or any object that can be called: as the function.
* an RLModule: as the module of a run; or a class of those in RLlib's manner, which is made from the environment's spaces.
* an object with `predict(observations, deterministic=...)`, a model of stable-baselines3 for one.

Where it has `observation_space` and `action_space`, these are compared with the environment's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from offline_cli.columns import Columns
from offline_cli.environments import Environment
from offline_cli.errors import BadConfig, BadData, OfflineCliError, SpaceMismatch
from offline_cli.import_path import PYTHON, named_object
from offline_cli.modules.python_network import module_in_rllibs_manner
from offline_cli.modules.rl_module import RLModule, hash_of_weights
from offline_cli.policies.function_policy import FunctionPolicy
from offline_cli.policies.module_policy import open_module
from offline_cli.policies.policy import RAISED, Acted, Policy, PolicyOptions, State, fitting
from offline_cli.policies.sb3_policy import fitting_model, model_policy
from offline_cli.spaces import tree_from_lists
from offline_cli.trees import Tree, map_leaves, rows_of, stacked_rows

__all__ = ["open_python"]

THREE = np.zeros(3, np.int64)


def open_python(name: str, environment: Environment | None, options: PolicyOptions) -> Policy:
    """The policy of the object that `python:module:attribute` names.

    Raises BadConfig, MissingPackage, SpaceMismatch; BadData for what raises when it is imported or made.
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
        raise BadConfig(f"it is {type(found).__name__}, which cannot be called", where=where, fix="name a function")
    return UserFunction(found, fitting_model(found, name, environment), name)


def _made(kind: type[Any], environment: Environment | None, name: str) -> Any:
    """An object of this class: without arguments, or of the environment's spaces where it is a module in RLlib's manner."""
    try:
        if not issubclass(kind, RLModule):
            return kind()
        environment = fitting((None, None), name, environment)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # weights that are not loaded are the same in each process
            return module_in_rllibs_manner(kind, environment.observation_space, environment.action_space, {})
    except OfflineCliError:
        raise
    except RAISED as err:
        fix = "check the policy by itself, in Python"
        raise BadData(f"making the policy raised {err!r}", where=f"--policy {name}", fix=fix) from err


class UserFunction(FunctionPolicy):
    """A function of a user's, of a batch or of one observation."""

    def __init__(self, user: Callable[..., Any], environment: Environment, name: str) -> None:
        super().__init__(self._at_once, environment, name, name)
        self._user, self._is_known = user, False
        try:
            self._wanted = set(inspect.signature(user).parameters)
        except (TypeError, ValueError):  # some built-in functions have no signature
            self._wanted = set()

    def act(self, observations: Tree, state: State, explore: bool) -> Acted:
        """See Policy. Raises BadData where the function raises for a batch and for one observation."""
        if not self._is_known:
            self._find_out(rows_of(observations, THREE), replace(state, episodes=THREE, t=THREE), explore)
            self._is_known = True
        return super().act(observations, state, explore)

    def _find_out(self, three: Tree, state: State, explore: bool) -> None:
        """Whether it takes three observations at once."""
        errors: list[Exception] = []
        for function in (self._at_once, self._one_by_one):
            self.function = function
            try:
                super().act(three, state, explore)
            except Exception as err:  # noqa: BLE001  a function of one observation may fail in any way for a batch
                errors.append(err)
            else:
                return
        if isinstance(errors[1], SpaceMismatch):
            raise next(err for err in errors if isinstance(err, SpaceMismatch))
        what = f"the policy raises for a batch of observations ({errors[0]!r}) and for one ({errors[1]!r})"
        raise BadData(what, where=self.where, fix="check the policy by itself, in Python") from errors[1]

    def _at_once(self, observations: Tree, state: State, explore: bool) -> Any:
        return self._user(observations, **self._options(explore, self._generators(state)))

    def _one_by_one(self, observations: Tree, state: State, explore: bool) -> Any:
        answers = [
            self._user(rows_of(observations, row), **self._options(explore, rng))
            for row, rng in enumerate(self._generators(state))
        ]
        if isinstance(answers[0], Mapping) and Columns.ACTIONS in answers[0]:
            columns = {key: [answer[key] for answer in answers] for key in answers[0]}
            extras = {key: stacked_rows([np.asarray(value) for value in column]) for key, column in columns.items()}
            return {**extras, Columns.ACTIONS: self._stacked(columns[Columns.ACTIONS])}
        return self._stacked(answers)

    def _stacked(self, actions: list[Any]) -> Tree:
        return stacked_rows([map_leaves(np.asarray, tree_from_lists(action, self.spaces[1])) for action in actions])

    def _generators(self, state: State) -> list[Any]:
        wanted = "rng" in self._wanted
        return [np.random.default_rng(seed) for seed in state.seeds()] if wanted else [None] * len(state.t)

    def _options(self, explore: bool, rng: Any) -> dict[str, Any]:
        return {name: value for name, value in (("explore", explore), ("rng", rng)) if name in self._wanted}
