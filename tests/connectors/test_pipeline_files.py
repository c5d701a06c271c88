"""Pipeline files: what is in them is built, and what is wrong with them is said, all of it and before any data is read."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from installed_packages import Install

from offline_cli import Columns, SingleAgentEpisode
from offline_cli.connectors.connector_v2 import state_to_bytes
from offline_cli.connectors.piece_makers import Kind
from offline_cli.connectors.pipeline_spec import PipelineSpec, Setting
from offline_cli.errors import BadConfig, SpaceMismatch, StorageNotFound

VECTOR = gym.spaces.Box(-99.0, 99.0, (2,), np.float32)
CHOICES = gym.spaces.Discrete(3)
ARM = gym.spaces.Box(-4.0, 4.0, (2,), np.float32)
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "pipeline.toml"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write


@pytest.fixture
def my_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `my_pieces` in the current folder."""
    code = """
    import gymnasium as gym
    import numpy as np
    from offline_cli import ConnectorV2

    class Plain(ConnectorV2):
        def __init__(self, bound=1.0, **kwargs):
            super().__init__(**kwargs)
            self.bound = bound
        def __call__(self, *, batch, **kwargs):
            return batch

    class Twice(ConnectorV2):
        def __init__(self, input_observation_space, input_action_space, *, as_learner_connector, **kwargs):
            super().__init__(input_observation_space, input_action_space, **kwargs)
            self.seen, self.as_learner = input_observation_space, as_learner_connector
        def recompute_output_observation_space(self, observations, actions):
            assert isinstance(observations, gym.spaces.Box) and len(observations.shape) == 1
            return gym.spaces.Box(-99, 99, (2 * observations.shape[0],), np.float32)
        def __call__(self, *, batch, **kwargs):
            return batch

    class Picky(Plain):
        def __init__(self, *, size, **kwargs):
            super().__init__(**kwargs)
            if size > 3:
                raise ValueError("size is at most 3")

    def build(env, spaces, device, *, bound=7.0):
        return [Plain(bound), Plain(spaces["__env_single__"][0].shape[0])]

    def wrong(env):
        return "nothing"

    number = 3
    """
    (tmp_path / "my_pieces.py").write_text(textwrap.dedent(code), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_pieces", raising=False)


def load(path: Path, *kinds: Kind, action_space: gym.Space[Any] = CHOICES, **more: Any) -> Any:
    return PipelineSpec.from_file(path, *kinds).build(Setting(VECTOR, action_space, **more))


def names(pipeline: Any) -> list[str]:
    return [name for name, _ in pipeline.named()]


def problems(path: Path, *kinds: Kind) -> list[str]:
    with pytest.raises(BadConfig) as caught:
        load(path, *kinds)
    found: list[str] = caught.value.details["problems"]
    return found


# ---- what is built ----


def test_named_pieces_come_first_and_the_default_ones_after_them(write: Write) -> None:
    path = write("""
        kind = "env_to_module"
        [[pieces]]
        name = "frame_stacking"
        num_frames = 4
    """)
    pipeline = load(path)
    assert names(pipeline)[:2] == ["FrameStacking", "AddObservationsFromEpisodesToBatch"]
    episode = SingleAgentEpisode(observation_space=VECTOR, action_space=CHOICES)
    episode.add_env_reset(np.ones(2, np.float32))
    obs = pipeline(episodes=[episode], rl_module=None)[Columns.OBS]
    assert tuple(obs.shape[1:]) == pipeline.observation_space.shape
    assert obs.numel() == 8


def test_a_class_of_the_current_folder_gets_the_spaces_that_come_to_it(write: Write, my_pieces: None) -> None:
    path = write("""
        kind = "env_to_module"
        pieces = [{ use = "my_pieces:Twice" }, { use = "my_pieces:Twice" }, { use = "my_pieces:Plain", bound = 2.5 }]
    """)
    pipeline = load(path)
    assert names(pipeline)[:3] == ["Twice", "Twice_2", "Plain"]
    assert pipeline["Twice_2"].seen.shape == (4,)
    assert pipeline.observation_space.shape == (8,)
    assert pipeline["Plain"].bound == 2.5


def test_a_builder_of_the_current_folder_gets_what_builders_get_and_its_options(write: Write, my_pieces: None) -> None:
    path = write("""
        kind = "env_to_module"
        pieces = [{ use = "my_pieces:build", bound = 1.5 }]
    """)
    pipeline = load(path)
    assert [pipeline["Plain"].bound, pipeline["Plain_2"].bound] == [1.5, 2]


@pytest.mark.parametrize(("scale", "expected"), [("env", (False, True)), ("normalized", (True, False)), (None, (True, False))])
def test_actions_are_stretched_unless_the_policy_gives_the_environments(write: Write, scale: Any, expected: Any) -> None:
    pipeline = load(write('kind = "module_to_env"'), action_space=ARM, action_scale=scale)
    piece = pipeline["NormalizeAndClipActions"]
    assert (piece.normalize_actions, piece.clip_actions) == expected


def test_one_declaration_of_frame_stacking_serves_both_sides(write: Write) -> None:
    path = write("""
        kind = "learner"
        pieces = [{ name = "clip_rewards" }, { name = "mean_std_filter" }, { name = "frame_stacking", num_frames = 4 }]
    """)
    file = PipelineSpec.from_file(path)
    setting = Setting(VECTOR, CHOICES)
    beside = file.beside_environment().build(setting)
    assert names(beside)[:3] == ["MeanStdFilter", "FrameStacking", "AddObservationsFromEpisodesToBatch"]
    assert beside.observation_space == file.build(setting).observation_space


def test_a_learners_file_without_defaults_is_played_between_the_default_pieces(write: Write) -> None:
    listed = ("frame_stacking", "add_observations_from_episodes_to_batch", "batch_individual_items", "numpy_to_tensor")
    pieces = ", ".join(f'{{ name = "{name}"{", num_frames = 2" if name == "frame_stacking" else ""} }}' for name in listed)
    file = PipelineSpec.from_file(write(f'kind = "learner"\ndefaults = false\npieces = [{pieces}]'))
    beside = names(file.beside_environment().build(Setting(VECTOR, CHOICES)))
    assert beside == ["FrameStacking", *names(load(write('kind = "env_to_module"')))]


# ---- what is refused ----


def test_all_mistakes_of_a_file_are_said_at_once_with_what_was_nearly_meant(write: Write) -> None:
    path = write("""
        kind = "lerner"
        defalts = true
        [[pieces]]
        name = "frame_staking"
        [[pieces]]
        name = "frame_stacking"
        num_frame = 4
        [[pieces]]
        num_frames = 4
        [[pieces]]
        use = "no_such_module_anywhere:Piece"
    """)
    said = "\n".join(problems(path))
    assert "'defalts'" in said
    assert "kind: " in said
    assert "'lerner'" in said
    assert "pieces[0] (frame_staking): no piece 'frame_staking' (did you mean frame_stacking?" in said
    assert "pieces[1] (frame_stacking): unknown option 'num_frame', did you mean 'num_frames'?" in said
    assert 'pieces[2]: give either name = "..." or use = ' in said
    assert "pieces[3] (no_such_module_anywhere:Piece): there is no module 'no_such_module_anywhere'" in said
    assert len(said.splitlines()) == 6


def test_pieces_of_another_kind_of_pipeline_are_refused(write: Write) -> None:
    path = write("""
        kind = "env_to_module"
        pieces = [{ name = "get_actions" }, { name = "clip_rewards" }]
    """)
    said = problems(path)
    assert said[0].endswith("belongs to pipelines of kind 'module_to_env', but this pipeline is of kind 'env_to_module'")
    assert said[1].endswith("belongs to pipelines of kind 'learner', but this pipeline is of kind 'env_to_module'")


def test_a_file_of_another_kind_than_is_needed_is_refused(write: Write) -> None:
    assert problems(write('kind = "learner"'), "env_to_module") == [
        "kind: this pipeline is of kind 'learner', but 'env_to_module' is needed here"
    ]


def test_shapes_that_do_not_fit_name_the_piece_what_it_got_and_what_it_wanted(write: Write) -> None:
    path = write('kind = "env_to_module"\npieces = [{ name = "frame_stacking", num_frames = 2 }, { name = "one_hot" }]')
    with pytest.raises(SpaceMismatch) as caught:
        load(path)
    assert "OneHot got observations of Box(" in caught.value.what
    assert "needs Discrete or MultiDiscrete" in caught.value.what
    assert caught.value.where == f"{path}, piece OneHot"


def test_files_that_are_not_there_or_no_toml_are_refused(write: Write, tmp_path: Path) -> None:
    with pytest.raises(StorageNotFound):
        load(tmp_path / "nothing.toml")
    with pytest.raises(BadConfig) as caught:
        load(write("kind ="))
    assert caught.value.where.startswith(str(tmp_path / "pipeline.toml"))


# ---- whose code runs ----


def test_a_document_that_the_user_has_not_named_imports_no_code(my_pieces: None) -> None:
    document = {"kind": "learner", "pieces": [{"use": "my_pieces:Plain"}, {"name": "frame_stacking"}]}
    with pytest.raises(BadConfig, match="my_pieces:Plain"):
        PipelineSpec.from_document(document, where="run/pipeline.toml", plugins=())
    assert "my_pieces" not in sys.modules
    own = {"kind": "learner", "pieces": [{"name": "frame_stacking"}]}
    assert len(PipelineSpec.from_document(own, where="run/pipeline.toml", plugins=()).entries()) == 1


def test_pieces_of_installed_packages_go_by_the_name_they_registered(write: Write, my_pieces: None, install: Install) -> None:
    install("their-pieces", {"connectors": {"theirs": "my_pieces:Plain", "broken": "a_lost_package:Plain"}})
    pipeline = load(write('kind = "learner"\npieces = [{ name = "theirs", bound = 3.0 }]'))
    assert pipeline["Plain"].bound == 3.0


# ---- specifications ----


def test_a_run_folder_describes_its_pipeline_so_that_the_same_one_is_built_again(write: Write) -> None:
    given = PipelineSpec.of(write('kind = "learner"\npieces = [{ name = "mean_std_filter" }]'), "learner")
    pipeline = given.build(Setting(VECTOR, CHOICES))
    moments = {"count": 9, "mean": np.array([0.1, 0.2]), "m2": np.array([4.0, 5.0])}
    pipeline["MeanStdFilter"].set_state({"obs": moments})
    trained = given.trained(pipeline)
    told = json.loads(json.dumps(trained.to_json()))
    back = PipelineSpec.from_json(told, trained.state, where="RUN/policy.json", plugins=())
    assert (back.document, back.names, back.to_json()) == (given.document, tuple(names(pipeline)), told)
    assert back.state_bytes() == state_to_bytes(pipeline.get_state(), where="test")
    assert names(back.build(Setting(VECTOR, CHOICES))) == names(pipeline)
