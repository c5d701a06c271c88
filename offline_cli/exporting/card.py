"""What an export writes, and its model card, as JSON and as Markdown: what it is, from which data, how good, how to run it.

`facts_of` gathers what the run folder knows, as JSON values; the ONNX file holds the same among its metadata. What a run does
not know (an unfinished one has no scores) is left out.
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
MARKUP: Final = re.compile(r"[\\|`*<>\[\]]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")  # within a word, an underscore is one


@dataclass(frozen=True, slots=True)
class Made:
    """Files of an export, and what the card says of them."""

    files: Mapping[str, bytes]  # in order, by their paths below `out`; "" is `out` itself
    inputs: Mapping[str, str]  # see `form`
    outputs: Mapping[str, str]
    how: str  # to run it, as Markdown
    difference: float  # greatest, of `action_dist_inputs` to the run's policy
    notes: tuple[str, ...] = ()


def form(dtype: Any, shape: tuple[int, ...]) -> str:
    """`float32 (B, 4)`: of an array with B rows of this shape."""
    return f"{dtype} ({', '.join(map(str, ('B', *shape)))}{'' if shape else ','})"


def facts_of(
    run: Location, loaded: LoadedPolicy, spaces: tuple[Space, Space], pieces: Sequence[str], *, to: str
) -> dict[str, Any]:
    """JSON values by name. `spaces`: of the environment; `pieces`: of the user's around the policy."""
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
    """What a JSON file of the run says; nothing where it is not there, or broken: a card without it is better than none."""
    try:
        return json_object(file.read_bytes())
    except (ValueError, OfflineCliError):
        return {}


def markdown(card: Mapping[str, Any], spaces: tuple[Space, Space], *, name: str, how: str) -> str:
    """The card for people. `card`: the facts, with `inputs`, `outputs` and `notes`; `how`: what runs it, as Markdown."""
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
    """By element, `obs[1]`: its name, unit and categories, numbered as actions are; of what nothing is known, no row."""
    choices_of, found = discrete_elements(action_space, NO_MEANINGS), {}
    for path, elements in meanings.items():
        starts = [choice.start for choice in choices_of.get(path, ())] or [0] * len(elements)
        for number, (one, start) in enumerate(zip(elements, starts, strict=False)):
            choices = ", ".join(f"{choice} {text}" for choice, text in enumerate(one.get("categories", ()), start))
            words = [one.get("name", ""), f"in {one['unit']}" if "unit" in one else "", choices]
            found[path if len(elements) == 1 else f"{path}[{number}]"] = "; ".join(filter(None, words))
    return {place: words for place, words in found.items() if words}


def _cell(value: Any) -> str:
    """One line of text that stays in its cell, whatever a run folder or an id holds."""
    text = f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return MARKUP.sub(r"\\\g<0>", text)[:2000]
