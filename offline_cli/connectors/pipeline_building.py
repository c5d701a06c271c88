"""From a checked pipeline file to the pipeline; refuses pieces that cannot be made, or whose spaces do not fit."""

from __future__ import annotations

import functools
import inspect
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offline_cli.connectors.builders import custom_pieces
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.piece_options import AS_LEARNER, SPACES
from offline_cli.connectors.registry import snake
from offline_cli.connectors.what_it_wants import what_it_wants
from offline_cli.errors import BadConfig, MissingPackage, OfflineCliError, SpaceMismatch
from offline_cli.spaces import Space, describe

if TYPE_CHECKING:
    from offline_cli.connectors.common.agent_to_module_mapping import AgentToModuleMapping
    from offline_cli.connectors.pipeline_files import PieceEntry, PipelineFile

__all__ = ["Setting", "assembled"]

MULTI_AGENT = "multi_agent"  # an option of many pieces, which follows from the setting


@dataclass(frozen=True, slots=True)
class Setting:
    """What a pipeline is built for."""

    observation_space: Space
    action_space: Space
    env: Any = None  # the environment that is played, for builders; None: there is none
    device: Any = None  # of tensors; None: the CPU
    num_envs: int = 1
    mapping: AgentToModuleMapping | None = None  # which agent plays with which module; None: a single agent
    action_scale: str | None = None  # "env" | "normalized": of what the policy puts out; None: not known


def assembled(file: PipelineFile, setting: Setting) -> ConnectorPipelineV2:
    """The pipeline. Raises BadConfig listing every piece that cannot be made, and SpaceMismatch for the first misfit."""
    try:
        made = _made(file, setting)
        pipeline = _with_defaults(file, setting, [piece for entry, piece in made if not (entry.before or entry.after)])
        _placed(file, pipeline, [(entry, piece) for entry, piece in made if entry.before or entry.after])
    except SpaceMismatch as err:
        err.where = f"{file.where}, {err.where}"
        raise
    return pipeline


# ---- pieces ----


def _made(file: PipelineFile, setting: Setting) -> list[tuple[PieceEntry, ConnectorV2]]:
    """Each entry's piece or pieces, made in order: some want to know the spaces that those before them lead to."""
    found: list[tuple[PieceEntry, ConnectorV2]] = []
    problems: list[str] = []
    for entry in file.pieces:
        try:
            before = ConnectorPipelineV2(setting.observation_space, setting.action_space, connectors=[p for _, p in found])
            found += [(entry, piece) for piece in _pieces(entry, file, setting, before)]
        except (SpaceMismatch, MissingPackage):
            raise
        except OfflineCliError as err:
            problems.append(f"{entry.label}: {err.what_in_one_line} ({err.fix})")
        except Exception as err:  # noqa: BLE001  a constructor may raise whatever it likes at options that it minds
            problems.append(f"{entry.label}: {what_it_wants(err)}")
    if problems:
        raise BadConfig.of(problems, where=file.where, fix="mend the options of these pieces")
    return found


def _pieces(entry: PieceEntry, file: PipelineFile, setting: Setting, before: ConnectorPipelineV2) -> list[ConnectorV2]:
    given = dict(entry.options)
    if entry.signature.takes_as_learner:
        given[AS_LEARNER] = file.kind == "learner"
    if MULTI_AGENT in entry.signature.options and setting.mapping is not None:
        given.setdefault(MULTI_AGENT, True)
    maker: Any = functools.partial(entry.maker, **given)
    spaces = dict(zip(SPACES, (before.observation_space, before.action_space), strict=True))
    if inspect.isclass(entry.maker):
        maker = _constructed(entry, given, {name: spaces[name] for name in entry.signature.spaces})
    return custom_pieces(
        maker,
        file.kind,
        spaces[SPACES[0]] or setting.observation_space,
        spaces[SPACES[1]] or setting.action_space,
        env=setting.env,
        device=setting.device,
        num_envs=setting.num_envs,
    )


def _constructed(entry: PieceEntry, given: dict[str, Any], spaces: dict[str, Any]) -> Any:
    """The piece. Raises SpaceMismatch where its constructor, given spaces, already finds that they do not fit."""
    try:
        return entry.maker(**given, **spaces)
    except OfflineCliError:
        raise
    except Exception as err:
        if not any(frame.name.startswith("recompute_") for frame in traceback.extract_tb(err.__traceback__)):
            raise
        got = " and ".join(f"{name.split('_')[1]}s of {describe(space)}" for name, space in spaces.items())
        fix = "another order of pieces, or another piece"
        raise SpaceMismatch(f"{entry.label} got {got} ({what_it_wants(err)})", where=entry.label, fix=fix) from err


# ---- the whole ----


def _with_defaults(file: PipelineFile, setting: Setting, pieces: list[ConnectorV2]) -> ConnectorPipelineV2:
    from offline_cli.connectors.env_to_module.default_pipeline import env_to_module_pipeline
    from offline_cli.connectors.learner.default_pipeline import learner_pipeline
    from offline_cli.connectors.module_to_env.default_pipeline import module_to_env_pipeline

    spaces = setting.observation_space, setting.action_space
    if file.kind == "env_to_module":
        return env_to_module_pipeline(
            *spaces,
            custom=pieces,
            mapping=setting.mapping,
            device=setting.device,
            add_default_connectors_to_env_to_module_pipeline=file.defaults,
        )
    if file.kind == "module_to_env":
        normalize, clip = _scaling(file, setting)
        return module_to_env_pipeline(
            *spaces,
            custom=pieces,
            multi_agent=setting.mapping is not None,
            normalize_actions=normalize,
            clip_actions=clip,
            add_default_connectors_to_module_to_env_pipeline=file.defaults,
        )
    return learner_pipeline(
        *spaces,
        custom=pieces,
        mapping=setting.mapping,
        device=setting.device,
        add_default_connectors_to_learner_pipeline=file.defaults,
    )


def _scaling(file: PipelineFile, setting: Setting) -> tuple[bool, bool]:
    """Whether to stretch actions to the bounds, and whether to clip them to those."""
    normalize = setting.action_scale != "env" if file.normalize_actions is None else file.normalize_actions
    return normalize, (not normalize) if file.clip_actions is None else file.clip_actions


def _placed(file: PipelineFile, pipeline: ConnectorPipelineV2, entries: list[tuple[PieceEntry, ConnectorV2]]) -> None:
    """Put pieces before or after others by name. Raises BadConfig with every name that no piece has."""
    problems = []
    for entry, piece in entries:
        names = {snake(name): name for name, _ in pipeline.named()}
        anchor = names.get(snake(entry.before or entry.after or ""))
        if anchor is None:
            problems.append(f"{entry.label}: no piece {entry.before or entry.after!r} among {list(names.values())}")
        elif entry.before:
            pipeline.insert_before(anchor, piece)
        else:
            pipeline.insert_after(anchor, piece)
    if problems:
        raise BadConfig.of(problems, where=file.where, fix="name a piece that the pipeline has")
