"""`export`: write the policy of a run as a file for other programs, with a model card.

    F.onnx, F.card.json and F.md                                          --to onnx
    F/card.json, F/README.md and RLlib's files, F/metadata.json last      --to rllib

The card is written first and the main file last, so that a killed export leaves nothing that looks complete. Existing files at
`out` stay, except an earlier export of ours with `overwrite`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from offline_cli.checked_keywords import checked
from offline_cli.choices import ExportFormat
from offline_cli.connectors.pipeline_spec import Given, Setting, added_pieces
from offline_cli.datasets.ownership import keep_names
from offline_cli.errors import OutputExists, UsageError
from offline_cli.exporting.card import FORMAT, Made, facts_of, markdown
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.run_policy import environment_spaces, load_policy
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.staging import write_whole

__all__ = ["ExportResult", "export"]


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The written export, or, for a dry run, the one that would be written."""

    out: str
    format: str
    inputs: Mapping[str, str]  # by name: dtype and shape, B rows
    outputs: Mapping[str, str]
    card: str  # JSON file; the Markdown file is next to it
    bytes: int  # of all files except the card
    difference: float  # maximum difference of `action_dist_inputs` from the run's policy
    notes: tuple[str, ...]  # differences between the export and the run's policy
    dry_run: bool

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "notes": list(self.notes)}


@checked
def export(
    run: str | os.PathLike[str] | Location,
    out: str | os.PathLike[str] | Location,
    *,
    to: ExportFormat,
    env_to_module: Given = None,
    plugins: Sequence[str] = (),
    network: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
) -> ExportResult:
    """Export the policy of `run` to `out` for another program.

    `to="onnx"`: a file from raw observations to actions, including the policy's pieces and action scaling. `to="rllib"`: a
    folder for RLlib's `RLModule.from_checkpoint` and `Algorithm.restore_from_path`. `env_to_module`: the pieces, if they are
    Python code.

    An unfinished run exports the policy of its last checkpoint. Raises like `load_policy` for the run; BadConfig, naming it,
    for a piece or a network that cannot be exported; MissingPackage, OutputExists, StorageError.
    """
    place, folder = (open_location(one, storage_options) for one in (out, run))
    beside = place if to == "rllib" else place.parent()
    if beside is None:
        raise UsageError("--out names no file", where=place.url, fix="name a file: --out FOLDER/policy.onnx")
    stem = place.name.removesuffix(".onnx")
    names = ("card.json", "README.md") if to == "rllib" else (f"{stem}.card.json", f"{stem}.md")
    card_file, readme = map(beside.join, names)
    is_free = not any(one.exists() for one in (place, card_file, readme))
    is_free = is_free or (to == "rllib" and place.is_dir() and not place.children())
    if not is_free and not (card_file.is_file() and FORMAT.encode() in card_file.start(len(FORMAT) + 32)[0]):
        raise OutputExists("other files already exist there", where=place.url, fix="choose another --out")
    if not is_free and not overwrite:
        fix = "use --overwrite to replace it, or another --out"
        raise OutputExists("an export already exists there", where=place.url, fix=fix)
    loaded = load_policy(folder, plugins=plugins, network=network)
    spaces = environment_spaces(loaded, folder.url)
    pipeline = replace(PlaySpec.of(env_to_module), trained=loaded.trained).build(Setting(*spaces)).env_to_module
    facts = facts_of(folder, loaded, spaces, [name for name, _ in added_pieces(pipeline)], to=to)
    if to == "onnx":
        from offline_cli.exporting.onnx_file import onnx_export as made_of
    else:
        from offline_cli.exporting.rllib_checkpoint import rllib_export as made_of
    made: Made = made_of(loaded.module, pipeline, spaces[0], facts, name=place.name, where=folder.url)
    if not dry_run:
        card = {**facts, "inputs": made.inputs, "outputs": made.outputs, "notes": made.notes}
        contents = {card_file: json.dumps(card, indent=1) + "\n", readme: markdown(card, spaces, name=place.name, how=made.how)}
        beside.make_folder()
        for target, text in contents.items():
            write_whole(target, text.encode(), folder=beside)
        for name, content in made.files.items():
            write_whole(place.join(name) if name else place, content, folder=beside)
        keep_names(beside)
    return ExportResult(
        out=place.url,
        format=to,
        inputs=made.inputs,
        outputs=made.outputs,
        card=card_file.url,
        bytes=sum(map(len, made.files.values())),
        difference=made.difference,
        notes=made.notes,
        dry_run=dry_run,
    )
