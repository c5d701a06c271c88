"""Pieces that make columns of a batch: one row for each step, stacked items, agents regrouped by module, arrays as tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby
from typing import Any, ClassVar, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import SharedData, is_filed
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes, Items, TwoSidedPiece
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.multi_agent_episode import MultiAgentEpisode
from offline_cli.episodes.stacking import unstack
from offline_cli.errors import BadPiece
from offline_cli.modules.rl_module import DEFAULT_MODULE_ID, is_multi
from offline_cli.spaces import Space
from offline_cli.trees import Tree, map_leaves

__all__ = [
    "AddObservationsFromEpisodesToBatch",
    "AgentToModuleMapping",
    "BatchIndividualItems",
    "ModuleToAgentUnmapping",
    "NumpyToTensor",
    "StepColumns",
    "TensorToNumpy",
    "as_tensors",
    "stacked",
]


def stacked(entries: Iterable[Any]) -> Tree:
    """One tree of leaves (N, ...) of items and `Items`. Raises ValueError where they do not stack, or there are none."""
    parts: list[Tree] = []
    for already, group in groupby(entries, lambda entry: isinstance(entry, Items)):
        run = list(group)
        parts += [entry.tree for entry in run] if already else [map_leaves(_stack, *run)]
    if not parts:
        raise ValueError("no items")
    return map_leaves(lambda *leaves: np.concatenate(leaves), *parts)  # a copy: what `Items` show may be an episode's own


def _stack(*leaves: Any) -> Any:
    return np.stack(leaves) if isinstance(leaves[0], np.ndarray) else np.array(leaves)


class BatchIndividualItems(ConnectorV2):
    """Stacks the items of each column into arrays (N, ...); stacked columns and `infos` stay as they are.

    With `multi_agent`, that happens to the columns of each module, after AgentToModuleMapping. For a single agent of several
    modules (RLlib's learners have it) the columns end up under the default module's id. Which episode each single item of
    `obs` is from is noted in `shared_data["memorized_map_structure"]` (RLlib's name), for module-to-env.
    """

    whole_arrays = True
    stacks = True

    def __init__(self, *spaces: Space | None, multi_agent: bool = False, **kwargs: Any) -> None:
        self._multi_agent = multi_agent
        super().__init__(*spaces, **kwargs)

    def __call__(self, *, rl_module: Any = None, batch: Batch, shared_data: dict[str, Any] | None = None, **_: Any) -> Batch:
        """The batch. Raises BadPiece, naming the column, where items do not stack."""
        if self._multi_agent:
            by_module = batch.items()
            return {
                name: self._columns(held) if isinstance(held, dict) else self._stacked(name, held) for name, held in by_module
            }
        observations = batch.get(Columns.OBS)
        if shared_data is not None and is_filed(observations):
            entries = [(key[0], item) for key, items in observations.items() for item in items]  # type: ignore[union-attr]
            if not any(isinstance(item, Items) for _, item in entries):  # those are train batches, never taken apart again
                shared_data["memorized_map_structure"] = [id_ for id_, _ in entries]
        if not is_multi(rl_module):
            return self._columns(batch)
        own = {column: held for column, held in batch.items() if column not in rl_module}
        kept = {module_id: part for module_id, part in batch.items() if module_id in rl_module}
        return kept | {DEFAULT_MODULE_ID: kept.get(DEFAULT_MODULE_ID, {}) | self._columns(own)}

    def _columns(self, columns: Batch) -> Batch:
        return {column: self._stacked(column, held) for column, held in columns.items()}

    def _stacked(self, column: str, held: Any) -> Tree:
        entries = [item for items in held.values() for item in items] if is_filed(held) else held
        if not isinstance(entries, list) or column == Columns.INFOS:
            return entries
        try:
            return stacked(entries)
        except ValueError as err:
            raise self.bad(f"column {column!r}: {err}", fix="items of one structure, shape and type in each column") from err


class AgentToModuleMapping(TwoSidedPiece):
    """Regroups `{column: {(episode, agent, module): items}}` as `{module: {column: items}}`; spaces become Dicts by module.

    Agents of one module must have the same spaces, and every module must have an agent.

    Args:
        rl_module_specs: Ids of modules, or anything with `observation_space` and `action_space` (which may be None) by id.
        agent_to_module_mapping_fn: `fn(agent_id, episode)` gives a module's id. Batches follow the episodes' own mapping; this
            one is asked for spaces alone.
        as_learner_connector: All agents' items; otherwise only those of agents that have to act, and whose rows they are is
            noted in `shared_data["memorized_map_structure"]` (RLlib's name) for module-to-env.
    """

    whole_arrays = True

    def __init__(
        self,
        *spaces: Space | None,
        rl_module_specs: Mapping[Any, Any] | Collection[Any],
        agent_to_module_mapping_fn: Callable[..., Any],
        **kwargs: Any,
    ) -> None:
        is_mapping = isinstance(rl_module_specs, Mapping)
        self._specs: Mapping[Any, Any] = rl_module_specs if is_mapping else dict.fromkeys(rl_module_specs)  # type: ignore[assignment]
        self._mapping_fn = agent_to_module_mapping_fn
        super().__init__(*spaces, **kwargs)

    # ---- spaces ----

    def recompute_output_observation_space(self, input_observation_space: Space, input_action_space: Space) -> Space:
        """A Dict by module id. Raises SpaceMismatch where a module's space cannot be determined."""
        return self._by_module(input_observation_space, "observation_space")

    def recompute_output_action_space(self, input_observation_space: Space, input_action_space: Space) -> Space:
        """A Dict by module id. Raises SpaceMismatch where a module's space cannot be determined."""
        return self._by_module(input_action_space, "action_space")

    def _by_module(self, space: Space, which: str) -> Space:
        if not isinstance(space, spaces.Dict):
            raise self.misfit(f"{which} {space}", "a Dict by agent", fix="leave the piece out where there is a single agent")
        if set(space.spaces) == set(self._specs):
            return space
        return spaces.Dict({module_id: self._of_module(module_id, space, which) for module_id in self._specs})

    def _of_module(self, module_id: Any, by_agent: spaces.Dict, which: str) -> Space:
        declared: Space | None = getattr(self._specs[module_id], which, None)
        if declared is not None:
            return declared
        every = list(by_agent.spaces.values())
        if every and all(space == every[0] for space in every):
            return every[0]
        agents = [agent for agent in by_agent.spaces if self._mapping_fn(agent, MultiAgentEpisode()) == module_id]
        if not agents:
            what = f"no agent among {list(by_agent.spaces)} that is mapped to module {module_id!r}"
            raise self.misfit(what, f"an {which} for it", fix=f"give the module's {which} in rl_module_specs")
        if any(by_agent[agent] != by_agent[agents[0]] for agent in agents):
            what = f"agents {agents} of module {module_id!r} with different spaces"
            raise self.misfit(what, f"one {which}", fix="map them to modules of their own")
        return by_agent[agents[0]]

    # ---- batches ----

    def __call__(
        self, *, rl_module: Any = None, batch: Batch, episodes: Episodes, shared_data: SharedData = None, **_: Any
    ) -> Batch:
        """The batch by module. Raises BadPiece for a column that is not filed by agent."""
        whole: Any = episodes  # multi-agent ones: others have no keys of three parts
        acting = None if self._as_learner_connector else {(e.id_, agent) for e in whole for agent in e.get_agents_to_act()}
        by_module: Batch = {}
        first: dict[Any, list[tuple[Any, Any]]] | None = None  # (episode, agent) of each row of the first column, by module
        for column, held in batch.items():
            if rl_module is not None and column in rl_module:  # a custom piece has filed something by module already
                by_module.setdefault(column, {}).update(held)
                continue
            if held and not (is_filed(held) and all(len(key) == 3 for key in held)):
                fix = "add items with add_batch_item(..., single_agent_episode)"
                raise self.bad(f"column {column!r} is not filed by (episode, agent, module)", fix=fix)
            rows: dict[Any, list[tuple[Any, Any]]] = {}
            for (episode_id, agent_id, module_id), items in held.items():
                if acting is None or (episode_id, agent_id) in acting:
                    by_module.setdefault(module_id, {}).setdefault(column, []).extend(items)
                    rows.setdefault(module_id, []).extend([(episode_id, agent_id)] * len(items))
            first = rows if first is None else first
        if shared_data is not None and not self._as_learner_connector:
            shared_data["memorized_map_structure"] = first or {}
        return by_module


class ModuleToAgentUnmapping(ConnectorV2):
    """Regroups `{module: {column: {key: items}}}` as `{column: {key: items}}`; keys are (episode id, agent id, module id)."""

    whole_arrays = True

    def __call__(self, *, batch: Batch, **_: Any) -> Batch:
        """The batch by column. Raises BadPiece for a column that UnBatchToIndividualItems has not taken apart."""
        columns: Batch = {}
        for module_id, part in batch.items():
            for column, filed in part.items():
                if filed and not is_filed(filed):
                    what = f"column {column!r} of module {module_id!r} is not filed by agent"
                    raise self.bad(what, fix="put UnBatchToIndividualItems before it")
                columns.setdefault(column, {}).update(filed)
        return columns


# ---- rows of steps, arrays, tensors ----


CPU: Final = torch.device("cpu")


class StepColumns(ConnectorV2):
    """Adds columns with a row for each step of the episodes; those that are in the batch stay. Subclasses say once how arrays
    give these rows."""

    whole_arrays = True
    column: ClassVar[str] = ""  # with it in the batch there is nothing to do

    @abstractmethod
    def columns(self, episodes: EpisodeBatch, batch: Batch) -> dict[str, Tree]:
        """Leaves (N, ...) that nobody else holds, or lists of N items, by name of column, for N steps."""

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch with these columns."""
        if self.column in batch:
            return batch
        if isinstance(episodes, EpisodeBatch):
            return batch | {name: rows for name, rows in self.columns(episodes, batch).items() if name not in batch}
        there = frozenset(batch)
        for episode in self.single_agent_episode_iterator(episodes, False):
            found = self.columns(EpisodeBatch.from_episodes([episode]), batch) if len(episode) else {}
            for name, rows in found.items():
                if name not in there:
                    items = rows if episode.is_numpy or isinstance(rows, list) else unstack(rows)
                    self.add_n_batch_items(batch, name, items, len(episode), episode)
        return batch


class AddObservationsFromEpisodesToBatch(StepColumns, TwoSidedPiece):
    """Adds `obs`: the T observations acted on in a learner pipeline, the last one of each episode elsewhere."""

    column = Columns.OBS

    def columns(self, episodes: EpisodeBatch, batch: Batch) -> dict[str, Tree]:
        return {Columns.OBS: episodes.acted_obs()}

    def __call__(self, *, batch: Batch, episodes: Episodes, **call: Any) -> Batch:
        """`obs` with N rows in a learner pipeline, one per episode otherwise."""
        if self._as_learner_connector or Columns.OBS in batch:
            return super().__call__(batch=batch, episodes=episodes, **call)
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, Columns.OBS, episode.get_observations(-1), episode)
        return batch


class NumpyToTensor(ConnectorV2):
    """Turns arrays into tensors on `device` (None: the CPU), float64 into float32; `infos` stay lists.

    Memory is shared with the array where nothing has to change and the array may be written to. Unsigned integers above
    uint8, which torch can hardly count with, become int64. `pin_memory` is for a device that is not the CPU.
    """

    whole_arrays = True

    def __init__(
        self, *spaces: Space | None, pin_memory: bool = False, device: str | torch.device | None = "cpu", **kwargs: Any
    ) -> None:
        self._device = torch.device("cpu" if device is None else device)
        self._pin = pin_memory and self._device.type != "cpu"
        super().__init__(*spaces, **kwargs)

    def __call__(self, *, rl_module: Any = None, batch: Batch, **_: Any) -> Batch:
        """The batch with tensors; raises BadPiece, naming the column, for arrays of text or objects."""
        by_module = is_multi(rl_module) and bool(batch) and all(name in rl_module for name in batch)
        for part in batch.values() if by_module else [batch]:
            for column, tree in part.items():
                if column != Columns.INFOS:
                    part[column] = as_tensors(column, tree, self._device, pin=self._pin)
        return batch


def as_tensors(column: str, tree: Tree, device: torch.device = CPU, *, pin: bool = False) -> Tree:
    """The leaves of a column as tensors on `device`; `pin`: through pinned memory. Raises BadPiece for text and objects."""

    def tensor(leaf: Any) -> Tensor | None:
        if leaf is None:
            return None
        found = leaf if isinstance(leaf, Tensor) else _from_array(np.asarray(leaf, order="C"))
        found = found.pin_memory() if pin else found
        return found if found.device == device else found.to(device, non_blocking=pin)

    try:
        return map_leaves(tensor, tree)
    except TypeError as err:
        fix = "leave the column out, or encode it as numbers"
        raise BadPiece(f"column {column!r}: {err}", where="NumpyToTensor", fix=fix) from err


def _from_array(array: np.ndarray[Any, Any]) -> Tensor:
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind not in "biuf":
        raise TypeError(f"no tensor type for {array.dtype}")
    if kind == "f" and size > 4:
        array = array.astype(np.float32)
    elif kind == "u" and size > 1:
        array = array.astype(np.int64)
    elif not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(array if array.flags.writeable else array.copy())


class TensorToNumpy(ConnectorV2):
    """Turns tensors into arrays; arrays of CPU tensors share their memory."""

    whole_arrays = True

    def __call__(self, *, batch: Batch, **_: Any) -> Batch:
        """The batch with arrays, in new dicts, lists and tuples."""
        converted: Batch = _converted(batch)
        return converted


def _converted(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    if isinstance(value, dict):
        return {key: _converted(part) for key, part in value.items()}
    return type(value)(map(_converted, value)) if isinstance(value, (list, tuple)) else value
