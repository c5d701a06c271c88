"""`python:package.module:attribute` as a policy: a function, a class, a module or a model.

The attribute may be

* a function of observations. Whether it takes a batch (leaves (B, *shape)) or one observation is found out at its first call,
  with a batch of three, and with one if that returns no batch of actions. It returns actions, or a dict with `actions` and
  extra model outputs by name. A parameter called `explore` gets that flag; one called `rng` gets a numpy Generator, or for a
  batch a list of B, that follows from the episode and the step.
* a class, which is made without arguments, or any object that can be called: as the function.
* an RLModule: as the module of a run; or a class of those in RLlib's manner, which is made from the environment's spaces.
* an object with `predict(observations, deterministic=...)`, a model of stable-baselines3 for one.

Where it has `observation_space` and `action_space`, these are compared with the environment's. Actions have to fit the action
space.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch

from offline_cli.environments import Environment
from offline_cli.episodes.value_fitting import category_check
from offline_cli.errors import BadConfig, BadData, OfflineCliError, SpaceMismatch
from offline_cli.import_path import PYTHON, named_object
from offline_cli.modules.python_network import module_in_rllibs_manner
from offline_cli.modules.rl_module import RLModule, hash_of_weights
from offline_cli.policies.module_policy import open_module
from offline_cli.policies.policy import RAISED, Acted, Policy, PolicyOptions, State, fitting
from offline_cli.policies.sb3_policy import ModelPolicy, fitting_model
from offline_cli.spaces import describe, leaf_spaces, tree_from_lists
from offline_cli.trees import Tree, flatten, leaves, map_leaves, rows_of, stacked_rows, unflatten_like

__all__ = ["FunctionPolicy", "open_python"]

ACTIONS: Final = "actions"
TRIED: Final = 3  # rows of the batch that a function is tried with


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
    predicts = callable(getattr(found, "predict", None))
    if not (predicts or callable(found)):
        raise BadConfig(f"it is {type(found).__name__}, which cannot be called", where=where, fix="name a function")
    options.refuse_pieces("an object with predict" if predicts else "a function", name)
    environment = fitting_model(found, name, environment)
    return ModelPolicy(found, environment, name) if predicts else FunctionPolicy(found, environment, name)


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


class FunctionPolicy(Policy):
    """A function of observations, one at a time or in batches."""

    def __init__(self, call: Callable[..., Any], environment: Environment, name: str) -> None:
        super().__init__(environment, name)
        self._call, self._where = call, f"--policy {name}"
        try:
            self._wanted = set(inspect.signature(call).parameters)
        except (TypeError, ValueError):  # some built-in functions have no signature
            self._wanted = set()
        self._leaves, self._check = leaf_spaces(self.spaces[1]), category_check(self.spaces[1], "the action")
        self._batched: bool | None = None  # None: not known yet

    def act(self, observations: Tree, state: State, explore: bool) -> Acted:
        """See Policy. Raises SpaceMismatch for actions that are not the space's; what the function raises passes."""
        observations = map_leaves(np.array, observations)  # a function may write into them
        if self._batched is None:
            self._batched = self._takes_batches(observations, state, explore)
        found = (self._batch if self._batched else self._one_by_one)(observations, state, explore)
        try:
            self._check(found.actions)
        except ValueError as error:
            raise self._mismatch(str(error)) from error
        return found

    def _takes_batches(self, observations: Tree, state: State, explore: bool) -> bool:
        """Whether it takes a batch of copies of the first of these. Raises as `act` does, and BadData where it raises for one
        observation, too."""
        few = rows_of(observations, np.zeros(TRIED, np.int64))
        start = replace(state, episodes=np.zeros(TRIED, np.int64), t=np.zeros(TRIED, np.int64))
        try:
            self._batch(few, start, explore)
        except Exception as batched:  # noqa: BLE001  a function of one observation may fail in any way
            try:
                self._one_by_one(few, start, explore)
            except SpaceMismatch:
                raise
            except Exception as single:
                what = f"the policy raises for a batch of observations ({batched!r}) and for one ({single!r})"
                raise BadData(what, where=self._where, fix="check the policy by itself, in Python") from single
            return False
        return True

    def _options(self, state: State, explore: bool) -> tuple[dict[str, Any], list[Any]]:
        """The flag, where it is wanted; and a generator for each row, if those are."""
        rng = [np.random.default_rng(seed) for seed in state.seeds()] if "rng" in self._wanted else []
        return {"explore": explore} if "explore" in self._wanted else {}, rng

    def _batch(self, observations: Tree, state: State, explore: bool) -> Acted:
        options, rng = self._options(state, explore)
        return self._checked(self._call(observations, **options, **({"rng": rng} if rng else {})), (len(state.t),))

    def _one_by_one(self, observations: Tree, state: State, explore: bool) -> Acted:
        options, rng = self._options(state, explore)
        rows = []
        for row in range(len(state.t)):
            own = {**options, "rng": rng[row]} if rng else options
            rows.append(self._checked(self._call(rows_of(observations, row), **own), ()))
        actions = stacked_rows([row.actions for row in rows])
        return Acted(actions, actions, {name: stacked_rows([row.extras[name] for row in rows]) for name in rows[0].extras})

    def _checked(self, answer: Any, batch: tuple[int, ...]) -> Acted:
        """Actions in the space's dtypes, and extra outputs. Raises SpaceMismatch."""
        extras: dict[str, Tree] = {}
        if isinstance(answer, Mapping) and ACTIONS in answer and ACTIONS not in getattr(self.spaces[1], "spaces", ()):
            extras = {str(name): map_leaves(np.asarray, value) for name, value in answer.items() if name != ACTIONS}
            answer = answer[ACTIONS]
        try:
            actions = map_leaves(np.asarray, tree_from_lists(answer, self.spaces[1]))
        except ValueError as err:  # other numbers of parts, or ragged rows
            raise self._mismatch(f"actions that are no arrays ({err})") from err
        shapes = {path: leaf.shape for path, leaf in flatten(actions)}
        if shapes != {path: (*batch, *(part.shape or ())) for path, part in self._leaves.items()}:
            told = ", ".join(f"{path} {shape}".strip() for path, shape in shapes.items())
            raise self._mismatch(f"actions of shape {told} for {batch[0] if batch else 'one'} observations")
        if any(leaf.shape[: len(batch)] != batch for leaf in leaves(extras)):
            raise self._mismatch("extra model outputs of another length than its actions")
        for path, leaf in flatten(actions):
            if leaf.dtype.kind not in "biuf" or (leaf.dtype.kind == "f" and np.dtype(self._leaves[path].dtype).kind != "f"):
                raise self._mismatch(f"actions of type {leaf.dtype}")
        typed = [leaf.astype(self._leaves[path].dtype, copy=False) for path, leaf in flatten(actions)]
        tree = unflatten_like(actions, typed)
        return Acted(tree, tree, extras)

    def _mismatch(self, what: str) -> SpaceMismatch:
        what = f"the policy gives {what}, the environment takes {describe(self.spaces[1])}"
        return SpaceMismatch(what, where=self._where, fix="a policy that gives actions of the environment's action space")
