"""What is fitted to recorded episodes: a clone of the behaviour, and Q functions of the policy; by the updates of training.

Decisions: both are cross-fitted, a clone in 5 folds, an ensemble of Q functions in 3: no episode is weighed, or corrected, by
what has learned from it, which would make intervals too narrow. Q functions see what the policy sees, and rewards divided by
the largest return, which Adam's steps suit. Where observations and actions are numbers they are tables, whose regression is a
mean: Adam takes long to fill rare cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.errors import BadConfig
from offline_cli.estimating.estimators import Values
from offline_cli.estimating.intervals import Array
from offline_cli.estimating.recorded import ROWS, Recorded
from offline_cli.modules.network import MLP, Mlp
from offline_cli.modules.rl_module import evaluating
from offline_cli.policies.policy import draw
from offline_cli.progress import OnProgress, Progress
from offline_cli.training.algorithms.algorithm import POLICY, Task
from offline_cli.training.algorithms.fqe import FOLD, FQE, NEXT_POLICY, TARGETS, Choices, policy_column, taken_values, values_of
from offline_cli.training.learner import Learner, Update, cloning_learner, rate_factor
from offline_cli.training.steps import Batches, Steps
from offline_cli.trees import Tree, leaves, rows_of

__all__ = ["FOLDS", "cloned_logp", "fitted_values"]

FOLDS: Final = 5
MEMBERS: Final = 3
CLONE: Final[Mapping[str, Any]] = {"batch": 256, "lr": 1e-3, "epochs": 10, "least": 300, "most": 3000}
NET: Final[Mapping[str, Any]] = {"batch": 512, "lr": 1e-3, "tau": 0.01, "updates": 4000}
SWEEPS: Final = 2000  # of a table at most
SETTLED: Final = 1e-6  # change of a table, of the largest return
FOLD_SEED: Final = 31  # sets these seeds apart from others drawn from the same seed


def _network(description: Mapping[str, Any]) -> Mlp:
    """That of the run without its memory, where it is ours."""
    own = description if description.get("name") == MLP else {}
    kept = ("activation", "layer_norm", "encoder")
    options = {"hidden": own.get("hidden", [256, 256]), "activation": "relu", **{one: own[one] for one in kept if one in own}}
    return Mlp(options)


def _updated(
    learner: Learner, columns: Mapping[str, Any], how: Mapping[str, Any], seed: int, device: torch.device
) -> Iterator[int]:
    """Fit the learner's modules to the columns; gives the updates made, now and then."""
    learner.whole.to(device).train()
    batches = Batches(Steps(columns), batch_size=how["batch"], seed=seed, device=device)
    update, bound = Update(learner, batches.batch, lr=how["lr"]), int(how["updates"])
    for number in range(bound):
        batches.fill(number)
        update.scale_rates(rate_factor(number, schedule="cosine", warmup=0, bound=bound))
        update(number)
        if number % 100 == 99 or number == bound - 1:
            yield number + 1


def _folds(episodes: int, count: int, seed: int) -> NDArray[np.int64]:
    """(E,) the fold of each episode."""
    found: NDArray[np.int64] = np.random.default_rng(draw(seed, FOLD_SEED)).permutation(episodes) % count
    return found


def cloned_logp(
    recorded: Recorded, network: Mapping[str, Any], seed: int, device: torch.device, on_progress: OnProgress
) -> Array:
    """(N,) log-probability of each recorded action by a clone that learned from the episodes of the other four folds."""
    episodes, acted = recorded.episodes, recorded.acted
    if len(episodes) < 2:
        fix = "--behaviour uniform, or recordings with action_logp"
        raise BadConfig("a clone of what played needs two episodes", where="--behaviour fit", fix=fix)
    fold = _folds(len(episodes), FOLDS, seed)
    of_steps = torch.from_numpy(np.repeat(fold, episodes.lengths))
    observations, found = rows_of(recorded.observations, acted), np.empty(episodes.num_steps)
    for number in range(FOLDS):
        mine, others = (of_steps == number).nonzero()[:, 0], (of_steps != number).nonzero()[:, 0]
        if not len(mine):
            continue
        module = recorded.module
        task = Task(module.observation_space, module.action_space, recorded.action_scale, _network(network), draw(seed, number))
        learner = cloning_learner(task.policy())
        columns = {Columns.OBS: rows_of(observations, others), Columns.ACTIONS: rows_of(recorded.actions, others)}
        updates = min(max(CLONE["epochs"] * len(others) // CLONE["batch"], CLONE["least"]), CLONE["most"])
        for done in _updated(learner, columns, {**CLONE, "updates": updates}, seed, device):
            on_progress(Progress("fitting the behaviour", number * updates + done, FOLDS * updates, "updates"))
        policy = learner.policy.cpu()
        with evaluating(policy), torch.inference_mode():
            for rows in torch.split(mine, ROWS):
                inputs = policy.forward_train({Columns.OBS: rows_of(observations, rows)})[Columns.ACTION_DIST_INPUTS]
                found[rows] = policy.action_head.logp(inputs, rows_of(recorded.actions, rows)).double().numpy()
    return found


def fitted_values(
    recorded: Recorded,
    network: Mapping[str, Any],
    *,
    gamma: float,
    explore: bool,
    seed: int,
    device: torch.device,
    on_progress: OnProgress,
) -> Values:
    """What an ensemble of fitted Q functions says of the recorded steps.

    Steps to observations that were not recorded are not learned from.
    """
    episodes, module, acted = recorded.episodes, recorded.module, recorded.acted
    head, choices = module.action_head, Choices.of(module.action_space)
    fold = _folds(len(episodes), MEMBERS, seed)
    rewards, scale = episodes.rewards, max(float(np.abs(episodes.returns).max()), 1e-9)
    ends = torch.zeros(episodes.num_steps, dtype=torch.bool)
    ends[torch.from_numpy(episodes.starts[1:] - 1)] = torch.from_numpy(episodes.terminated)
    policy = torch.cat([policy_column(head, part, choices, explore=explore) for part in torch.split(recorded.inputs, ROWS)])
    columns = {
        Columns.OBS: rows_of(recorded.observations, acted),
        Columns.ACTIONS: recorded.actions,
        Columns.REWARDS: torch.from_numpy(rewards / scale).float(),
        Columns.TERMINATEDS: ends,
        Columns.NEXT_OBS: rows_of(recorded.observations, acted + 1),
        NEXT_POLICY: policy[acted + 1],
        FOLD: torch.from_numpy(np.repeat(fold, episodes.lengths)),
    }
    task = Task(module.observation_space, module.action_space, recorded.action_scale, _network(network), seed)
    known = torch.ones(episodes.num_steps, dtype=torch.bool)
    known[torch.from_numpy(episodes.starts[1:][episodes.invented_ends] - 1)] = False
    learned = columns if bool(known.all()) else {name: rows_of(tree, known) for name, tree in columns.items()}
    if choices is not None and isinstance(module.observation_space, spaces.Discrete):
        critics = [*_tables(module.observation_space, choices, learned, gamma)]
    else:
        algorithm = FQE({"gamma": gamma, "tau": NET["tau"], "explore": explore, "members": MEMBERS})
        modules = {POLICY: module, **algorithm.critics(task)}
        learner = Learner(algorithm, modules, algorithm.groups(modules), module, module.is_stateful())
        for done in _updated(learner, learned, NET, seed, device):
            on_progress(Progress("fitting Q", done, NET["updates"], "updates"))
        critics = [one.cpu().eval() for one in modules[TARGETS].children()]

    def each(function: Any, *trees: Any) -> Array:
        """(M, rows) of each critic."""
        count = len(leaves(trees[0])[0])
        parts = [slice(first, first + ROWS) for first in range(0, count, ROWS)]
        with torch.inference_mode():
            found = [torch.cat([function(one, *(rows_of(tree, part) for tree in trees)) for part in parts]) for one in critics]
        stacked: Array = torch.stack(found).double().numpy() * scale
        return stacked

    def value(critic: Any, observations: Tree, column: Tensor) -> Tensor:
        return values_of(critic, head, choices, observations, column, explore=explore)

    first = torch.from_numpy(episodes.obs_starts[:-1])
    after = each(value, columns[Columns.NEXT_OBS], columns[NEXT_POLICY]) * ~ends.numpy()
    taken = each(lambda one, *pair: taken_values(one, choices, *pair), columns[Columns.OBS], columns[Columns.ACTIONS])
    own = np.repeat(fold, episodes.lengths), np.arange(episodes.num_steps)
    return Values(each(value, rows_of(recorded.observations, first), policy[first]), fold, taken[own], after[own])


def _tables(space: Any, choices: Choices, columns: Mapping[str, Any], gamma: float) -> Iterator[Any]:
    """Of each fold left out the function of observations (N,) that gives Q (N, A): fitted Q evaluation without a network.

    An action that was never taken in a state has the mean of those that were; a state without any that of all.
    """
    pairs = (columns[Columns.OBS].long() - int(space.start)) * choices.count + choices.numbers(columns[Columns.ACTIONS])
    size, goes_on = int(space.n) * choices.count, (~columns[Columns.TERMINATEDS]).double()
    after, policy = columns[Columns.NEXT_OBS].long() - int(space.start), columns[NEXT_POLICY].double()
    for fold in range(MEMBERS):
        mine = (columns[FOLD] != fold).nonzero()[:, 0]
        pair, rewards, to, chances, more = (
            one[mine] for one in (pairs, columns[Columns.REWARDS].double(), after, policy, goes_on)
        )
        counts = pair.bincount(minlength=size).double().view(-1, choices.count)
        table = torch.zeros_like(counts)
        for _ in range(SWEEPS):
            found = rewards + gamma * more * (table[to] * chances).sum(-1)
            sums = pair.bincount(found, minlength=size).view_as(counts)
            of_state = sums.sum(-1, keepdim=True) / counts.sum(-1, keepdim=True)  # NaN: it has none
            filled = torch.where(counts > 0, sums / counts, of_state).nan_to_num(float(found.mean()))
            change, table = float((filled - table).abs().max()), filled
            if change < SETTLED:
                break
        yield lambda observations, table=table: table[observations.long() - int(space.start)]
