"""The names of all columns, each once (source: `ray.rllib.core.columns.Columns` as documented), and of elements of vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["CUSTOM_COLUMNS", "EPISODE_COLUMNS", "STEP_COLUMNS", "Columns", "ElementNames", "mappings_in"]


class Columns:
    """Column names of batches and of tables, RLlib's spelling throughout."""

    OBS: Final = "obs"
    NEXT_OBS: Final = "new_obs"
    ACTIONS: Final = "actions"
    ACTIONS_FOR_ENV: Final = "actions_for_env"
    REWARDS: Final = "rewards"
    TERMINATEDS: Final = "terminateds"
    TRUNCATEDS: Final = "truncateds"
    INFOS: Final = "infos"
    EPS_ID: Final = "eps_id"
    AGENT_ID: Final = "agent_id"
    MODULE_ID: Final = "module_id"
    T: Final = "t"
    STATE_IN: Final = "state_in"
    STATE_OUT: Final = "state_out"
    NEXT_STATE_IN: Final = "next_state_in"
    SEQ_LENS: Final = "seq_lens"
    LOSS_MASK: Final = "loss_mask"
    ACTION_DIST: Final = "action_dist"
    ACTION_DIST_INPUTS: Final = "action_dist_inputs"
    ACTION_PROB: Final = "action_prob"
    ACTION_LOGP: Final = "action_logp"
    VF_PREDS: Final = "vf_preds"
    VALUES_BOOTSTRAPPED: Final = "values_bootstrapped"
    ADVANTAGES: Final = "advantages"
    VALUE_TARGETS: Final = "value_targets"
    RETURNS_TO_GO: Final = "returns_to_go"
    N_STEP: Final = "n_step"
    EMBEDDINGS: Final = "embeddings"

    # Only in tables: one packed episode, and what only a table needs.
    ITEM: Final = "item"
    RESET_INFOS: Final = "reset_infos"
    SOURCE_ID: Final = "source_id"
    LENGTH: Final = "length"
    RETURN: Final = "return"
    TERMINATED: Final = "terminated"
    TRUNCATED: Final = "truncated"
    DONES: Final = "dones"  # legacy gym: read, never written
    FINAL_OBS_ASSUMED: Final = "final_obs_assumed"  # nobody recorded the last observation: it repeats the one before


EPISODE_COLUMNS: Final = (Columns.ITEM, Columns.EPS_ID, Columns.LENGTH, Columns.RETURN, Columns.TERMINATED, Columns.TRUNCATED)
"""Columns of the `episodes` format, in order."""

STATE_COLUMNS: Final = (Columns.STATE_IN, Columns.STATE_OUT)
"""Extra model outputs that are states of modules with a memory: pieces of their own put them into train batches."""

STEP_COLUMNS: Final = (
    Columns.EPS_ID,
    Columns.AGENT_ID,
    Columns.MODULE_ID,
    Columns.T,
    Columns.OBS,
    Columns.ACTIONS,
    Columns.REWARDS,
    Columns.NEXT_OBS,
    Columns.TERMINATEDS,
    Columns.TRUNCATEDS,
)
"""Columns that every `columns` dataset has, in order; extra model outputs and infos follow."""

CUSTOM_COLUMNS: Final = (Columns.SOURCE_ID, Columns.FINAL_OBS_ASSUMED)
"""What columns keep of an episode's custom data."""


PATHS: Final = {"observations": Columns.OBS}  # what messages call a column


@dataclass(frozen=True, slots=True)
class ElementNames:
    """Names of the elements of vectors that were stacked from columns of a table."""

    by_path: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of the leaf: `obs`, `obs.arm`

    @classmethod
    def of(cls, mappings: Sequence[Any]) -> ElementNames:
        """As mapping documents say; where they differ, or one is none (a manifest may hold anything), there are no names."""
        lists = [_lists_of(document) for document in mappings]
        return cls(lists[0] if lists and all(one == lists[0] for one in lists) else {})

    def named(self, path: str, at: Sequence[int], shape: Sequence[int]) -> str:
        """The element at index `at` of a leaf whose values have `shape`: the name of its column, else `obs[1]`."""
        names = self.by_path.get(path, ())
        if len(at) == 1 and tuple(shape) == (len(names),):
            return names[at[0]]
        return f"{path}[{', '.join(map(str, at))}]" if at else path

    def column(self, path: str, at: Sequence[int], shape: Sequence[int]) -> str:
        """`, column joint_a`: of an element at a path in words, `observations.arm`; empty where it has no name."""
        kind, dot, inner = path.partition(".")
        ours = f"{PATHS.get(kind, kind)}{dot}{inner}"
        name = self.named(ours, at, shape)
        return f", column {name}" if at and ours in self.by_path and not name.startswith(f"{ours}[") else ""


def _lists_of(document: Any) -> dict[str, Sequence[str]]:
    """Their columns by path of ours, of those that are stacked."""
    parts = [document.get(part) for part in ("columns", "extra")] if isinstance(document, Mapping) else []
    every = [item for part in parts if isinstance(part, Mapping) for item in part.items()]
    return {str(path): theirs for path, theirs in every if isinstance(theirs, list) and all(isinstance(n, str) for n in theirs)}


def mappings_in(provenance: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The mappings by which tables were read that a dataset was made of; its provenance may hold anything."""
    said = provenance.get("mappings")
    return tuple(one for one in said if isinstance(one, Mapping)) if isinstance(said, list) else ()
