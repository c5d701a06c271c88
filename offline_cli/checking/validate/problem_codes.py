"""Every problem that `validate` can report: its code, how bad it is, what it means and what to do.

Severities:

* `error`: some command would refuse the data, or would learn from numbers that nobody recorded.
* `warning`: reading repairs or tolerates it, and the result may not be what the user thinks it is.
* `note`: worth knowing; no dataset is worse for it.

docs/reference/checks.md is written from this table.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Severity = Literal["error", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")
"""Worst first."""

AGAIN: Final = "write it again from its source"
DROP: Final = "restore it from a copy, or leave it out: offline-cli repair --drop-broken"
REFUSED: Final = "correct it, or convert with --on-error quarantine"
NAN: Final = "fill it in, or leave the episode out"
CLIP: Final = "clip it where it was made"
RESET: Final = "convert with --drop-reset-rows; or record with AutoresetMode.DISABLED"
ALLOWED: Final = "note with --allow-lost"
NO_CATEGORY: Final = "error for a category that does not exist"
RAW: Final = "raw outputs of a policy: --action-scale normalized; otherwise clip them, or correct the space"
HIDDEN: Final = "warning for names with a leading dot or underscore, which readers pass over"
OTHER_KIND: Final = "warning where the kind differs, such as floats for categories"
GAPS: Final = "warning in tables, and datasets made of them, where such a gap is left open"


class Code(NamedTuple):
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
    "unreadable-row": Code("error", "row", "cannot be read", REFUSED),
    "length-mismatch": Code("error", "row", "parts of other lengths than T actions and rewards, T+1 observations", REFUSED),
    "unsafe-data": Code("error", "row", "bytes that would build objects, or are absurdly large", "ask who wrote it"),
    "unsupported-space": Code("error", "row", "a space that cannot be stored", "record with Box, Discrete, Dict, Tuple ..."),
    # ---- episodes ----
    "conflicting-episode": Code("error", "episode", "with the id of a different one", "give each recording its own ids"),
    "duplicate-episode": Code("warning", "episode", "written before, value for value", "convert it: duplicates are dropped"),
    "gap-in-episode": Code("error", "gap", "steps are missing", "give all files of the recording at once", GAPS),
    "incomplete-episode": Code("note", "episode", "not checked: a row of it was refused", "see the unreadable rows"),
    "lost-episodes": Code("warning", "episode", "of the source, lost in writing", "convert again, or --allow-lost", ALLOWED),
    "steps-after-end": Code("error", "episode", "continuing after an end flag", "set end flags on last steps only"),
    "broken-chain": Code("warning", "joint", "new_obs is not the obs of the next step", "check the order of the rows"),
    "t-falls-back": Code("warning", "row", "`t` decreases inside an episode without an id", "--episode-ends t, or map eps_id"),
    "repeated-steps": Code("note", "step", "written more than once, and equal", "nothing: they are read once"),
    "unfinished-episode": Code("warning", "episode", "no end flag (reading marks it truncated)", "record where it ends"),
    "both-flags": Code("warning", "episode", "terminated and truncated (terminated wins)", "set the one that ended it"),
    "zero-length-episode": Code("warning", "episode", "without a step", "convert it: such episodes are left out"),
    "missing-final-observation": Code("warning", "episode", "no last observation (one is repeated)", "record new_obs too"),
    "reset-row": Code("warning", "episode", "beginning with a reset step (AutoresetMode.NEXT_STEP)", RESET),
    "reset-observation": Code("warning", "episode", "ending with the next reset's (AutoresetMode.SAME_STEP)", RESET),
    "missing-rewards": Code("warning", "step", "no reward (0 was taken)", "record rewards too"),
    "dones-disagree": Code("warning", "step", "`dones` contradicts the newer flags, which are taken", "keep one of them"),
    "mixed-structures": Code("error", "episode", "with other columns, parts or shapes", "convert each kind by itself"),
    "mixed-spaces": Code("error", "episode", "with other spaces than the first", "name the environment with --env"),
    "mixed-action-scales": Code("error", "source", "with another scale of actions", "convert it with its --action-scale"),
    "meaning-assumed": Code("note", "column", "whose names, categories or units only one source says", "check them"),
    "mixed-meanings": Code("error", "source", "with other names, categories or units", "convert it in the other's order"),
    # ---- values ----
    "space-mismatch": Code("error", "episode", "with other parts or shapes than the space", "name the environment: --env"),
    "dtype-differs": Code("note", "episode", "of another dtype than the space", "convert it: it gets that dtype", OTHER_KIND),
    "value-not-in-dtype": Code("error", "value", "that the dtype of the space cannot hold", "correct the dtype of the space"),
    "observation-outside-space": Code("warning", "observation", "outside the space", "check the space: --env", NO_CATEGORY),
    "action-outside-space": Code("warning", "action", "outside the space", RAW, f"{NO_CATEGORY}, and at the scale `env`"),
    "nan-in-observations": Code("error", "observation", "NaN", NAN),
    "infinite-in-observations": Code("error", "observation", "infinite", CLIP),
    "nan-in-actions": Code("error", "action", "NaN", NAN),
    "infinite-in-actions": Code("error", "action", "infinite", CLIP),
    "nan-in-rewards": Code("error", "reward", "NaN", NAN),
    "infinite-in-rewards": Code("error", "reward", "infinite", CLIP),
    "nan-in-extras": Code("warning", "step", "NaN in an extra model output", "leave the column out unless you need it"),
    "infinite-in-extras": Code("warning", "step", "infinite in an extra model output", "masked logits may be; else drop it"),
    "constant-dimension": Code("note", "dimension", "with one value throughout", "leave it out if it tells nothing"),
    "spaces-inferred": Code("note", "source", "without declared spaces, so that nothing lies outside them", "give --env"),
    "action-scale-unknown": Code("note", "source", "whose Box actions are of unknown scale", "give --action-scale"),
    "assumption": Code(
        "note", "assumption", "made in reading or writing it (docs/reference/assumptions.md)", "check that they hold"
    ),
    # ---- dataset folders ----
    "uncommitted": Code("error", "dataset", "whose writer has not finished", "the same command with --resume, or repair"),
    "broken-manifest": Code("error", "mistake", "in manifest.json", "offline-cli repair builds it anew from the shards"),
    "missing-shard": Code("error", "shard", "listed in the manifest, and not there", DROP),
    "shard-size": Code("error", "shard", "other bytes than the manifest says", DROP),
    "shard-hash": Code("error", "shard", "other content than the manifest's sha256 says, maybe another shard's", DROP),
    "shard-columns": Code("error", "shard", "other columns than the manifest's spaces ask for", AGAIN),
    "count-mismatch": Code("error", "count", "other than the manifest says", AGAIN),
    "unlisted-file": Code("error", "file", "in data/ and not in the manifest", "offline-cli repair sets it aside", HIDDEN),
    "leftover-file": Code("warning", "file", "half-written, left by a writer that was killed", "offline-cli repair removes it"),
    "incomplete-dataset": Code("warning", "dataset", "incomplete, by its manifest", "the same command with --resume"),
    "damaged-quarantine": Code("warning", "file", "of rows set aside that cannot be read (--deep)", "remove it"),
    "quarantined-rows": Code("note", "file", "of rows that were set aside on writing", "see what is in quarantine/"),
}
