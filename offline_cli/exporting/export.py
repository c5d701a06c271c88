"""`export`: the policy of a run as a file for other programs, with a model card beside it.

    F.onnx and F.md                                     --to onnx
    F/module_state.pkl, ..., F/metadata.json, README.md --to rllib

The card is written first and what a reader looks for last, so that a killed export leaves nothing that looks whole. What is at
`out` stays, but for an earlier export of ours with `overwrite`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from offline_cli.checked_keywords import checked
from offline_cli.choices import ExportFormat
from offline_cli.columns import Columns
from offline_cli.connectors.env_to_module.default_pipeline import default_pieces
from offline_cli.connectors.pipeline_spec import PlayPipelines, Setting
from offline_cli.datasets.ownership import keep_names
from offline_cli.errors import BadConfig, OutputExists, UsageError
from offline_cli.exporting.model_card import Exported, card_of, facts_of
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.run_policy import LoadedPolicy, environment_spaces, load_policy
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.staging import write_whole

__all__ = ["ExportResult", "export"]

OURS: Final = b"offline-cli"  # among the first bytes of every file that marks an export
LOOKED_AT: Final = 4096
PLAIN_NAME: Final = re.compile(r"[\w.@+-]+", re.ASCII)  # of a file, that stands as it is in Python and in a shell
METADATA: Final = "metadata.json"  # of RLlib's checkpoints; written last


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What was written, or, of a dry run, would be."""

    out: str
    format: str
    inputs: Mapping[str, str]  # by name: dtype and shape, B for rows
    outputs: Mapping[str, str]
    card: str
    bytes: int  # of all files but the card
    difference: float | None  # greatest, of `action_dist_inputs` to the run's policy; None: not computed
    notes: tuple[str, ...]  # in what the export differs from the run's policy
    dry_run: bool

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "notes": list(self.notes)}


@dataclass(frozen=True, slots=True, eq=False)
class ToExport:
    """A run's policy, its pieces built for the environment's spaces."""

    loaded: LoadedPolicy
    pipelines: PlayPipelines
    spaces: tuple[Space, Space]  # of the environment's observations and actions
    facts: Mapping[str, Any]
    where: str

    @property
    def pieces(self) -> list[tuple[str, Any]]:
        """Those around the policy that are not default ones, by name."""
        default = {type(piece) for piece in default_pieces(None, None)}
        return [(name, piece) for name, piece in self.pipelines.env_to_module.named() if type(piece) not in default]


@checked
def export(
    run: str | os.PathLike[str] | Location,
    out: str | os.PathLike[str] | Location,
    *,
    to: ExportFormat,
    plugins: Sequence[str] = (),
    network: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
) -> ExportResult:
    """Write the policy of `run` to `out` as another program reads it.

    `to="onnx"`: a file from raw observations to actions, with the pieces that the policy was trained through and its action
    scale inside. `to="rllib"`: a folder that `RLModule.from_checkpoint` and `Algorithm.restore_from_path` of RLlib load.

    Of a run that is not finished the policy of its last checkpoint. Raises what `load_policy` raises for the run; BadConfig,
    naming it, for a run of several modules, and for a piece or a network that has no such form; MissingPackage, OutputExists,
    StorageError.
    """
    options = dict(locals())
    to, known = options["to"], options["storage_options"]
    place = open_location(out, known, beside=[_named(run)])
    card = _card_of(place, to)
    _check_free(place, card, to=to, overwrite=options["overwrite"])
    chosen = _chosen(open_location(run, known, beside=[_named(out)]), options)
    made = _made(chosen, to, place.name)
    ports = [f"input `{name}`: {port}" for name, port in made.inputs.items()]
    ports += [f"output `{name}`: {port}" for name, port in made.outputs.items()]
    text = card_of(chosen.facts, chosen.spaces, name=place.name, ports=ports, how=made.how)
    if not options["dry_run"]:
        _write(place, card, text, made)
    return ExportResult(
        out=place.url,
        format=to,
        inputs=made.inputs,
        outputs=made.outputs,
        card=card.url,
        bytes=sum(map(len, made.files.values())),
        difference=made.difference,
        notes=made.notes,
        dry_run=options["dry_run"],
    )


def _named(place: str | os.PathLike[str] | Location) -> str:
    return place.url if isinstance(place, Location) else os.fspath(place)


def _chosen(folder: Location, options: Mapping[str, Any]) -> ToExport:
    loaded = load_policy(folder, plugins=options["plugins"], network=options["network"])
    spaces = environment_spaces(loaded, folder.url)
    try:
        pipelines = PlaySpec(trained=loaded.trained).build(Setting(*spaces))
        described = PlaySpec(trained=loaded.trained).as_dict()["env_to_module"]
    except BadConfig as error:
        error.fix = "export a run of built-in pieces alone (docs/export.md says which); evaluate and record play this one"
        raise
    facts = facts_of(folder, loaded, spaces, described, to=options["to"])
    return ToExport(loaded, pipelines, spaces, facts, folder.url)


def _made(chosen: ToExport, to: str, name: str) -> Exported:
    if to == "rllib":
        from offline_cli.exporting.rllib_checkpoint import rllib_export

        return rllib_export(chosen.loaded, chosen.pieces, chosen.spaces[0], where=chosen.where)
    return _onnx(chosen, name)


def _onnx(chosen: ToExport, name: str) -> Exported:
    from offline_cli.exporting.onnx_file import difference, onnx_bytes
    from offline_cli.exporting.whole_policy import WholePolicy
    from offline_cli.policies.onnx_model import model_of

    named = list(chosen.pipelines.env_to_module.named())
    policy = WholePolicy(chosen.loaded.module, named, chosen.spaces[0], where=chosen.where)
    content = onnx_bytes(policy, chosen.facts, where=chosen.where)
    model = model_of(content, where="the exported file")
    sides = (model.inputs, model.outputs)
    inputs, outputs = ({name: f"{port.dtype} {_shape(port.shape)}" for name, port in ports.items()} for ports in sides)
    how = _onnx_how(name, inputs, outputs)
    return Exported({"": content}, inputs, outputs, how, difference(policy, model, chosen.spaces[0]))


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, ('B', *shape)))})" if shape else "(B,)"


def _card_of(place: Location, to: str) -> Location:
    if to == "rllib":
        return place.join("README.md")
    return _folder_of(place).join(f"{place.name.removesuffix('.onnx')}.md")


def _folder_of(file: Location) -> Location:
    folder = file.parent()
    if folder is None:
        raise UsageError("it names no file", where=file.url, fix="--out with the name of a file in it")
    return folder


def _check_free(place: Location, card: Location, *, to: str, overwrite: bool) -> None:
    """Raise OutputExists where something is in the way that is no earlier export, or may not be replaced."""
    for one in [place, card] if to == "onnx" else [place]:
        if not one.exists() or (to == "rllib" and one.is_dir() and not one.children()):
            continue
        mark = one if to == "onnx" else one.join(METADATA)
        if not (mark.is_file() and OURS in mark.start(LOOKED_AT)[0]):
            raise OutputExists("something else is there already", where=one.url, fix="choose another --out")
        if not overwrite:
            raise OutputExists("an export is there already", where=one.url, fix="--overwrite to replace it, or another --out")


def _write(place: Location, card: Location, text: str, made: Exported) -> None:
    folder = _folder_of(card)
    folder.make_folder()
    for target, content in [
        (card, text.encode()),
        *((place.join(name) if name else place, part) for name, part in made.files.items()),
    ]:
        write_whole(target, content, folder=folder)
    keep_names(folder)


def _onnx_how(name: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    """Python that runs the file of that name once, with what this one takes and gives, as Markdown."""
    file = name if PLAIN_NAME.fullmatch(name) else "FILE.onnx"
    actions = [port for port in outputs if port.partition(".")[0] == Columns.ACTIONS]
    given = [f"    {json.dumps(port)}: {_value_of(port, told)}" for port, told in inputs.items()]
    states = any(port.startswith(f"{Columns.STATE_IN}/") for port in inputs)
    return "\n".join(
        [
            "```python",
            *(["import numpy as np"] if len(inputs) > 1 else []),
            "import onnxruntime",
            "",
            f'session = onnxruntime.InferenceSession("{file}")',
            *("given = {", *given, "}"),
            *_asked(actions),
            "```",
            "",
            *([STATES] if states else []),
            f"Or `offline-cli evaluate onnx:{file} --env ENV`.",
        ]
    )


def _asked(actions: Sequence[str]) -> list[str]:
    """Lines of Python that ask for the actions."""
    what = "# as the environment takes them, a row for each copy of it"
    if len(actions) == 1:
        return [f"actions = session.run({json.dumps(actions)}, given)[0]  {what}"]
    return [f"names = {json.dumps(actions)}", f"actions = dict(zip(names, session.run(names, given)))  {what}"]


def _value_of(port: str, told: str) -> str:
    """What is given to an input, as a line of Python; `told`: its dtype and shape."""
    dtype, _, shape = told.partition(" ")
    if port == Columns.OBS:
        return "observation[None],  # as the environment gives it"
    where = "a leaf of the observation" if port.startswith(f"{Columns.OBS}.") else "zeros where an episode begins"
    return f'np.zeros({shape.replace("B", "1", 1)}, "{dtype}"),  # {where}'


STATES: Final = (
    f"`{Columns.STATE_IN}/NAME` is then the `{Columns.STATE_OUT}/NAME` of the call before, and `{Columns.REWARDS}`, where it "
    "is an input, what the last action was answered with.\n"
)
