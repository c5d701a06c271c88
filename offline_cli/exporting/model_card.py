"""The model card of an exported policy: what it is, from which data, how good, for which spaces, and how to run it.

`facts_of` gathers what the run folder knows, as JSON values; the ONNX file holds the same among its metadata. `card_of` writes
them as Markdown. What a run does not know (an unfinished one has no scores) is said to be not known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

import offline_cli
from offline_cli.errors import OfflineCliError
from offline_cli.files.blanking import blanked, blanked_call, blanked_values
from offline_cli.files.locations import Location
from offline_cli.policies.module_policy import fingerprint_of
from offline_cli.policies.run_files import STATE, json_object, newest_checkpoint
from offline_cli.policies.run_policy import LoadedPolicy, known_environments
from offline_cli.spaces import Space, describe, space_to_json
from offline_cli.training.run_folder import STATE_KEYS, RunFolder

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
        state, _ = json_object(newest.join(STATE).read_bytes(), STATE_KEYS)
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
        *_table("Training", facts["training"]),
        *_table("Scores", facts["scores"]),
        *_table("Provenance", facts["provenance"]),
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
    told = [f"{name}={value!r}" for name, value in one["kwargs"].items()] + [f"wrapper {name}" for name in one["wrappers"]]
    return ", ".join(told) or "as registered"


def _table(title: str, rows: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"## {title}", "")
    if not rows:
        yield from ("Not known." if title not in ("Pieces inside",) else "None.", "")
        return
    yield from ("| | |", "| --- | --- |")
    yield from (f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items())
    yield ""


def _cell(value: Any) -> str:
    """One line of text that stays in its cell, whatever a run folder or an id holds."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    for sign in "\\|`*_<>[]":
        text = text.replace(sign, f"\\{sign}")
    return text[:2000]
