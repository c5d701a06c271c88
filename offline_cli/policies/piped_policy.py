"""A module between its connector pipelines, as a policy that plays in slots, and which pieces it plays between.

* `PipedPolicy` plays where a user names a pipeline, where a run was trained through one, and where a module carries a state
  from step to step. All others use `Blocks`, which is faster.
* `Pieces`: the pipelines that a user names for a recording, as a plan carries them; a file of the wrong kind is an error. The
  content of the files travels to runner processes, not the pipelines: each process makes its own, and imports the code that the
  user's file names.
* `PlayPieces`, `beside_learner`: which pieces a policy plays between. Pipelines that do not return what the policy takes are an
  error before anything is played.
"""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.module_to_env.default_pipeline import NormalizeAndClipActions
from offline_cli.connectors.piece_makers import Custom, own_pieces
from offline_cli.connectors.pipeline_files import PipelineFile, Setting, parse_pipeline
from offline_cli.connectors.pipeline_spec import (
    Given,
    GivenPipeline,
    PlayPipelines,
    Side,
    TrainedPipeline,
    copied,
    play_pipelines,
    read_given,
)
from offline_cli.connectors.playing import check_lookback
from offline_cli.connectors.slot_player import SlotPlayer
from offline_cli.converting.fitting import misfits
from offline_cli.environments import Environment
from offline_cli.errors import BadConfig, BadData, OfflineCliError, SpaceMismatch
from offline_cli.modules.drawing import chance_size
from offline_cli.modules.rl_module import RLModule
from offline_cli.policies.module_policy import ForwardPass, is_of_floats
from offline_cli.policies.observation_rows import block_rows
from offline_cli.spaces import Space, leaf_spaces

__all__ = ["Document", "Pieces", "PipedPolicy", "PlayPieces", "beside_learner", "read_pieces"]

_log = logging.getLogger(__name__)

FIX = "name the pipeline file that the policy was trained with, and the environment it was trained for, wrapped as it was"


class PipedPolicy:
    """A module in evaluation mode and the two pipelines it plays between, in one environment."""

    def __init__(
        self,
        module: RLModule,
        play: PlayPieces,
        environment: Environment,
        *,
        explore: bool,
        device: torch.device,
        fingerprint: str = "",
        learned: Mapping[str, Any] | None = None,
    ) -> None:
        """For pieces that fit (`PlayPieces.check`). `learned`: states that they begin with. Raises what `PlayPieces.pipelines`
        raises."""
        self.fingerprint = fingerprint
        self.spaces = environment.observation_space, environment.action_space
        self.device = device
        self.pipelines = play.pipelines(environment, device=self.device)
        self._module = module.to(self.device).eval()
        self._explore, self._lookback, self._frozen = explore, play.lookback, play.trained is not None
        self.chance_size = chance_size(module.action_head) if explore else 0
        self.action_scale = self._scale()
        if learned is not None:
            self.go_on_from(learned)

    def _scale(self) -> str:
        """Of the recorded actions: boxes of floats are as the module put them out, and the pipeline says what that means."""
        floats = any(is_of_floats(leaf) for leaf in leaf_spaces(self.spaces[1]).values())
        pieces = self.pipelines.module_to_env.pieces()
        stretched = any(isinstance(piece, NormalizeAndClipActions) and piece.normalize_actions for piece in pieces)
        return "normalized" if floats and stretched else "env"

    def slot_player(self, slots: int, *, block: int | None) -> SlotPlayer:
        """What plays in so many slots. `block`: rows of a forward pass, whose results an episode has in any number of slots;
        None: those of so many slots."""
        return SlotPlayer(
            self._module,
            self.pipelines,
            self.spaces,
            slots=slots,
            explore=self._explore,
            rows=slots if block is None else self._rows(slots, block),
            lookback=self._lookback,
        )

    def _rows(self, slots: int, block: int) -> int:
        """Of a forward pass."""
        seen = self.pipelines.env_to_module.observation_space or self.spaces[0]
        try:
            tried = ForwardPass(self._module, seen, explore=self._explore, device=self.device)
        except Exception:  # noqa: BLE001  no values can be invented for whatever a user's module has for a state
            return 1
        return block_rows(tried, tried.observation_space, slots, block)

    @property
    def piece_names(self) -> dict[str, list[str]]:
        """The names of the pieces on either side."""
        sides = {"env_to_module": self.pipelines.env_to_module, "module_to_env": self.pipelines.module_to_env}
        return {side: [name for name, _ in pipeline.named()] for side, pipeline in sides.items()}

    # ---- what is learned while recording ----

    @property
    def may_learn(self) -> bool:
        """Whether a piece keeps a state that may change; not so for those that a run has brought its state for."""
        beside = [_learns(piece, frozen=self._frozen) for piece in self.pipelines.env_to_module.pieces()]
        return any(beside) or any(_learns(piece, frozen=False) for piece in self.pipelines.module_to_env.pieces())

    def go_on_from(self, learned: Mapping[str, Any]) -> None:
        """Have the pieces begin with what they had learned, by side and name."""
        self.pipelines.env_to_module.set_state(learned.get("env_to_module", {}))
        self.pipelines.module_to_env.set_state(learned.get("module_to_env", {}))


def _learns(piece: ConnectorV2, *, frozen: bool) -> bool:
    """Whether it keeps a state and may change it."""
    kind = type(piece)
    if kind.get_state is ConnectorV2.get_state or (frozen and kind.freeze is not ConnectorV2.freeze):
        return False
    return bool(getattr(piece, "update_stats", True))


@dataclass(frozen=True, slots=True)
class Document:
    """What a pipeline file says."""

    content: Mapping[str, Any]
    where: str  # its path

    def parsed(self) -> PipelineFile:
        """The file, checked. Raises as `parse_pipeline` does."""
        return parse_pipeline(self.content, where=self.where)


@dataclass(frozen=True, slots=True)
class Pieces:
    """What a user gave for the two pipelines, and what goes with them."""

    env_to_module: Document | Custom = None
    module_to_env: Document | Custom = None
    lookback: int | None = None  # steps that pieces can look back on at least; None: the whole episode
    learned: Mapping[str, Any] | None = field(default=None, repr=False)  # states to begin with, of a resumed recording

    def __bool__(self) -> bool:
        """Whether a pipeline was given."""
        return self.env_to_module is not None or self.module_to_env is not None

    def sides(self) -> tuple[Side, Side]:
        """Both, files checked. Raises as `parse_pipeline` does."""
        beside, after = self.env_to_module, self.module_to_env
        return (
            beside.parsed() if isinstance(beside, Document) else beside,
            after.parsed() if isinstance(after, Document) else after,
        )

    def described(self) -> dict[str, Any]:
        """What episodes follow from, as JSON values: files with their content, Python objects by name; empty: nothing given."""
        given = {"env_to_module": self.env_to_module, "module_to_env": self.module_to_env}
        told = {name: _told(side) for name, side in given.items() if side is not None}
        plain: dict[str, Any] = json.loads(json.dumps(told, default=str))  # TOML has dates
        return plain if self.lookback is None else {**plain, "lookback": self.lookback}

    def check_travels(self) -> None:
        """Raise BadConfig for Python objects that cannot be sent to runner processes."""
        try:
            pickle.dumps(self)
        except (pickle.PicklingError, TypeError, AttributeError) as err:
            fix = "a pipeline file, a function of an importable module, or --num-env-runners 0"
            raise BadConfig(f"pieces that no other process can get: {err}", where="pipeline", fix=fix) from err


def _told(side: Document | Custom) -> Any:
    return side.content if isinstance(side, Document) else GivenPipeline(side).name


def read_pieces(env_to_module: Given, module_to_env: Given, lookback: int | None) -> Pieces:
    """What a user gave, files read and checked. Raises StorageNotFound, BadConfig, MissingPackage."""
    beside = read_given(env_to_module, "env_to_module", "learner")
    return Pieces(_document(beside), _document(read_given(module_to_env, "module_to_env")), lookback)


def _document(side: Side) -> Document | Custom:
    return Document(side.document, side.where) if isinstance(side, PipelineFile) else side


@dataclass(frozen=True, slots=True, eq=False)
class PlayPieces:
    """How to make both pipelines, anew for every round of playing: what pieces learn in one round is not in the next."""

    env_to_module: Side = None  # None: what `trained` says
    module_to_env: Side = None  # None: the default pipeline
    trained: TrainedPipeline | None = None  # None: nothing was learned
    lookback: int | None = None  # steps that pieces can look back on at least; None: the whole episode

    def pipelines(self, environment: Environment, *, device: Any = None) -> PlayPipelines:
        """For one environment. Raises what `play_pipelines` raises; BadData for a learned state that pieces cannot take."""
        spaces = environment.observation_space, environment.action_space
        setting = Setting(*spaces, env=environment.singles(1)[0], device=device)
        beside, after = copied(self.env_to_module), copied(self.module_to_env)
        if self.trained is None or not self.trained.state:
            return play_pipelines(setting, trained=self.trained, env_to_module=beside, module_to_env=after)
        try:
            return play_pipelines(setting, trained=self.trained, env_to_module=beside, module_to_env=after)
        except (OfflineCliError, MemoryError, ImportError):
            raise
        except Exception as err:  # a state from a run folder goes to pieces that may be user code
            what = f"what the pieces learned in training cannot be given to them: {err!r}"
            raise BadData(what, where=self.trained.where, fix="train again") from err

    def check(self, environment: Environment, observations: Space, actions: Space, *, where: str) -> None:
        """Raise SpaceMismatch unless a policy over these spaces can play through the pipelines; what `pipelines` raises, too;
        BadConfig for a lookback that is too short for a piece.

        Actions are checked against the environment's only where no pieces of the user's lie between.
        """
        pipelines = self.pipelines(environment)
        check_lookback(pipelines, self.lookback, where=where)
        given = pipelines.env_to_module.observation_space or environment.observation_space
        problems = [
            text.replace("the data has", "the policy takes").replace("the environment", "the env-to-module pipeline gives")
            for text in misfits(observations, given, inferred=False, what="observations")
        ]
        if self.module_to_env is None:
            found = misfits(actions, environment.action_space, inferred=False, what="actions")
            problems += [text.replace("the data", "the policy") for text in found]
        if problems:
            raise SpaceMismatch.of(problems, where=where, fix=FIX)


def beside_learner(pipeline: GivenPipeline, env_to_module: Side) -> PlayPieces:
    """What a policy plays between that learns through `pipeline`, and does not play alone. Raises BadConfig for Python objects
    where `env_to_module` is not given: they may change observations.
    """
    if env_to_module is not None:
        return PlayPieces(env_to_module)
    if isinstance(pipeline.side, PipelineFile):
        _note_learners_alone(pipeline.side)
        return PlayPieces(pipeline.side)
    what = f"which pieces belong beside the environment cannot be determined from Python objects: {pipeline.name}"
    fix = "give env_to_module as well ([] where none belong there), or a pipeline file for both"
    raise BadConfig(what, where="pipeline", fix=fix)


def _note_learners_alone(file: PipelineFile) -> None:
    """Log which pieces of other code are not used beside the environment: if they change observations, they should."""
    ours = set(own_pieces().values())
    others = [entry.label for entry in file.pieces if not entry.signature.takes_as_learner and entry.maker not in ours]
    if others:
        _log.warning(
            "note: for the learner alone: %s of %s; pieces that change observations take as_learner_connector, and play too",
            ", ".join(others),
            file.where,
        )
