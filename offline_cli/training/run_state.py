"""How far a run is (`TrainState`), its result (`TrainResult`), and what policy.json says of its policy (`describe_policy`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from offline_cli.datasets.manifest import WRAPPERS, Environment
from offline_cli.environments import EnvironmentSpec
from offline_cli.meanings import NO_MEANINGS
from offline_cli.modules.images import NATURE, encoder_package
from offline_cli.modules.network import network_package
from offline_cli.modules.rl_module import DEFAULT_MODULE_ID
from offline_cli.policies.run_policy import (
    ENCODER_PACKAGE,
    ENVIRONMENTS,
    FORMAT,
    GIVEN_SPACE,
    MEANINGS,
    NETWORK,
    VERSION,
    described_form,
)
from offline_cli.source_code import allowed_changes
from offline_cli.spaces import space_to_json
from offline_cli.training.config import BCConfig
from offline_cli.training.data_facts import data_difference
from offline_cli.training.training_data import TrainingData

__all__ = ["Best", "TrainResult", "TrainState", "check_same_run", "describe_policy"]


@dataclass(frozen=True, slots=True)
class Best:
    """The check at which the policy was best so far."""

    score: float  # higher is better: a mean return, or minus a held-out loss
    update: int
    figures: dict[str, Any]  # that check's


@dataclass(slots=True)
class TrainState:
    """Counters of one run; `update` is also the position in the data."""

    update: int = 0  # updates made
    summed: int = 0  # updates in the loss sum since the last row
    samples: int = 0  # steps learned from, padding not counted
    train_seconds: float = 0.0  # in updates alone
    seconds: float = 0.0  # checks and checkpoints included
    loss: float | None = None  # the sum of all losses, as means over the updates of the last row; of cloning nats per action
    losses: dict[str, float] = field(default_factory=dict)  # each by its name
    figures: dict[str, Any] = field(default_factory=dict)  # of the last check
    best: Best | None = None
    best_val_loss: float | None = None
    stale_checks: int = 0  # checks since the held-out loss was last better
    stopped_by: str | None = None  # "target", "patience", "bound"; None: still training
    metrics_bytes: int = 0  # length of metrics.jsonl that belongs to this state
    # What a resumed run must share with this one, besides its configuration.
    data: str = ""  # DataFacts.digest
    seen: dict[str, Any] = field(default_factory=dict)  # DataFacts.figures
    threads: int = 1
    device: str = "cpu"
    pipeline: str = ""  # what was given for it, by name; empty: the default pipeline
    code: dict[str, str] = field(default_factory=dict)  # of environment, network, algorithm and pieces, see `code_of`
    opponents: dict[str, str] = field(default_factory=dict)  # fingerprints of who plays the other agents of a game
    changes: list[str] = field(default_factory=list)  # of it while the run was resumed, in words
    init_from: dict[str, Any] = field(default_factory=dict)  # the run that it began with (`Start.told`); empty: none

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainState:
        """The state that `asdict` gave. Raises TypeError for other names."""
        best = values["best"]
        return cls(**{**values, "best": None if best is None else Best(**best)})


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A finished run. Figures are of the policy that the run holds; None: not measured."""

    run: str
    updates: int  # made in all
    epochs: float  # passes over the data
    seconds: float  # checks included, reading not
    samples_per_second: float  # steps per second spent in updates
    loss: float | None  # mean over the last updates; of several losses their sum; of cloning nats per action
    val_loss: float | None  # nats per action, on the held-out episodes
    eval_return_mean: float | None  # greedy; the confirmation's where --until-return was met
    eval_return_ci95: float | None
    eval_episodes: int | None
    val_accuracy: float | None  # share of actions guessed right
    val_accuracy_majority: float | None  # the same of always playing the most frequent action of the training steps
    val_mse: float | None  # continuous actions, in the data's units
    policy_update: int  # the update that the policy is from
    stopped_by: str  # "target", "patience", or the bound, "updates" or "epochs"; "dry-run": nothing was written
    episodes: int  # in the data, held-out ones included
    steps: int
    device: str
    threads: int
    steps_left_out: int = 0  # last ones, whose next observation was not recorded
    notes: list[str] = field(default_factory=list)  # what the policy does without: the layout of images, for one
    losses: dict[str, float] = field(default_factory=dict)  # each loss of the algorithm by its name, as `loss`
    rewards_not_finite: dict[str, int] = field(default_factory=dict)  # "nan-in-rewards", "infinite-in-rewards": how many
    chosen: dict[str, Any] = field(default_factory=dict)  # by --top-fraction: episodes, of how many, and their least return
    weights: dict[str, Any] = field(default_factory=dict)  # by source: its weight, steps, and steps of it in an epoch
    val_recall: dict[str, Any] = field(default_factory=dict)  # by action: share of its held-out steps guessed right, or None
    init_from: dict[str, Any] = field(default_factory=dict)  # run, sha256 of its weights, and which modules are from there

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; what was not asked for is left out."""
        asked = ("chosen", "weights", "val_recall", "init_from")
        return {name: value for name, value in asdict(self).items() if value or name not in asked}


def check_same_run(stored: TrainState, wanted: TrainState, allow_changes: bool, where: str) -> None:
    """Raise BadConfig unless a run with the state `stored` can continue as `wanted`: same data, pipeline, device, opponents in
    a game, and code.

    Changes of the code that are allowed are added to `stored`.
    """
    problems = []
    if stored.data != wanted.data and stored.pipeline == wanted.pipeline:  # which decides what the digest is of
        problems.append(f"the data differs: {data_difference(stored.seen, wanted.seen)}")
    for name, text in (("pipeline", "the learner pipeline"), ("device", "the device")):
        one, other = getattr(stored, name), getattr(wanted, name)
        if one != other:
            problems.append(f"{text} differs: the run has {one or 'the default'}, this call {other or 'the default'}")
    problems += [
        f"the policy of agent {agent} differs: it is not the one that the run was checked beside"
        for agent in {**stored.opponents, **wanted.opponents}
        if stored.opponents.get(agent) != wanted.opponents.get(agent)
    ]
    fix = "resume with what the run was started with, train again with --overwrite"
    stored.changes += allowed_changes(stored.code, wanted.code, allow_changes, where=where, fix=fix, others=problems)
    stored.code = wanted.code


def describe_policy(data: TrainingData, config: BCConfig, played_in: EnvironmentSpec | None = None) -> dict[str, Any]:
    """policy.json: what `load_policy` needs besides the weights and what connector pieces learned. `played_in`: for checks.

    Raises BadConfig for a pipeline file with options that JSON does not have.
    """
    name = config.network["name"]
    options = {key: value for key, value in config.network_options.items() if key != "dropout"}  # none of a policy that plays
    package = network_package(name)
    of_encoder = encoder_package(str(options.get("encoder", NATURE)))
    told: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "observation_space": space_to_json(data.observation_space),
        "action_space": space_to_json(data.action_space),
        "action_scale": data.action_scale,
        NETWORK: {"name": name, **options},
        **({} if package is None else {"package": package}),
        **({} if of_encoder is None else {ENCODER_PACKAGE: of_encoder}),
        **described_form(data.learner.policy.action_head),
        "environment": config.env,
    }
    if data.meanings != NO_MEANINGS:
        told[MEANINGS] = data.meanings.as_json()
    known = {one.id: one for one in (data.recorded_in, played_in) if one is not None}  # the latter in place of the former
    if known:
        kept = filter(None, map(Environment.of, known.values()))
        told[ENVIRONMENTS] = [{**one.as_json(), WRAPPERS: list(one.wrappers)} for one in kept]
    if data.facts.module not in (None, DEFAULT_MODULE_ID):
        told["module"] = data.facts.module  # whose episodes it learned from, for people: a run holds one policy
    if data.trained is None:
        return told
    return told | {GIVEN_SPACE: space_to_json(data.spaces[0]), "pipeline": data.trained.to_json()}
