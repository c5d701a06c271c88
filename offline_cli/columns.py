"""Column names (source: the documentation of `ray.rllib.core.columns.Columns`)."""

from __future__ import annotations

from typing import Final


class Columns:
    """Column names of batches and tables, spelled as in RLlib."""

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

    # Only in tables.
    ITEM: Final = "item"  # one packed episode
    RESET_INFOS: Final = "reset_infos"
    SOURCE_ID: Final = "source_id"
    LENGTH: Final = "length"
    RETURN: Final = "return"
    TERMINATED: Final = "terminated"
    TRUNCATED: Final = "truncated"
    DONES: Final = "dones"  # legacy gym: read, never written
    FINAL_OBS_ASSUMED: Final = "final_obs_assumed"  # the last observation was not recorded: it repeats the previous one


STATE_COLUMNS: Final = (Columns.STATE_IN, Columns.STATE_OUT)
"""Extra model outputs that hold the state of recurrent modules; dedicated connector pieces add them to train batches."""

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
"""Columns of every `columns` dataset, in order; extra model outputs and infos follow."""

CUSTOM_COLUMNS: Final = (Columns.SOURCE_ID, Columns.FINAL_OBS_ASSUMED)
"""Custom data of an episode that `columns` datasets keep."""
