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
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from offline_cli.environments import Environment
from offline_cli.errors import BadConfig, BadData, OfflineCliError, SpaceMismatch
from offline_cli.import_path import named_object
from offline_cli.modules.python_network import module_in_rllibs_manner
from offline_cli.modules.rl_module import RLModule
from offline_cli.policies.module_policy import hash_of_weights, open_module
from offline_cli.policies.policy import (
    ActInput,
    ActOutput,
    Policy,
    PolicyOptions,
    State,
    category_check,
    rows_of,
    seed_of,
    stacked_rows,
)
from offline_cli.policies.sb3_policy import ModelPolicy, check_model
from offline_cli.spaces import Space, describe, leaf_spaces
from offline_cli.trees import Tree, flatten, leaves, map_leaves, paths, unflatten_like

__all__ = ["PYTHON", "FunctionPolicy", "open_python"]

PYTHON: Final = "python:"
ACTIONS: Final = "actions"
TRIED: Final = 3  # rows of the batch that a function is tried with
Answer = tuple[Tree, dict[str, Tree]]  # actions and extra model outputs


def open_python(name: str, environment: Environment, options: PolicyOptions) -> Policy:
    """The policy of the object that `python:module:attribute` names.

    Raises BadConfig, MissingPackage, SpaceMismatch; BadData for what raises when it is imported or made.
    """
    where = f"--policy {name}"
    found = named_object(
        name.removeprefix(PYTHON),
        where=where,
        form=f"{PYTHON}package.module:attribute, importable from the current folder",
        raised=BadData,
    )
    if inspect.isclass(found):
        found = _made(found, environment, where)
    if isinstance(found, RLModule):
        return open_module(found, name, environment, options, fingerprint=hash_of_weights(found))
    predicts = callable(getattr(found, "predict", None))
    if not (predicts or callable(found)):
        what = f"it is {type(found).__name__}, which cannot be called"
        raise BadConfig(what, where=where, fix="name a function")
    options.refuse_pieces("an object with predict" if predicts else "a function", name)
    check_model(found, environment, name)
    if predicts:
        return ModelPolicy(found, environment.action_space, explore=options.explore, fingerprint=name)
    return FunctionPolicy(found, name, environment, explore=options.explore)


def _made(kind: type[Any], environment: Environment, where: str) -> Any:
    """An object of this class: without arguments, or of the environment's spaces where it is a module in RLlib's manner."""
    try:
        if not issubclass(kind, RLModule):
            return kind()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # weights that are not loaded are the same in each process
            return module_in_rllibs_manner(kind, environment.observation_space, environment.action_space, {})
    except OfflineCliError as err:
        err.where = f"{where}: {err.where}"
        raise
    except (Exception, SystemExit) as err:  # it is a user's code, and any may come of it
        raise BadData(f"making the policy raised {err!r}", where=where, fix="check the policy by itself, in Python") from err


class FunctionPolicy(Policy):
    """A function of observations, one at a time or in batches."""

    def __init__(self, call: Callable[..., Any], name: str, environment: Environment, *, explore: bool) -> None:
        self.fingerprint = name
        self._call, self._space, self._where = call, environment.action_space, f"--policy {name}"
        wanted = _parameters(call)
        self._options: dict[str, Any] = {"explore": explore} if "explore" in wanted else {}
        self.chance_size = int("rng" in wanted)
        self._leaves, self._check = leaf_spaces(self._space), category_check(self._space, "the action")
        self._batched: bool | None = None  # None: not known yet

    def _takes_batches(self, observations: Tree) -> bool:
        """Whether it takes a batch of copies of the first of these. Raises SpaceMismatch for actions that are not the space's,
        BadData for a function that raises for one observation, too."""
        few, chance = stacked_rows([rows_of(observations, 0)] * TRIED), np.full((TRIED, self.chance_size), 0.5)
        try:
            self._batch(few, chance)
        except Exception as batched:  # noqa: BLE001  a function of one observation may fail in any way
            try:
                self._one_by_one(few, chance)
            except SpaceMismatch:
                raise
            except Exception as single:
                what = f"the policy raises for a batch of observations ({batched!r}) and for one ({single!r})"
                raise BadData(what, where=self._where, fix="check the policy by itself, in Python") from single
            return False
        return True

    def act(self, given: ActInput, state: State) -> ActOutput:
        """See Policy. Raises SpaceMismatch for actions that are not the space's; what the function raises passes."""
        observations = map_leaves(np.array, given.obs)  # a function may write into them
        chance = np.zeros((len(given.t), 0)) if given.chance is None else given.chance
        if self._batched is None:
            self._batched = self._takes_batches(observations)
        actions, extras = (self._batch if self._batched else self._one_by_one)(observations, chance)
        try:
            self._check(actions)
        except ValueError as error:
            raise self._mismatch(str(error)) from error
        return ActOutput(actions, actions, extras)

    def _batch(self, observations: Tree, chance: NDArray[np.float64]) -> Answer:
        rng = {"rng": [_rng(row) for row in chance]} if self.chance_size else {}
        return self._checked(self._call(observations, **self._options, **rng), (len(chance),))

    def _one_by_one(self, observations: Tree, chance: NDArray[np.float64]) -> Answer:
        rows = []
        for row, numbers in enumerate(chance):
            rng = {"rng": _rng(numbers)} if self.chance_size else {}
            rows.append(self._checked(self._call(rows_of(observations, row), **self._options, **rng), ()))
        extras = {name: stacked_rows([row[1][name] for row in rows]) for name in rows[0][1]}
        return stacked_rows([row[0] for row in rows]), extras

    def _checked(self, answer: Any, batch: tuple[int, ...]) -> Answer:
        """Actions in the space's dtypes, and extra outputs. Raises SpaceMismatch."""
        extras: dict[str, Tree] = {}
        if isinstance(answer, Mapping) and ACTIONS in answer and ACTIONS not in getattr(self._space, "spaces", ()):
            extras = {str(name): map_leaves(np.asarray, value) for name, value in answer.items() if name != ACTIONS}
            answer = answer[ACTIONS]
        actions = _tree(answer, self._space)
        if paths(actions) != list(self._leaves):
            raise self._mismatch(f"actions with the parts {paths(actions)}")
        if any(leaf.shape[: len(batch)] != batch for leaf in leaves(extras)):
            raise self._mismatch("extra model outputs of another length than its actions")
        for path, leaf in flatten(actions):
            space, kind = self._leaves[path], leaf.dtype.kind
            if leaf.shape != (*batch, *(space.shape or ())):
                raise self._mismatch(f"actions of shape {leaf.shape} for {batch[0] if batch else 'one'} observations")
            if kind not in "biuf" or (kind == "f" and np.dtype(space.dtype).kind != "f"):
                raise self._mismatch(f"actions of type {leaf.dtype}")
        typed = [leaf.astype(self._leaves[path].dtype, copy=False) for path, leaf in flatten(actions)]
        return unflatten_like(actions, typed), extras

    def _mismatch(self, what: str) -> SpaceMismatch:
        what = f"the policy gives {what}, the environment takes {describe(self._space)}"
        return SpaceMismatch(what, where=self._where, fix="a policy that gives actions of the environment's action space")


def _tree(value: Any, space: Space) -> Tree:
    """`value` with arrays as leaves, and lists as tuples where the space has a Tuple."""
    inner: Any = getattr(space, "spaces", None)
    if isinstance(value, Mapping) and hasattr(inner, "items"):
        return {key: _tree(value[key], part) if key in value else np.empty(0) for key, part in inner.items()}
    if inner is not None and isinstance(value, (tuple, list)) and len(value) == len(inner):
        return tuple(_tree(item, part) for item, part in zip(value, inner, strict=True))
    return np.asarray(value)


def _rng(chance: NDArray[np.float64]) -> np.random.Generator:
    return np.random.default_rng(seed_of(chance[0]))


def _parameters(call: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(call).parameters)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return set()
