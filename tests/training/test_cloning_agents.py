"""Clones of scripted experts play their games as well as the experts: with one policy for all agents, and with several."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from offline_cli.playing.evaluate import evaluate
from offline_cli.playing.slots import Purpose, episode_seed
from offline_cli.recording.record import record
from offline_cli.training.several_modules import ModulesResult
from offline_cli.training.train import train

pytestmark = pytest.mark.nightly
GAMES = {  # experts, games recorded, updates
    "Walkers": ("walk", 400, 1500),  # one agent comes late, and each leaves when it has arrived
    "Heap": ("leave_four", 200, 400),  # in turns
}
PLAYED = 200


def experts_returns(name: str) -> dict[str, list[float]]:
    """Of each agent, in PettingZoo's own loop over the games that `evaluate` plays."""
    module = importlib.import_module("agent_games")
    made, expert = getattr(module, name)(), getattr(module, GAMES[name][0])
    found: dict[str, list[float]] = {}
    for game in range(PLAYED):
        seed, sums = episode_seed(0, Purpose.EVALUATE, game), dict[str, float]()
        if name == "Heap":
            made.reset(seed=seed)
            for agent in made.agent_iter():
                observation, reward, terminated, truncated, _ = made.last()
                sums[agent] = sums.get(agent, 0.0) + reward
                made.step(None if terminated or truncated else expert(observation))
        else:
            seen, _ = made.reset(seed=seed)
            while made.agents:
                seen, rewards, *_ = made.step({agent: expert(seen[agent]) for agent in made.agents})
                sums = {agent: sums.get(agent, 0.0) + rewards.get(agent, 0.0) for agent in {**sums, **rewards}}
        for agent, value in sums.items():
            found.setdefault(agent, []).append(value)
    return found


@pytest.mark.parametrize("module_of", [["*=shared"], ["*=one", "left=other", "second=other"]], ids=["shared", "two"])
@pytest.mark.parametrize("name", GAMES)
def test_clones_score_within_five_percent_of_the_experts(name: str, module_of: list[str], tmp_path: Path) -> None:
    expert, games, updates = GAMES[name]
    env = f"python:agent_games:{name}"
    record(env, tmp_path / "D", policy=f"python:agent_games:{expert}", episodes=games, device="cpu")
    wanted = experts_returns(name)
    module_of = [text for text in module_of if text.partition("=")[0] in ("*", *wanted)]
    options: dict[str, Any] = {"hidden": (64, 64), "batch_size": 256, "lr": 3e-3, "updates": updates, "device": "cpu"}
    result = train(tmp_path / "D", tmp_path / "run", module_of=module_of, **options)
    assert isinstance(result, ModulesResult)
    assert len(result.modules) == len(module_of)
    found = evaluate(tmp_path / "run", env=env, episodes=PLAYED, device="cpu")
    experts = sum(sum(values) for values in wanted.values()) / PLAYED
    assert found.return_mean >= experts - 0.05 * abs(experts)
    assert {agent: one["games"] for agent, one in found.return_by_agent.items()} == {
        agent: len(values) for agent, values in wanted.items()
    }
    for agent, values in wanted.items():
        mean = sum(values) / len(values)
        assert found.return_by_agent[agent]["return_mean"] == pytest.approx(mean, abs=max(0.5, 0.05 * abs(mean)))
