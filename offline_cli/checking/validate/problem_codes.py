"""Every problem that `validate` can report: its code, how bad it is, what it means and what to do.

Severities:

* `error`: some command would refuse the data, or would learn from numbers that nobody recorded.
* `warning`: reading repairs or tolerates it, and the result may not be what the user thinks it is.
* `note`: worth knowing; no dataset is worse for it.

docs/validate.md is this table for people, and a test keeps the two equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["CODES", "SEVERITIES", "Code", "Severity"]

Severity = Literal["error", "warning", "note"]

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")
"""Worst first."""

AGAIN: Final = "write it again from its source"
DROP: Final = "restore it from a copy, or leave it out: offline-cli repair --drop-broken"


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of problem."""

    severity: Severity  # the usual one
    unit: str  # one of what is counted
    meaning: str  # after a number and its unit: "3 episodes: ..."
    fix: str
    otherwise: str = ""  # when a check says another severity


CODES: Final[dict[str, Code]] = {
    # ---- places and files ----
    "unreadable-source": Code("error", "source", "cannot be opened as recordings", "name one format with --from"),
    "no-episodes": Code("error", "source", "without an episode", "check that the recording wrote any steps"),
    "unreadable-file": Code("error", "file", "broken off or damaged", "copy or write the file again"),
    "unreadable-row": Code("error", "row", "cannot be read", "correct it, or convert with --on-error quarantine"),
    "length-mismatch": Code(
        "error",
        "row",
        "parts of different lengths (T actions and rewards want T+1 observations)",
        "correct it, or convert with --on-error quarantine",
    ),
    "unsafe-data": Code("error", "row", "bytes that would build objects, or are absurdly large", "ask who wrote it"),
    "unsupported-space": Code(
        "error", "row", "a space that episodes cannot be stored in", "record with Box, Discrete, Dict, Tuple ..."
    ),
    # ---- episodes ----
    "conflicting-episode": Code(
        "error", "episode", "with the id of another one whose content is different", "give each recording its own ids"
    ),
    "duplicate-episode": Code(
        "warning", "episode", "written before, value for value", "convert it: exact duplicates are dropped"
    ),
    "gap-in-episode": Code(
        "error",
        "gap",
        "steps are missing, or parts of an episode do not follow each other",
        "give all files of the recording at once",
        "warning in tables, and datasets made of them, where such a gap is left open",
    ),
    "incomplete-episode": Code(
        "note", "episode", "left out of the other checks, because a row of it was refused", "see the unreadable rows"
    ),
    "lost-episodes": Code(
        "warning",
        "episode",
        "of the source lost when the dataset was written, as its manifest says",
        "correct the rows and convert the source again; or accept it with --allow-lost",
        "note with --allow-lost",
    ),
    "steps-after-end": Code("error", "episode", "continuing after an end flag", "set end flags on last steps only"),
    "broken-chain": Code(
        "warning",
        "joint",
        "the observation that a step led to is not the one that the next step acted on",
        "check the order of the rows, and that new_obs is not the first observation of the next episode",
    ),
    "t-falls-back": Code(
        "warning",
        "row",
        "`t` decreases inside an episode that only end flags, or the chain of observations, divide from others",
        "sort the rows, map eps_id, or divide episodes where t falls: --episode-ends t",
    ),
    "repeated-steps": Code("note", "step", "written more than once, and equal", "nothing: they are read once"),
    "unfinished-episode": Code(
        "warning",
        "episode",
        "no end flag on the last step (reading marks it truncated)",
        "check that the recording is whole and that a column says where episodes end",
    ),
    "both-flags": Code(
        "warning", "episode", "terminated and truncated at once (terminated wins in training)", "set the one that ended it"
    ),
    "zero-length-episode": Code("warning", "episode", "without a step", "convert it: episodes without steps are left out"),
    "agent-twice": Code(
        "warning",
        "episode",
        "of an agent that has another episode in the same game",
        "check agent_id and the id of the game; an agent that changes its module in a game has an episode for each",
    ),
    "agent-of-two-modules": Code(
        "note",
        "episode",
        "in which an agent acts by another module than in its first",
        "nothing, or choose the module that is learned: --module-id",
    ),
    "missing-final-observation": Code(
        "warning", "episode", "no observation after the last step (the last one is repeated)", "record new_obs too"
    ),
    "reset-row": Code(
        "warning",
        "episode",
        "beginning with a row in which a vector environment reset itself: no action was taken there, and no reward given "
        "(gymnasium's AutoresetMode.NEXT_STEP)",
        "convert with --drop-reset-rows; or record with AutoresetMode.DISABLED",
    ),
    "reset-observation": Code(
        "warning",
        "episode",
        "whose final observation is the first one of the next episode, as a vector environment that reset itself gave it "
        "(gymnasium's AutoresetMode.SAME_STEP)",
        "record the info's final_obs as the last new_obs; or convert with --drop-reset-rows, which makes it a missing one",
    ),
    "missing-rewards": Code("warning", "step", "no reward (0 was taken)", "record rewards too"),
    "dones-disagree": Code(
        "warning", "step", "`dones` says something else than the newer flags beside it (which are taken)", "keep one of them"
    ),
    "mixed-structures": Code(
        "error", "episode", "with other columns, parts or shapes than the first", "convert each kind into a dataset of its own"
    ),
    "mixed-spaces": Code(
        "error", "episode", "with other spaces than the first", "name the environment with --env, or split the recording"
    ),
    "mixed-action-scales": Code(
        "error",
        "source",
        "whose actions have another scale than those of the first",
        "convert each source by itself with the --action-scale that it has",
    ),
    "meaning-assumed": Code(
        "note", "column", "whose names, categories or units another source alone says", "check that they mean the same"
    ),
    "mixed-meanings": Code(
        "error",
        "source",
        "whose columns have other names, categories or units than another's",
        "convert it in the other's order",
    ),
    # ---- values ----
    "space-mismatch": Code(
        "error", "episode", "with other parts or shapes than the space", "name the environment that was recorded with --env"
    ),
    "dtype-differs": Code(
        "note",
        "episode",
        "of another dtype than the space, though every value fits",
        "convert it: values get the dtype of the space",
        "warning where the kind differs, such as floats for categories",
    ),
    "value-not-in-dtype": Code(
        "error", "value", "that the dtype of the space cannot hold", "declare spaces of the dtype that the data has"
    ),
    "observation-outside-space": Code(
        "warning",
        "observation",
        "outside the space",
        "check the space, or name the environment with --env",
        "error for a category that does not exist",
    ),
    "action-outside-space": Code(
        "warning",
        "action",
        "outside the space",
        "raw outputs of a policy: declare them with --action-scale normalized; otherwise clip them, or correct the space",
        "error for a category that does not exist, and where the scale is said to be the environment's (`env`)",
    ),
    "nan-in-observations": Code("error", "observation", "NaN", "fill it in, or leave the episode out"),
    "infinite-in-observations": Code("error", "observation", "infinite", "clip it where it was made"),
    "nan-in-actions": Code("error", "action", "NaN", "fill it in, or leave the episode out"),
    "infinite-in-actions": Code("error", "action", "infinite", "clip it where it was made"),
    "nan-in-rewards": Code("error", "reward", "NaN", "fill it in, or leave the episode out"),
    "infinite-in-rewards": Code("error", "reward", "infinite", "clip it where it was made"),
    "nan-in-extras": Code("warning", "step", "NaN in an extra model output", "leave the column out unless you need it"),
    "infinite-in-extras": Code(
        "warning", "step", "infinite in an extra model output", "masked logits may be; else leave the column out"
    ),
    "constant-dimension": Code(
        "note", "dimension", "with one value throughout", "leave it out if nothing can be learned from it"
    ),
    "saturated-dimension": Code(
        "note",
        "dimension",
        "of which a tenth or more of the values lie on a bound of the space",
        "check the scale, and what clips it",
    ),
    "spaces-inferred": Code("note", "source", "without declared spaces, so that nothing lies outside them", "give --env"),
    "action-scale-unknown": Code("note", "source", "whose Box actions are of unknown scale", "give it with --action-scale"),
    "assumption": Code(
        "note", "assumption", "made in reading it, or in writing it (docs/assumptions.md)", "check that they hold"
    ),
    # ---- dataset folders ----
    "uncommitted": Code(
        "error", "dataset", "whose writer has not finished", "the same command with --resume, or offline-cli repair"
    ),
    "broken-manifest": Code("error", "mistake", "in manifest.json", "offline-cli repair builds it anew from the shards"),
    "missing-shard": Code("error", "shard", "listed in the manifest, and not there", DROP),
    "shard-size": Code("error", "shard", "other bytes than the manifest says", DROP),
    "shard-hash": Code("error", "shard", "other content than the manifest's sha256 says, such as that of another shard", DROP),
    "shard-columns": Code("error", "shard", "other columns than the manifest's spaces ask for", AGAIN),
    "count-mismatch": Code("error", "count", "other than the manifest says", AGAIN),
    "statistics-mismatch": Code("error", "column", "other statistics than the manifest says", AGAIN),
    "unlisted-file": Code(
        "error",
        "file",
        "in data/ and not in the manifest: readers of D/data would take it in",
        "offline-cli repair sets it aside",
        "warning for names with a leading dot or underscore, which readers pass over",
    ),
    "leftover-file": Code("warning", "file", "half-written, left by a writer that was killed", "offline-cli repair removes it"),
    "incomplete-dataset": Code(
        "warning",
        "dataset",
        "incomplete, according to its manifest",
        "the same command with --resume",
        "note where repair built a lost manifest anew from every shard: nothing says what was asked for; error where "
        "nothing in the manifest bears it out: readers refuse that",
    ),
    "damaged-quarantine": Code(
        "warning", "file", "of rows set aside that cannot be read (--deep)", "remove it: it cannot be repaired"
    ),
    "quarantined-rows": Code("note", "file", "of rows that were set aside on writing", "see what is in quarantine/"),
}
