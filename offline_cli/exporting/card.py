"""The model card of an export, as JSON and Markdown: spaces, data, training, scores, and how to run the policy.

`facts_of` collects JSON values from the run folder, which are also metadata of the ONNX file. Missing facts (an unfinished run
has no scores) are left out.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

import offline_cli
from offline_cli.errors import OfflineCliError
from offline_cli.meanings import NO_MEANINGS, Meanings
from offline_cli.modules.rl_module import hash_of_weights
from offline_cli.policies.policy_in_use import discrete_elements
from offline_cli.policies.run_policy import (
    CONFIG,
    MEANINGS,
    RESULT,
    STATE,
    LoadedPolicy,
    fingerprint_of,
    json_object,
    known_environments,
)
from offline_cli.spaces import Space, describe, space_to_json
from offline_cli.storage.blanking import blanked_call, blanked_values
from offline_cli.storage.locations import Location

__all__ = ["FORMAT", "Made", "facts_of", "form", "markdown"]

FORMAT: Final = "offline-cli-export"
OF_RESULT: Final = ("updates", "epochs", "loss", "val_loss", "val_accuracy", "val_accuracy_majority", "val_recall", "val_mse")
OF_POLICY: Final = ("policy_update", "stopped_by", "checkpoint")
OF_CONFIG: Final = ("algorithm", "network", "hidden", "activation", "batch_size", "lr", "seed")
OF_SCORES: Final = ("eval_return_mean", "eval_return_ci95", "eval_episodes")
OF_DATA: Final = ("module", "episodes", "steps", "sources")
MARKUP: Final = re.compile(r"[\\|`*<>\[\]]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")  # underscores within words need no escape


@dataclass(frozen=True, slots=True)
class Made:
    """Files of an export, and facts about them for the card."""

    files: Mapping[str, bytes]  # in writing order, by path below `out`; "" is `out` itself
    inputs: Mapping[str, str]  # see `form`
    outputs: Mapping[str, str]
    how: str  # how to run it, as Markdown
    difference: float  # maximum difference of `action_dist_inputs` from the run's policy
    notes: tuple[str, ...] = ()


def form(dtype: Any, shape: tuple[int, ...]) -> str:
    """Dtype and shape of an array with B rows: `float32 (B, 4)`."""
    return f"{dtype} ({', '.join(map(str, ('B', *shape)))}{'' if shape else ','})"


def facts_of(
    run: Location, loaded: LoadedPolicy, spaces: tuple[Space, Space], pieces: Sequence[str], *, to: str
) -> dict[str, Any]:
    """JSON values by name. `spaces`: of the environment; `pieces`: names of the policy's non-default pieces."""
    state = _told(run.join(STATE))
    result = {"checkpoint": loaded.checkpoint} if loaded.checkpoint is not None else _told(run.join(RESULT))
    config = tomllib.loads(run.join(CONFIG).read_bytes().decode())
    meanings = Meanings.of(loaded.description.get(MEANINGS, {}), run.url)
    environments = known_environments(loaded.description)

    def known(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
        return {name: values[name] for name in names if values.get(name) is not None}

    return {
        "format": FORMAT,
        "version": 1,
        "to": to,
        "observation_space": space_to_json(spaces[0]),
        "action_space": space_to_json(spaces[1]),
        "action_scale": loaded.description["action_scale"],
        **({} if meanings == NO_MEANINGS else {MEANINGS: meanings.as_json()}),
        "pieces": list(pieces),
        "environments": [
            {"id": one.id, "kwargs": blanked_values(one.kwargs), "wrappers": [*map(blanked_call, one.wrappers)]}
            for one in environments
        ],
        "data": blanked_values(known({**result, **(state.get("seen") or {}), "digest": state.get("data")}, *OF_DATA, "digest")),
        "training": known(config, *OF_CONFIG) | known(result, *OF_RESULT, *OF_POLICY),
        "scores": known(result, *OF_SCORES),
        "provenance": {
            "policy": fingerprint_of(loaded),
            "weights_sha256": hash_of_weights(loaded.module),
            "offline_cli": offline_cli.__version__,
            "torch": torch.__version__,
        },
    }


def _told(file: Location) -> dict[str, Any]:
    """A JSON file of the run; empty if it is missing or corrupt, because the card does not depend on it."""
    try:
        return json_object(file.read_bytes())
    except (ValueError, OfflineCliError):
        return {}


def markdown(card: Mapping[str, Any], spaces: tuple[Space, Space], *, name: str, how: str) -> str:
    """The card as Markdown. `card`: the facts, with `inputs`, `outputs` and `notes`; `how`: how to run it, as Markdown."""
    sections: dict[str, Mapping[Any, Any]] = {
        "Spaces": dict(zip(("observations", "actions"), map(describe, spaces), strict=True)) | {"scale": card["action_scale"]},
        "Elements and categories": _meanings_rows(card.get(MEANINGS, {}), spaces[1]),
        "Pieces inside": dict(enumerate(card["pieces"])),
        "Environments": {one["id"]: {**one["kwargs"], "wrappers": one["wrappers"]} for one in card["environments"]},
        **{title.capitalize(): card[title] for title in ("data", "training", "scores", "provenance", "inputs", "outputs")},
        "Notes": dict(enumerate(card["notes"])),
    }
    lines = [f"# {name}", "", f"A policy trained by offline-cli, exported to {card['to']}.", ""]
    for title, rows in sections.items():
        if rows:
            lines += [f"## {title}", "", "| what | value |", "| --- | --- |"]
            lines += [f"| {_cell(key)} | {_cell(value)} |" for key, value in rows.items()] + [""]
    return "\n".join([*lines, "## How to run it", "", how.strip(), ""])


def _meanings_rows(meanings: Mapping[str, Sequence[Mapping[str, Any]]], action_space: Space) -> dict[str, str]:
    """By element, such as `obs[1]`: name, unit and numbered categories; no row for elements without any."""
    choices_of, found = discrete_elements(action_space, NO_MEANINGS), {}
    for path, elements in meanings.items():
        starts = [choice.start for choice in choices_of.get(path, ())] or [0] * len(elements)
        for number, (one, start) in enumerate(zip(elements, starts, strict=False)):
            choices = ", ".join(f"{choice} {text}" for choice, text in enumerate(one.get("categories", ()), start))
            words = [one.get("name", ""), f"in {one['unit']}" if "unit" in one else "", choices]
            found[path if len(elements) == 1 else f"{path}[{number}]"] = "; ".join(filter(None, words))
    return {place: words for place, words in found.items() if words}


def _cell(value: Any) -> str:
    """One line of text, escaped for a Markdown table cell."""
    text = f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return MARKUP.sub(r"\\\g<0>", text)[:2000]
