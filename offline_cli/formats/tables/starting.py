"""A mapping to start from for columns without one, guessed by their names; refuses to be used unread: it is text for people."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Final

from offline_cli.columns import Columns

__all__ = ["looks_like_ids", "starting_mapping"]

LIKELY: Final = (
    (Columns.EPS_ID, r"(^|_)(eps?|episode|traj(ectory)?|ride|run|session|rollout|demo)(_?(id|index|no|number|nr))?$"),
    (Columns.T, r"^(t|step|steps|timestep|time_?step|time|timestamp|stamp|tick|frame(_index)?|.*_step|.*_time)$"),
    (Columns.TERMINATEDS, r"^(terminateds?|terminals?|terminations?|is_terminal)$"),
    (Columns.TRUNCATEDS, r"^(truncateds?|truncations?|timeouts?)$"),
    (Columns.DONES, r"^(dones?|d|d_t|is_last|end|episode_end|success|failed|crashed)$"),
    (Columns.REWARDS, r"^(r|r_t|rewards?|reward_.*|.*_reward)$"),
    (Columns.NEXT_OBS, r"^(new_|next_).+|^o_tp1$"),
    (
        Columns.ACTIONS,
        r"^(a|a_t|acts?|actions?|action[_.].*|(cmd|command|motor|torque|throttle|steer\w*)([_.].*)?|.*_(action|cmd|command))$",
    ),
    (Columns.INFOS, r"^(i_t|infos?)$"),
)
VECTORS: Final = (Columns.OBS, Columns.ACTIONS, Columns.NEXT_OBS)
EXTRAS: Final = re.compile(r"^(logp|logprobs?(_t)?|action_logp)$")
MAX_GUESSED: Final = 64  # columns; of more, nobody reads the list


def looks_like_ids(column: str) -> bool:
    """Whether a column of that name says which episode a row is of."""
    return bool(re.search(dict(LIKELY)[Columns.EPS_ID], column.lower()))


def starting_mapping(columns: Collection[str]) -> str:
    """TOML that names every one of `columns` once, what no name explains as an observation."""
    ordered = [name for name in columns if name][:MAX_GUESSED]
    guessed: dict[str, list[str]] = {}
    extra: list[str] = []
    for name in ordered:
        if EXTRAS.match(name.lower()):
            extra.append(name)
            continue
        role = next((ours for ours, pattern in LIKELY if re.search(pattern, name.lower())), Columns.OBS)
        if role not in VECTORS and role in guessed:
            role = Columns.OBS
        guessed.setdefault(role, []).append(name)
    for needed in (Columns.OBS, Columns.ACTIONS):
        guessed.setdefault(needed, ["?"])
    scale = 'action_scale = "env"  # or "normalized": train-bc wants to know it'
    lines = [scale, "", "[columns]", *(f"{ours} = {_toml(guessed[ours])}" for ours in _order(guessed))]
    if extra:
        lines += ["", "[extra]", *(f"action_logp = {_toml([name])}" for name in extra[:1])]
    return "\n".join(lines) + "\n"


def _order(guessed: Collection[str]) -> list[str]:
    first = [Columns.EPS_ID, Columns.T, Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS]
    return [name for name in first if name in guessed] + sorted(set(guessed) - set(first))


def _toml(names: list[str]) -> str:
    texts = [_string(name) for name in names]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _string(name: str) -> str:
    """JSON's strings are TOML's too; what a terminal would not show is an escape that TOML knows."""
    quoted = json.dumps(name, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in quoted)


def _escape(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"
