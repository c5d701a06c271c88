"""The model card of an exported policy: what it is, from which data, how good, for which spaces, and how to run it.

`facts_of` gathers what the run folder knows, as JSON values; the ONNX file holds the same among its metadata. `card_of` writes
them as Markdown. What a run does not know (an unfinished one has no scores) is said to be not known.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

import offline_cli
from offline_cli.errors import OfflineCliError
from offline_cli.policies.module_policy import fingerprint_of
from offline_cli.policies.run_files import STATE, json_object, newest_checkpoint
from offline_cli.policies.run_policy import LoadedPolicy, known_environments
from offline_cli.spaces import Space, describe, space_to_json
from offline_cli.storage.blanking import blanked, blanked_call, blanked_values
from offline_cli.storage.locations import Location
from offline_cli.training.run_folder import RunFolder

__all__ = ["Exported", "card_of", "facts_of"]


@dataclass(frozen=True, slots=True)
class Exported:
    """Files in the order in which they are written, their paths below `out`; "" is `out` itself."""

    files: Mapping[str, bytes]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    how: str  # to run it, as Markdown
    difference: float | None = None
    notes: tuple[str, ...] = ()


MARK: Final = "<!-- model card of offline-cli -->"
OF_RESULT: Final = ("updates", "epochs", "loss", "val_loss", "val_accuracy", "val_mse", "policy_update", "stopped_by")
OF_CONFIG: Final = ("algorithm", "network", "hidden", "activation", "batch_size", "lr", "seed")
OF_SCORES: Final = ("eval_return_mean", "eval_return_ci95", "eval_episodes")
MARKUP: Final = re.compile(r"[\\|`*<>\[\]]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")  # within a word, an underscore is one


def facts_of(
    run: Location, loaded: LoadedPolicy, spaces: tuple[Space, Space], pieces: Sequence[str], *, to: str
) -> dict[str, Any]:
    """JSON values by name. `spaces`: of the environment; `pieces`: of the user's around the policy. Raises BadData."""
    folder, described = RunFolder(run), loaded.description
    result = None if loaded.checkpoint is not None else folder.result()
    config, told = folder.config(), {} if result is None else result.as_dict()
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in loaded.module.state_dict().values()))
    return {
        "format": "offline-cli-export",
        "version": 1,
        "to": to,
        "observation_space": space_to_json(spaces[0]),
        "action_space": space_to_json(spaces[1]),
        "action_scale": described["action_scale"],
        "pieces": list(pieces),
        "environments": [
            {"id": one.id, "kwargs": blanked_values(one.kwargs), "wrappers": [*map(blanked_call, one.wrappers)]}
            for one in known_environments(described)
        ],
        "data": _data(run, told),
        "training": {name: config[name] for name in OF_CONFIG if name in config}
        | {name: told[name] for name in OF_RESULT if name in told}
        | ({} if loaded.checkpoint is None else {"checkpoint": loaded.checkpoint}),
        "scores": {name: told[name] for name in OF_SCORES if told.get(name) is not None},
        "provenance": {
            "policy": fingerprint_of(loaded),
            "weights_sha256": digest.hexdigest(),
            "offline_cli": offline_cli.__version__,
            "torch": torch.__version__,
        },
    }


def _data(run: Location, told: Mapping[str, Any]) -> dict[str, Any]:
    """What the policy learned from, by the run's last checkpoint and its result."""
    found = {name: told[name] for name in ("episodes", "steps") if name in told}
    newest = newest_checkpoint(run)
    if newest is None:
        return found
    try:
        state = json_object(newest.join(STATE).read_bytes())
    except (ValueError, OfflineCliError):  # a card without these facts is better than none
        return found
    seen = state.get("seen")
    seen = seen if isinstance(seen, dict) else {}
    known = {name: seen[name] for name in ("module", "episodes", "steps") if name in seen}
    sources = {"sources": blanked(seen["sources"])} if isinstance(seen.get("sources"), str) else {}
    digest = {"digest": state["data"]} if isinstance(state.get("data"), str) else {}
    return {**found, **known, **sources, **digest}


def card_of(facts: Mapping[str, Any], spaces: tuple[Space, Space], *, name: str, ports: Sequence[str], how: str) -> str:
    """The card as Markdown. `ports`: a line for each input and output; `how`: what runs it, as Markdown."""
    observations, actions = map(describe, spaces)
    lines = [
        f"# {name}",
        "",
        MARK,
        "",
        f"A policy trained by offline-cli {facts['provenance']['offline_cli']}, exported to {facts['to']}.",
        "",
        *_table(
            "Spaces", {"observations": observations, "actions": actions, "action scale of the data": facts["action_scale"]}
        ),
        *_table("Pieces inside", {str(at): piece for at, piece in enumerate(facts["pieces"])}),
        *_table("Environments", {one["id"]: _environment(one) for one in facts["environments"]}),
        *_table("Data", facts["data"]),
        *_table("Training", _rounded(facts["training"])),
        *_table("Scores", _scores(facts["scores"])),
        *_table("Provenance", {name.replace("offline_cli", "offline-cli"): told for name, told in facts["provenance"].items()}),
        "## Inputs and outputs",
        "",
        *(f"- {port}" for port in ports),
        "",
        "## How to run it",
        "",
        how.strip(),
        "",
    ]
    return "\n".join(lines)


def _environment(one: Mapping[str, Any]) -> str:
    told = [f"{name} = {json.dumps(value)}" for name, value in one["kwargs"].items()]
    return ", ".join([*told, *(f"wrapper {name}" for name in one["wrappers"])]) or "as registered"


def _rounded(facts: Mapping[str, Any]) -> dict[str, Any]:
    """`facts` with what was measured to four digits; what was configured stays as it is."""
    return {name: _to_four_digits(value) if name in OF_RESULT else value for name, value in facts.items()}


def _scores(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The mean return with its interval in one row."""
    mean, half, episodes = (facts.get(name) for name in OF_SCORES)
    if mean is None:
        return dict(facts)
    interval = "" if half is None else f" \u00b1 {_to_four_digits(half)} (95% confidence)"
    return {"mean return": f"{_to_four_digits(mean)}{interval}", "episodes": episodes}


def _to_four_digits(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e15 else f"{value:.4g}"


def _table(title: str, rows: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"## {title}", "")
    known = {name: value for name, value in rows.items() if value is not None}
    if not known:
        yield from ("Not known." if title not in ("Pieces inside",) else "None.", "")
        return
    yield from ("| what | value |", "| --- | --- |")
    labels = {name: name if title == "Environments" else name.replace("_", " ") for name in known}
    yield from (f"| {_cell(labels[name])} | {_cell(value)} |" for name, value in known.items())
    yield ""


def _cell(value: Any) -> str:
    """One line of text that stays in its cell, whatever a run folder or an id holds."""
    text = _in_words(value)
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return MARKUP.sub(r"\\\g<0>", text)[:2000]


def _in_words(value: Any) -> str:
    """A JSON value as people read it: a name with its options, lists with commas."""
    if isinstance(value, Mapping):
        options = ", ".join(f"{key} = {_in_words(item)}" for key, item in value.items() if key != "name")
        name = _in_words(value["name"]) if "name" in value else ""
        return f"{name} ({options})" if name and options else name or options
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_in_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
