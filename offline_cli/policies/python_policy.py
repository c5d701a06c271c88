"""`python:package.module:attribute` as a policy: a function, a class, a module or a model.

The attribute may be

* a function of observations. Whether it takes one observation or a batch (leaves (B, *shape)) is found out by calling it with
  a batch of invented observations, and with one if that returns no batch of actions; where it raises for both, with real ones.
  It returns actions, or a dict with `actions` and extra model outputs by name. A parameter called `explore` gets that flag; one
  called `rng` gets a numpy Generator, or for a batch a list of B, that follows from the episode and the step.
* a class, which is made without arguments, or any object that can be called: as the function.
* an RLModule: as the module of a run; or a class of those in RLlib's manner, which is made from the environment's spaces.
* an object with `predict(observations, deterministic=...)`, a model of stable-baselines3 for one.

Where it has `observation_space` and `action_space`, these are compared with the environment's. Actions have to fit the action
space.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import BadData, OfflineCliError, SpaceMismatch
from offline_cli.import_path import named_object
from offline_cli.policies.policy import Acted, Seen, category_check, fitter, rows_of, sampled, stacked_rows
from offline_cli.spaces import Space, describe, leaf_spaces
from offline_cli.trees import Tree, flatten, leaves, map_leaves, paths, unflatten_like

__all__ = ["FunctionPolicy", "imported"]

ACTIONS = "actions"
TRIED = 3  # rows of the batch that a function is tried with
SEED_BITS = 53  # of a uniform number
Answer = tuple[Tree, dict[str, Tree]]  # actions and extra model outputs


class FunctionPolicy:
    """A function of observations, one at a time or in batches."""

    action_scale = "env"

    def __init__(
        self,
        call: Callable[..., Any],
        name: str,
        observation_space: Space,
        action_space: Space,
        *,
        explore: bool,
        example: Callable[[], Tree],
    ) -> None:
        """`example` gives a real observation, which is asked for where the function raises for invented ones.

        Raises SpaceMismatch where it gives no actions of that space, BadData where it raises whatever it is given.
        """
        self.fingerprint = f"python:{name}"
        self._call, self._space, self._where = call, action_space, f"--policy python:{name}"
        wanted = _parameters(call)
        self._options: dict[str, Any] = {"explore": explore} if "explore" in wanted else {}
        self.chance_size = int("rng" in wanted)
        self._leaves, self._check = leaf_spaces(action_space), category_check(action_space, "the action")
        try:
            self._batched = self._takes_batches(sampled(observation_space, TRIED))
        except BadData:
            self._batched = self._takes_batches(stacked_rows([fitter(observation_space)(example())] * TRIED))

    def _takes_batches(self, observations: Tree) -> bool:
        chance = np.full((TRIED, self.chance_size), 0.5)
        try:
            self._batch(observations, chance)
        except Exception as batched:  # noqa: BLE001  a function of one observation may fail in any way
            try:
                self._one(observations, chance, 0)
            except SpaceMismatch:
                raise
            except Exception as single:
                what = f"the policy raises for a batch of observations ({batched!r}) and for one ({single!r})"
                raise BadData(what, where=self._where, fix="check the policy by itself, in Python") from single
            return False
        return True

    def act(self, seen: Seen, state: Any, explore: bool) -> Acted:
        """See Policy. Raises SpaceMismatch for actions that are not the space's; what the function raises passes."""
        observations = map_leaves(np.array, seen.obs)  # a function may write into them
        chance = np.zeros((len(seen.slots), 0)) if seen.chance is None else seen.chance
        if self._batched:
            actions, extras = self._batch(observations, chance)
        else:
            rows = [self._one(observations, chance, row) for row in range(len(chance))]
            actions = stacked_rows([row[0] for row in rows])
            extras = {name: stacked_rows([row[1][name] for row in rows]) for name in rows[0][1]}
        try:
            self._check(actions)
        except ValueError as error:
            raise self._mismatch(str(error)) from error
        return Acted(actions, actions, extras)

    def _batch(self, observations: Tree, chance: NDArray[np.float64]) -> Answer:
        rng = {"rng": [_rng(row) for row in chance]} if self.chance_size else {}
        return self._checked(self._call(observations, **self._options, **rng), (len(chance),))

    def _one(self, observations: Tree, chance: NDArray[np.float64], row: int) -> Answer:
        rng = {"rng": _rng(chance[row])} if self.chance_size else {}
        return self._checked(self._call(rows_of(observations, row), **self._options, **rng), ())

    def _checked(self, answer: Any, batch: tuple[int, ...]) -> Answer:
        """Actions in the space's dtypes, and extra outputs. Raises SpaceMismatch."""
        extras: dict[str, Tree] = {}
        if isinstance(answer, Mapping) and ACTIONS in answer and ACTIONS not in getattr(self._space, "spaces", ()):
            extras = {str(name): map_leaves(np.asarray, value) for name, value in answer.items() if name != ACTIONS}
            answer = answer[ACTIONS]
        actions = self._fitted(_tree(answer, self._space), batch)
        wrong = [name for name, tree in extras.items() if any(leaf.shape[: len(batch)] != batch for leaf in leaves(tree))]
        if wrong:
            raise self._mismatch(f"extra model outputs of other lengths than its actions: {', '.join(wrong)}")
        return actions, extras

    def _fitted(self, actions: Tree, batch: tuple[int, ...]) -> Tree:
        if paths(actions) != list(self._leaves):
            raise self._mismatch(f"actions with the parts {paths(actions)}")
        return unflatten_like(actions, [self._leaf(leaf, self._leaves[path], batch) for path, leaf in flatten(actions)])

    def _leaf(self, leaf: NDArray[Any], space: Space, batch: tuple[int, ...]) -> NDArray[Any]:
        dtype = np.dtype(space.dtype)
        if leaf.shape != (*batch, *(space.shape or ())):
            raise self._mismatch(f"actions of shape {leaf.shape} for {batch[0] if batch else 'one'} observations")
        if leaf.dtype.kind not in "biuf" or (leaf.dtype.kind == "f" and dtype.kind != "f"):
            raise self._mismatch(f"actions of type {leaf.dtype}")
        return leaf.astype(dtype, copy=False)

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
    return np.random.default_rng(int(chance[0] * 2.0**SEED_BITS))


def _parameters(call: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(call).parameters)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return set()


def imported(name: str, made: Callable[[type[Any]], Any]) -> Any:
    """The attribute that `package.module:attribute` names, for a class what `made` makes of it.

    Raises BadConfig, MissingPackage, BadData.
    """
    where, form = f"--policy python:{name}", "python:package.module:attribute, importable from the current folder"
    found = named_object(name, where=where, form=form, raised=BadData)
    if not inspect.isclass(found):
        return found
    try:
        return made(found)
    except OfflineCliError as err:
        err.where = f"{where}: {err.where}"
        raise
    except (Exception, SystemExit) as err:  # it is a user's code, and any may come of it
        raise BadData(f"making the policy raised {err!r}", where=where, fix="check the policy by itself, in Python") from err
