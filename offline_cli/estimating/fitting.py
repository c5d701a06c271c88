"""What is fitted to recorded episodes: a clone of the behaviour, and Q functions of the policy; by the updates of training.

Decisions: both are cross-fitted, a clone in 5 folds, an ensemble of Q functions in 3: no episode is weighed, or corrected, by
what has learned from it, which would make intervals too narrow. Q functions see what the policy sees, and rewards divided by
the largest return, which Adam's steps suit. Where observations and actions are numbers they are tables, since Adam takes long
to fill rare cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.errors import BadConfig
from offline_cli.estimating.estimators import Values
from offline_cli.estimating.intervals import Array
from offline_cli.estimating.recorded import ROWS, Recorded
from offline_cli.modules.network import MLP, Mlp
from offline_cli.policies.policy import draw
from offline_cli.policies.run_policy import LoadedPolicy
from offline_cli.progress import OnProgress, Progress
from offline_cli.stop_signals import check
from offline_cli.training.algorithms import fqe
from offline_cli.training.algorithms.algorithm import POLICY, Task
from offline_cli.training.learner import Learner, Update, cloning_learner, rate_factor
from offline_cli.training.steps import Batches, Steps
from offline_cli.trees import Tree, leaves, rows_of

__all__ = ["Fitting"]

FOLDS: Final = 5
MEMBERS: Final = 3
CLONE: Final[Mapping[str, Any]] = {"batch": 256, "lr": 1e-3}
EPOCHS, LEAST, MOST = 10, 300, 3000  # of a clone, within these bounds of updates
NET: Final[Mapping[str, Any]] = {"batch": 512, "lr": 1e-3, "updates": 4000}
TAU: Final = 0.01
FOLD_SEED: Final = 31  # sets these seeds apart from others drawn from the same seed
KEPT: Final = ("hidden", "activation", "layer_norm", "encoder")  # options of the run's network


@dataclass(frozen=True, slots=True)
class Fitting:
    """Fits to the episodes that are recorded for a run, on `device`."""

    recorded: Recorded
    loaded: LoadedPolicy
    seed: int
    device: torch.device
    on_progress: OnProgress

    def cloned_logp(self) -> Array:
        """(N,) log-probability of each recorded action by a clone that learned from the episodes of the other four folds.

        Raises BadConfig for a single episode.
        """
        if len(self.recorded.episodes) < 2:
            fix = "--behaviour uniform, or recordings with action_logp"
            raise BadConfig("a clone of the recorded policy needs two episodes", where="--behaviour fit", fix=fix)
        fold, seen = self._folds(FOLDS), rows_of(self.recorded.observations, self.recorded.acted)
        columns, found = {Columns.OBS: seen, Columns.ACTIONS: self.recorded.actions}, np.empty(len(fold))
        for number in range(min(FOLDS, len(self.recorded.episodes))):
            learner, learned = cloning_learner(self._task(draw(self.seed, number)).policy()), rows_of(columns, fold != number)
            updates = min(max(EPOCHS * int((fold != number).sum()) // CLONE["batch"], LEAST), MOST)
            self._fit(learner, learned, {**CLONE, "updates": updates}, f"fitting the behaviour, {number + 1} of {FOLDS}")
            policy = learner.policy.cpu().eval()
            with torch.inference_mode():
                for rows in torch.split((fold == number).nonzero()[:, 0], ROWS):
                    part = rows_of(columns, rows)
                    inputs = policy.forward_train(part)[Columns.ACTION_DIST_INPUTS]
                    found[rows] = policy.action_head.logp(inputs, part[Columns.ACTIONS]).double()
        return found

    def values(self, *, gamma: float, explore: bool) -> Values:
        """What an ensemble of fitted Q functions says of the recorded steps.

        Steps to observations that were not recorded are not learned from. Raises BadConfig for a single episode, and
        for a gamma at which no values are found.
        """
        if len(self.recorded.episodes) < 2:
            fix = "is, wis, pdis or wpdis, or more recordings"
            raise BadConfig("fitted Q functions need two episodes", where="--estimators", fix=fix)
        recorded, episodes, module, acted = self.recorded, self.recorded.episodes, self.recorded.module, self.recorded.acted
        head, choices, fold = module.action_head, fqe.Choices.of(module.action_space), self._folds(MEMBERS)
        scale, last = max(float(np.abs(episodes.returns).max()), 1e-9), torch.from_numpy(episodes.starts[1:] - 1)
        ends, known = torch.zeros(len(fold), dtype=torch.bool), torch.ones(len(fold), dtype=torch.bool)
        ends[last], known[last] = torch.from_numpy(episodes.terminated), torch.from_numpy(~episodes.invented_ends)
        policy = torch.cat(
            [fqe.policy_column(head, part, choices, explore=explore) for part in torch.split(recorded.inputs, ROWS)]
        )
        columns = {
            Columns.OBS: rows_of(recorded.observations, acted),
            Columns.ACTIONS: recorded.actions,
            Columns.REWARDS: torch.from_numpy(episodes.rewards / scale).float(),
            Columns.TERMINATEDS: ends,
            Columns.NEXT_OBS: rows_of(recorded.observations, acted + 1),
            fqe.NEXT_POLICY: policy[acted + 1],
            fqe.FOLD: fold,
        }
        learned = rows_of(columns, known)
        if choices is not None and isinstance(module.observation_space, spaces.Discrete):
            critics: list[Any] = fqe.tables(module.observation_space, choices, learned, gamma, MEMBERS)
        else:
            algorithm = fqe.FQE({"gamma": gamma, "tau": TAU, "explore": explore, "members": MEMBERS})
            modules = {POLICY: module, **algorithm.critics(self._task(self.seed))}
            learner = Learner(algorithm, modules, algorithm.groups(modules), module, module.is_stateful())
            self._fit(learner, learned, NET, "fitting Q")
            critics = [one.cpu().eval() for one in modules[fqe.TARGETS].children()]

        @torch.inference_mode()
        def each(function: Callable[..., Tensor], *trees: Tree) -> Array:
            """(M, rows) of each critic."""
            parts = [slice(first, first + ROWS) for first in range(0, len(leaves(trees[0])[0]), ROWS)]
            found = [torch.cat([function(one, *(rows_of(tree, part) for tree in trees)) for part in parts]) for one in critics]
            return np.asarray(torch.stack(found).double() * scale)

        def value(critic: Any, observations: Tree, column: Tensor) -> Tensor:
            return fqe.values_of(critic, head, choices, observations, column, explore=explore)

        own, first = (fold.numpy(), np.arange(len(fold))), torch.from_numpy(episodes.obs_starts[:-1])
        return Values(
            each(value, rows_of(recorded.observations, first), policy[first]),
            fold.numpy()[episodes.starts[:-1]],
            each(lambda one, *pair: fqe.taken_values(one, choices, *pair), columns[Columns.OBS], columns[Columns.ACTIONS])[own],
            each(value, columns[Columns.NEXT_OBS], columns[fqe.NEXT_POLICY])[own] * ~ends.numpy(),
        )

    def _folds(self, count: int) -> Tensor:
        """(N,) the fold of each step, the same for all of an episode."""
        episodes = self.recorded.episodes
        found = np.random.default_rng(draw(self.seed, FOLD_SEED)).permutation(len(episodes)) % count
        return torch.from_numpy(np.repeat(found, episodes.lengths))

    def _task(self, seed: int) -> Task:
        """With the network of the run without its memory, where it is ours."""
        network, module = self.loaded.description["network"], self.recorded.module
        own = {one: network[one] for one in KEPT if one in network and network["name"] == MLP}
        network = Mlp({"hidden": [256, 256], "activation": "relu"} | own)
        return Task(module.observation_space, module.action_space, self.recorded.action_scale, network, seed)

    def _fit(self, learner: Learner, columns: Mapping[str, Any], how: Mapping[str, Any], what: str) -> None:
        """Fit the learner's modules to the columns."""
        learner.whole.to(self.device).train()
        batches = Batches(Steps(columns), batch_size=how["batch"], seed=self.seed, device=self.device)
        update, bound = Update(learner, batches.batch, lr=how["lr"]), int(how["updates"])
        for number in range(bound):
            check()
            batches.fill(number)
            update.scale_rates(rate_factor(number, schedule="cosine", warmup=0, bound=bound))
            update(number)
            if number % 100 == 99 or number == bound - 1:
                self.on_progress(Progress(what, number + 1, bound, "updates"))
