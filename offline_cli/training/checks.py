"""What is measured at a check, and what follows from it: held-out loss, played returns, best policy, the end of training.

Measuring changes nothing, so that a signal may cut it short and a resumed run measures again. Checks belong to update numbers,
never to wall time. Which policy a run keeps:

* with `until_return` the confirmed one, or, where none was confirmed, the one of the check with the highest return;
* else with `val_fraction` the one of the check with the lowest held-out loss;
* else the last.

Accuracy alone says little where one action is nearly all of the data. Beside it stand the recall of each action, and what
always playing the most frequent action of the training steps would score. An action of several elements (MultiDiscrete,
MultiBinary, parts of Dict and Tuple) has for each the most frequent choice, and is right where all are.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from gymnasium import spaces
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.engines.ranks import ALONE, RankFailed, Ranks
from offline_cli.environments import Environment
from offline_cli.errors import BadConfig, BadData, UsageError
from offline_cli.meanings import Meanings
from offline_cli.modules.distributions import HITS, rows
from offline_cli.modules.python_network import autocast, choose_device
from offline_cli.modules.rl_module import evaluating
from offline_cli.playing.returns import Played, play
from offline_cli.policies.agents_policy import AgentsPolicy
from offline_cli.policies.by_name import files_of, open_policies
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.policy import Policy, PolicyOptions, Purpose, RandomPolicy, stand_in
from offline_cli.policies.policy_in_use import discrete_elements
from offline_cli.policies.rllib_policy import RLLIB
from offline_cli.spaces import Space, describe, leaf_spaces
from offline_cli.stop_signals import StopRequested
from offline_cli.training.algorithms.algorithm import Batch
from offline_cli.training.config import GATES, BCConfig
from offline_cli.training.learner import Learner
from offline_cli.training.run_folder import Best, TrainResult, TrainState
from offline_cli.training.steps import Batches, Steps
from offline_cli.trees import leaves

MAJORITY: Final = "accuracy_majority"
RECALL: Final = "recall"


def played_returns(
    learner: Learner,
    config: BCConfig,
    environment: Environment,
    others: Mapping[str, Policy],
    pieces: PlaySpec | None,
    update: int,
    ranks: Ranks,
) -> dict[str, Any]:
    """`eval_return_*` of playing in `environment` between `pieces`, and `confirm_return_*` on fresh episodes where they reach
    the target. In a game they are those of the agent that learns, beside `others`, by agent; `*_episodes`: its games.

    Raises StopRequested, BadData from the environment.
    """

    def returns(name: str, episodes: int, purpose: Purpose) -> dict[str, Any]:
        how: dict[str, Any] = {"seed": config.seed, "purpose": purpose, "round_": update, "pieces": pieces, "ranks": ranks}
        try:
            played: Played = play(learner.policy, environment, episodes, **how, agent=config.agent, others=others)
        except RankFailed as err:
            if not err.said:
                raise StopRequested from err
            fix = "see the message of that process"
            raise BadData("; ".join(err.said), where=f"--env {environment.name}", fix=fix) from err
        if environment.agents is not None and config.agent is not None:
            played = played.of_agent(config.agent)
        if not len(played.returns):
            what = f"agent {config.agent} took part in none of {episodes} games"
            fix = "more --eval-episodes, or learn another --agent"
            raise BadData(what, where=f"--env {environment.name}", fix=fix)
        values = {"return_mean": played.mean, "return_std": played.std, "return_ci95": played.ci95}
        values |= {"length_mean": float(played.lengths.mean()), "episodes": len(played.returns)}
        return {f"{name}_{key}": value for key, value in values.items()}

    figures = returns("eval", config.eval_episodes, Purpose.CHECK)
    if config.until_return is not None and figures["eval_return_mean"] >= config.until_return:
        figures |= returns("confirm", config.confirm_episodes, Purpose.CONFIRM)
    return figures


def score(
    learner: Learner, batches: Batches, precision: str, ranks: Ranks = ALONE, recall: ActionRecall | None = None
) -> dict[str, Any]:
    """The algorithm's scores, as means over all that `batches` hold, shared out among `ranks`: of cloning `loss`, and
    `accuracy` or `mse`. Beside `accuracy`, with `recall`, `accuracy_majority` and the `recall` of each action.
    """
    totals, counts = defaultdict[str, float](float), Counter[str]()
    by_choice = torch.zeros(2, 0 if recall is None else recall.count, dtype=torch.long)
    device = next(learner.policy.parameters()).device
    with evaluating(learner.whole), torch.inference_mode(), autocast(device, precision):
        for batch, _ in batches.in_order():
            found = dict(learner.algorithm.scores(learner.modules, batch))
            hits = found.pop(HITS, None)
            if hits is not None and recall is not None:
                found[MAJORITY], compared = recall.compared(batch, hits)
                by_choice = by_choice + compared.cpu()
            for name, values in found.items():
                totals[name] += float(values.double().sum())
                counts[name] += values.numel()
    names = sorted({*filter(None, "\n".join(ranks.texts("\n".join(totals))).split("\n"))})  # a rank may have had no batch
    own = [*(totals[name] for name in names), *(counts[name] for name in names), *by_choice.flatten().tolist()]
    sums = ranks.summed(own)
    scores: dict[str, Any] = {name: sums[number] / sums[len(names) + number] for number, name in enumerate(names)}
    if recall is not None and MAJORITY in scores:
        scores[RECALL] = recall.recall(sums[2 * len(names) : -recall.count], sums[-recall.count :])
    return scores


class ActionRecall:
    """Counts of the K choices of E discrete elements, numbered through; E may be 0."""

    def __init__(self, action_space: Space, meanings: Meanings, learned: Steps) -> None:
        """`learned`: the training steps, whose most frequent actions are counted here, each once whatever its weight."""
        self._is_bare = isinstance(action_space, spaces.Discrete)
        self._elements = [one for each in discrete_elements(action_space, meanings).values() for one in each]
        self._is_discrete = [not isinstance(leaf, spaces.Box) for leaf in leaf_spaces(action_space).values()]
        ends = list(itertools.accumulate(one.count for one in self._elements))
        self._parts = [slice(end - one.count, end) for one, end in zip(self._elements, ends, strict=True)]
        self._shifts = torch.tensor([part.start - one.start for one, part in zip(self._elements, self._parts, strict=True)])
        self.count = ends[-1] if ends else 0
        seen = torch.zeros(self.count, dtype=torch.long)
        for part in learned.parts((Columns.ACTIONS, Columns.LOSS_MASK)) if self._elements else ():
            if Columns.ACTIONS in part:
                seen += self._choices(part).flatten().bincount(minlength=self.count)
        self._most_frequent = torch.tensor([part.start + int(seen[part].argmax()) for part in self._parts])

    def _choices(self, batch: Mapping[str, Any]) -> Tensor:
        """(N, E) int64: the recorded choices of the steps that are learned from, numbered from 0 to K - 1."""
        mask = batch.get(Columns.LOSS_MASK)  # only sequences have one
        parts = [leaf for leaf, wanted in zip(leaves(batch[Columns.ACTIONS]), self._is_discrete, strict=True) if wanted]
        chosen = torch.cat([rows(leaf if mask is None else leaf[mask]).long() for leaf in parts], -1)
        return chosen + self._shifts.to(chosen.device)

    def compared(self, batch: Mapping[str, Any], hits: Tensor) -> tuple[Tensor, Tensor]:
        """Of held-out steps, whose greedy guesses are right where `hits` (N, E) says: (N,) whether the most frequent action is
        the recorded one, and (2, K) how often each choice was guessed where it was recorded, and how often it was recorded.
        """
        chosen = self._choices(batch)
        counts = torch.stack([found.flatten().bincount(minlength=self.count) for found in (chosen[hits], chosen)])
        return (chosen == self._most_frequent.to(chosen.device)).all(-1).float(), counts

    def recall(self, guessed: Sequence[float], recorded: Sequence[float]) -> dict[str, Any]:
        """Of each choice the share that was guessed, by category or number; None for one that no held-out step has.

        Of an action of several elements by the name of the element. `guessed`, `recorded`: K sums of `compared`.
        """
        shares = [right / seen if seen else None for right, seen in zip(guessed, recorded, strict=True)]
        each = [dict(zip(one.labels, shares[part], strict=True)) for one, part in zip(self._elements, self._parts, strict=True)]
        if self._is_bare:
            return each[0]
        names = [one.name for one in self._elements]
        places = [one.place for one in self._elements]
        return dict(zip(names if len(set(names)) == len(names) else places, each, strict=True))


# ---- what follows from the figures ----


def decide(state: TrainState, config: BCConfig, figures: Mapping[str, Any], bound: int) -> bool:
    """Update `state` by the figures of a check, and end the run where they say so; returns whether this policy is the best."""
    state.figures = dict(figures)
    loss, confirmed = figures.get("val_loss"), figures.get("confirm_return_mean")
    if loss is not None:
        is_better = state.best_val_loss is None or loss < state.best_val_loss
        state.best_val_loss, state.stale_checks = (loss, 0) if is_better else (state.best_val_loss, state.stale_checks + 1)
    value = None if loss is None else -loss  # that policies are compared by; None: the last one is kept
    if config.until_return is not None:
        value = figures["eval_return_mean"] if confirmed is None else confirmed  # of two estimates that of more episodes
    is_best = value is not None and (state.best is None or value > state.best.score)
    if value is not None and is_best:
        state.best = Best(value, state.update, dict(figures))
    if config.until_return is not None and confirmed is not None and confirmed >= config.until_return:
        state.stopped_by = "target"
    elif config.patience is not None and state.stale_checks >= config.patience:
        state.stopped_by = "patience"
    elif state.update >= bound:
        state.stopped_by = "bound"
    return is_best


def notes_on_accuracy(figures: Mapping[str, Any]) -> list[str]:
    """A note where a held-out accuracy is no better than that of one action."""
    accuracy, majority = figures.get("val_accuracy"), figures.get(f"val_{MAJORITY}")
    if accuracy is None or majority is None or accuracy > majority:
        return []
    return [
        f"the held-out accuracy {accuracy:.4g} is not above {majority:.4g}, that of always playing the most frequent action"
    ]


def check_gates(learner: Learner, batch: Batch, config: BCConfig) -> None:
    """Raise BadConfig for a gate on a score that the algorithm does not give of these actions; `batch`: of any steps."""
    asked = {option: name for option, name in GATES.items() if getattr(config, option) is not None}
    if not asked:
        return
    with evaluating(learner.whole), torch.inference_mode():
        known = [name for name in learner.algorithm.scores(learner.modules, batch) if name != HITS]
    for option, name in asked.items():
        if name not in known:
            what = f"{config.algorithm['name']} has no held-out {name} of actions {describe(learner.policy.action_space)}"
            fix = f"leave it out; there is {', '.join(known) or 'none'}"
            raise BadConfig(what, where=f"--{option.replace('_', '-')}", fix=fix)


def missed_gates(result: TrainResult, config: BCConfig) -> list[str]:
    """The target return that was not confirmed, and each held-out figure of the kept policy beyond its bound, in words."""
    found, loss, accuracy = list[str](), result.val_loss, result.val_accuracy
    if config.until_return is not None and result.stopped_by != "target":
        best = "none" if result.eval_return_mean is None else f"{result.eval_return_mean:.2f}"
        found.append(
            f"no policy was confirmed at a return of {config.until_return:g} in {result.updates} updates; best: {best}"
        )
    if config.max_val_loss is not None and (loss is None or not loss <= config.max_val_loss):  # nor NaN
        found.append(f"val_loss is {_shown(loss)}, above --max-val-loss {config.max_val_loss:g}")
    if config.min_accuracy is not None and (accuracy is None or not accuracy >= config.min_accuracy):
        found.append(f"val_accuracy is {_shown(accuracy)}, below --min-accuracy {config.min_accuracy:g}")
    return found


def _shown(figure: float | None) -> str:
    return "not known" if figure is None else f"{figure:.6g}"


# ---- one agent of a game ----


def target_of(given: float | str | None) -> tuple[str | None, float | None]:
    """The agent, if one is named, and the return that `--until-return` asks for: `450`, `hunter=3`. Raises UsageError."""
    agent, _, number = ("" if given is None else str(given)).rpartition("=")
    try:
        return agent or None, None if given is None else float(number)
    except ValueError as err:
        raise UsageError(f"{number!r} is no number", where="--until-return", fix="--until-return 450, or AGENT=450") from err


def files_of_others(policies: Sequence[str]) -> list[str]:
    """The places that `--policy AGENT=P` names, which storage options may be for."""
    return [place for text in policies for place in files_of([text.partition("=")[2]])]


def seen_by(agent: str | None, environment: Environment) -> Environment:
    """The environment, of a game what the agent sees of it: its spaces, which cannot be played."""
    if environment.agents is None or agent is None:
        return environment
    alone = stand_in(f"{environment.name}, agent {agent}", environment.agents[agent])
    alone.spec = environment.spec
    return alone


def open_others(
    config: BCConfig, environment: Environment, plugins: Sequence[str], storage_options: Mapping[str, Any] | None
) -> Mapping[str, Policy]:
    """Who plays the other agents of a game, by agent, ready to play; empty where it is no game.

    Raises what `open_policies` raises; BadConfig for a game without the agent that learns, and for policies without a game;
    UsageError for checkpoints of RLlib.
    """
    agents, name = environment.agents, environment.name
    if agents is None:
        if config.policy:
            what = f"--policy AGENT=P is for several agents, and {name} is of one"
            raise BadConfig(what, where="--policy", fix="leave it out")
        return {}
    if config.agent is None or config.agent not in agents:
        what = f"{name} is an environment of several agents, and none is called {config.agent!r}"
        fix = f"--agent NAME: which one learns, and is checked; the agents are {', '.join(agents)}"
        raise BadConfig(what, where="--env" if config.agent is None else "--agent", fix=fix)
    texts = ("*=random", *(config.policy or ()))
    if pickled := [text for text in texts if text.partition("=")[2].startswith(RLLIB)]:
        what = f"{pickled[0]}: RLlib's checkpoints are pickles, whose code would run"
        raise UsageError(what, where="--policy", fix="export that policy to a file, AGENT=onnx:FILE")
    if not any("://" in place for place in files_of_others(texts)):
        storage_options = None  # they are for data that is elsewhere
    options = PolicyOptions(device=choose_device(config.device).type, plugins=plugins, storage_options=storage_options)
    learner = RandomPolicy(seen_by(config.agent, environment))  # stands in until the first check
    game = open_policies(texts, environment, options, seed=config.seed, given={config.agent: learner})
    assert isinstance(game, AgentsPolicy)
    return game.of_agents
