"""`evaluate --video`, and gates for single agents."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from offline_cli import evaluate
from offline_cli.errors import BadConfig, MissingPackage, TargetNotMet, UsageError
from offline_cli.policies.policy import Purpose, reset_seed
from offline_cli.storage.locations import Location, open_location

WALKERS = "python:agent_games:Walkers"
PLAYED: dict[str, Any] = {"env": "CartPole-v1", "episodes": 4, "device": "cpu"}


def imageio(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """A stand-in for the package, which keeps what it is given, by file."""
    films: dict[str, list[Any]] = {}

    def write(path: Path, frames: list[Any], **_: Any) -> None:
        films[path.name] = frames
        path.write_bytes(b"film")

    module: Any = SimpleNamespace(mimwrite=write)
    package = ModuleType("imageio")
    monkeypatch.setitem(sys.modules, "imageio", package)
    monkeypatch.setitem(sys.modules, "imageio.v2", module)
    return films


def test_films_show_the_episodes_that_were_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame", reason="CartPole renders with pygame")
    films = imageio(monkeypatch)
    found = evaluate("random", **PLAYED, video=str(tmp_path / "films"), video_episodes=(0, 3))
    assert [Path(file).stem for file in found.videos] == ["episode-0", "episode-3"]
    for number, frames in zip((0, 3), films.values(), strict=True):
        alone = evaluate("random", **{**PLAYED, "episodes": number + 1})
        lengths = [one.shape for one in frames]
        assert len(set(lengths)) == 1
        assert lengths[0][-1] == 3
        assert 1 < len(frames) <= 1 + alone.return_mean * (number + 1)
    assert reset_seed(0, 3, Purpose.EVALUATE) != reset_seed(0, 0, Purpose.EVALUATE)


def test_films_go_to_a_url(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame", reason="CartPole renders with pygame")
    imageio(monkeypatch)
    (film,) = evaluate("random", **{**PLAYED, "episodes": 1}, video=place.url).videos
    assert film == place.join(film.rpartition("/")[2]).url
    assert open_location(film).read_bytes() == b"film"


def test_without_the_package_the_line_to_install_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio", None)
    monkeypatch.setitem(sys.modules, "imageio.v2", None)
    with pytest.raises(MissingPackage) as caught:
        evaluate("random", **PLAYED, video=str(tmp_path / "films"))
    assert (caught.value.exit_code, "offline-cli[video]" in caught.value.fix) == (6, True)
    assert not (tmp_path / "films").exists()


def test_an_episode_that_is_not_played_is_not_filmed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="episode 4"):
        evaluate("random", **PLAYED, video=str(tmp_path / "films"), video_episodes=(1, 4))


def gated(*gates: Any) -> Any:
    return evaluate("random", env=WALKERS, episodes=3, device="cpu", min_return=gates)


def test_a_gate_for_one_agent_looks_at_its_own_returns() -> None:
    returns = gated().return_by_agent
    low, high = (f"left={returns['left']['return_mean'] + by}" for by in (-1, 1))
    assert gated(low).return_by_agent == returns
    with pytest.raises(TargetNotMet, match="left") as caught:
        gated(low, high, "-1e9")
    assert caught.value.exit_code == 7
    assert caught.value.details["return_by_agent"]["left"]["return_mean"] == pytest.approx(returns["left"]["return_mean"])


@pytest.mark.parametrize(("gate", "error"), [("nobody=3", BadConfig), ("left=much", UsageError)])
def test_a_gate_that_says_nothing_is_refused_before_anything_is_played(gate: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        gated(gate)
