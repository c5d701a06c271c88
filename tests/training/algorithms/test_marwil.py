"""MARWIL: its losses are RLlib's, it learns from returns, and with beta 0 it is behaviour cloning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from rllib_answers import Answers, asked_nightly
from signal_at import signal_at

from offline_cli.connectors.learner.returns import discounted, factors
from offline_cli.errors import Interrupted
from offline_cli.modules.network import Mlp
from offline_cli.spaces import Space
from offline_cli.training.algorithms.algorithm import Task, algorithm_kind, cloning_scores
from offline_cli.training.config import BCConfig, filled
from offline_cli.training.learner import Learner, Setup
from offline_cli.training.train import train_bc
from offline_cli.training.training_data import load_data
from offline_cli.trees import Tree

Write = Callable[..., Path]
Make = Callable[..., Any]
BOX = spaces.Box(-9.0, 9.0, (3,), np.float32)
ROWS = 12
ACTIONS: dict[str, Space] = {
    "discrete": spaces.Discrete(4),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "multi_discrete": spaces.MultiDiscrete([2, 3, 4]),
    "nested": spaces.Dict(
        {"grip": spaces.Discrete(3), "arm": spaces.Tuple((spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(2)))}
    ),
}


def marwil(actions: Space, **options: Any) -> Learner:
    """A small learner whose weights follow from no version of torch."""
    algorithm = algorithm_kind("marwil")(
        {k: v for k, v in filled("algorithm", {"name": "marwil", **options}).items() if k != "name"}
    )
    learner = Learner.of(algorithm, Task(BOX, actions, "normalized", Mlp({"hidden": [5], "activation": "tanh"})))
    rng = np.random.default_rng(3)
    with torch.no_grad():
        for _, parameter in sorted(learner.whole.named_parameters()):
            parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape) / 2))
    return learner


def drawn(space: Space, rng: np.random.Generator) -> Tree:
    """(ROWS, ...) of actions in the units of networks."""
    match space:
        case spaces.Box():
            return torch.from_numpy(rng.normal(size=(ROWS, *space.shape)).astype(np.float32))
        case spaces.Discrete():
            return torch.from_numpy(rng.integers(0, space.n, ROWS))
        case spaces.MultiDiscrete():
            return torch.from_numpy(rng.integers(0, space.nvec, (ROWS, *space.shape)))
        case spaces.Dict():
            return {name: drawn(part, rng) for name, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(drawn(part, rng) for part in space.spaces)
    raise AssertionError(space)


def batch_of(space: Space, *, left_out: int = 0) -> dict[str, Any]:
    """Rows of which the last `left_out` do not count."""
    rng = np.random.default_rng(5)
    weights = torch.zeros(ROWS)
    weights[: ROWS - left_out] = 1 / (ROWS - left_out)
    return {
        "obs": torch.from_numpy(rng.normal(size=(ROWS, 3)).astype(np.float32)),
        "actions": drawn(space, rng),
        "value_targets": torch.from_numpy((3 * rng.normal(size=ROWS)).astype(np.float32)),
        "weights": weights,
    }


def gradients(learner: Learner) -> dict[str, NDArray[Any]]:
    named = {f"{name}.{leaf}": p for name, part in learner.modules.items() for leaf, p in part.named_parameters()}
    return {name: np.zeros(p.shape, np.float32) if p.grad is None else p.grad.numpy() for name, p in named.items()}


def rllibs_answer(learner: Learner, space: Space, batch: dict[str, Any], left_out: int) -> dict[str, Any]:
    """Losses and gradients of RLlib's learner, whose module puts out what ours do."""
    from ray.rllib.algorithms.marwil.torch.marwil_torch_learner import MARWILTorchLearner
    from ray.rllib.core.models.catalog import Catalog

    options = learner.algorithm.options
    policy: Any = learner.modules["policy"]
    distribution: Any = Catalog._get_dist_cls_from_action_space(space, framework="torch")

    def from_logits(inputs: torch.Tensor) -> Any:
        made = distribution.from_logits(inputs)
        if options["bc_logstd_coeff"]:  # RLlib's learner asks for an attribute that its Gaussian does not have
            made.log_std = inputs.chunk(2, -1)[1]
        return made

    module = SimpleNamespace(
        get_train_action_dist_cls=lambda: SimpleNamespace(from_logits=from_logits),
        compute_values=lambda batch, embeddings=None: learner.modules["value"](batch["obs"]),
    )
    told: dict[str, Any] = {}

    def see(name: Any, value: Any = None, **_: Any) -> None:
        told.update(name if isinstance(name, dict) else {name[1]: value})

    averages = {"default_policy": torch.tensor(options["moving_average_sqd_adv_norm_start"])}
    theirs: Any = SimpleNamespace(
        module={"default_policy": SimpleNamespace(unwrapped=lambda: module)},
        config=SimpleNamespace(burnin_len=0),
        metrics=SimpleNamespace(log_value=see, log_dict=lambda told, **_: see(told)),
        moving_avg_sqd_adv_norms_per_module=averages,
    )
    given = {name: part for name, part in batch.items() if name != "weights"}
    if left_out:
        given["loss_mask"] = batch["weights"] > 0
    learner.whole.zero_grad()
    loss = MARWILTorchLearner.compute_loss_for_module(
        theirs,
        module_id="default_policy",
        config=SimpleNamespace(**options),
        batch=given,
        fwd_out=policy.forward_train(batch),
    )
    loss.backward()
    parts = {name: float(told[name].detach()) for name in ("policy_loss", "vf_loss") if name in told}
    average = float(averages["default_policy"])
    return {"loss": float(loss.detach()), **parts, "average": average, "gradients": gradients(learner)}


CASES = [
    *((name, {"beta": 1.0, "moving_average_sqd_adv_norm_update_rate": 0.3}, 0) for name in ACTIONS),
    *((name, {"beta": 0.0}, 0) for name in ACTIONS),
    ("box", {"beta": 0.4, "vf_coeff": 0.3, "moving_average_sqd_adv_norm_start": 7.0, "bc_logstd_coeff": 0.2}, 0),
    ("nested", {"beta": 0.7, "moving_average_sqd_adv_norm_update_rate": 1e-8}, 5),
]


@asked_nightly
@pytest.mark.parametrize(("name", "options", "left_out"), CASES, ids=[f"{n}_{k}" for k, (n, _, _) in enumerate(CASES)])
def test_loss_its_parts_and_all_gradients_are_rllibs(
    answers: Answers, name: str, options: dict[str, Any], left_out: int
) -> None:
    space = ACTIONS[name]
    learner, batch = marwil(space, **options), batch_of(space, left_out=left_out)
    theirs = answers(lambda: rllibs_answer(learner, space, batch, left_out))
    learner.whole.zero_grad()
    (group,) = learner.groups
    losses = group.loss(batch)
    loss = torch.stack([*losses.values()]).sum()
    loss.backward()
    near = {"rel": 1e-5, "abs": 1e-7}
    losses = {part: value.detach() for part, value in losses.items()}
    assert float(loss.detach()) == pytest.approx(theirs["loss"], **near)
    assert float(losses["policy"]) == pytest.approx(theirs["policy_loss"], **near)
    if "vf" in losses:
        assert float(losses["vf"]) == pytest.approx(options.get("vf_coeff", 1.0) * theirs["vf_loss"], **near)
        assert float(learner.modules["value"].squared_norm) == pytest.approx(theirs["average"], **near)  # type: ignore[arg-type]
    for path, mine in gradients(learner).items():
        wanted = theirs["gradients"][path]
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-5 * float(np.abs(wanted).max()), err_msg=path)


def test_the_held_out_loss_is_weighted_as_the_policys_loss_is() -> None:
    space = ACTIONS["discrete"]
    learner, batch = marwil(space, beta=0.5, moving_average_sqd_adv_norm_start=4.0), batch_of(space)
    value, scores = learner.modules["value"], learner.algorithm.scores(learner.modules, batch)
    counts = torch.exp(0.5 * (batch["value_targets"] - value(batch["obs"])) / 2)
    cloned = cloning_scores(learner.modules["policy"], batch)
    torch.testing.assert_close(scores["loss"], cloned["loss"] * counts, rtol=1e-5, atol=1e-6)


# ---- runs ----

SMALL = "hidden = [8]\nbatch_size = 32\nlr = 0.01\nlog_every = 7\ncheckpoint_every = 10\n"
OPTIONS: dict[str, Any] = {"updates": 45, "seed": 4, "device": "cpu"}


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """Writes a configuration of MARWIL with these options, and gives its file."""

    def write(keys: str = SMALL, **options: Any) -> Path:
        file = tmp_path / f"{len(list(tmp_path.glob('*.toml')))}.toml"
        table = "".join(f"{name} = {value}\n" for name, value in options.items())
        file.write_text(f'{keys}[algorithm]\nname = "marwil"\n{table}')
        return file

    return write


def rewarded(make_batch: Make, *, truncated: bool = False, **how: Any) -> Any:
    """Episodes with rewards that differ, all of them truncated or terminated."""
    batch = make_batch(**how)
    rng = np.random.default_rng(8)
    ends = {"terminated": ~batch.truncated if not truncated else batch.truncated, "truncated": batch.truncated | truncated}
    return replace(batch, rewards=rng.normal(size=len(batch.rewards)), **ends)


def saved(run: Path) -> bytes:
    return (run / "policy.safetensors").read_bytes()


@pytest.mark.parametrize("truncated", [False, True])
def test_value_targets_are_returns_to_the_end_and_the_value_of_what_follows_a_truncated_one(
    make_batch: Make, write_dataset: Write, config: Callable[..., Path], truncated: bool
) -> None:
    batch = rewarded(make_batch, truncated=truncated)
    settings = BCConfig(algorithm=filled("algorithm", {"name": "marwil", "gamma": 0.9}))
    data = load_data(str(write_dataset(batch)), settings, Setup.of(settings), on_progress=lambda _: None)
    last = batch.rewards.astype(np.float64)
    with torch.no_grad():
        after = data.learner.modules["value"](torch.from_numpy(batch.obs[batch.obs_starts[1:] - 1])).numpy()
    last[batch.starts[1:] - 1] += 0.9 * after * truncated
    wanted = discounted(last, factors(batch.lengths, 0.9))
    columns: Any = data.train
    np.testing.assert_allclose(columns.columns["value_targets"].numpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("streaming", [False, True])
def test_steps_that_the_recording_leaves_out_are_not_learned_from(
    make_batch: Make, write_dataset: Write, streaming: bool
) -> None:
    batch = rewarded(make_batch)
    mask = np.random.default_rng(2).random(len(batch.rewards)) < 0.7
    data = str(write_dataset(replace(batch, extra={"loss_mask": mask})))
    table = filled("algorithm", {"name": "marwil", "refresh_every": 0})
    settings = BCConfig(algorithm=table, streaming=streaming, memory_limit=16 << 30 if streaming else None)
    held = load_data(data, settings, Setup.of(settings), on_progress=lambda _: None)
    assert len(held.train) == mask.sum()
    held.close()


def test_a_run_with_recomputed_value_targets_resumes_bit_for_bit(
    make_batch: Make, write_dataset: Write, config: Callable[..., Path], tmp_path: Path
) -> None:
    update = 33
    data = write_dataset(rewarded(make_batch, truncated=True))
    file = config(refresh_every=20, lambda_=0.9)
    train_bc(data, tmp_path / "whole", config=file, **OPTIONS)
    with pytest.raises(Interrupted):
        train_bc(data, tmp_path / "cut", config=file, on_progress=signal_at(update), **OPTIONS)
    train_bc(data, tmp_path / "cut", resume=True)
    assert saved(tmp_path / "whole") == saved(tmp_path / "cut")
    train_bc(data, tmp_path / "once", config=config(refresh_every=0, lambda_=0.9), **OPTIONS)
    assert saved(tmp_path / "whole") != saved(tmp_path / "once")
