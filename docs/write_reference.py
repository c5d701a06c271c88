"""Generated pages of the reference, and `schema NAME`: schemas/NAME.v1.json.

docs/conf.py writes the pages into docs/reference/ before each build; git ignores them, and nobody edits them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import offline_cli
from offline_cli import connectors, errors
from offline_cli.checking.validate import CODES
from offline_cli.checking.validate.findings import SEVERITIES
from offline_cli.cli import failures
from offline_cli.cli.app import COMMANDS, EXIT_CODES
from offline_cli.cli.streams import write
from offline_cli.connectors.pipeline_spec import pipeline_schema
from offline_cli.datasets.manifest import manifest_schema
from offline_cli.formats.tables.mapping import mapping_schema
from offline_cli.modules.network import OURS
from offline_cli.training.algorithms.algorithm import own_algorithms
from offline_cli.training.config import allowed, config_schema

__all__ = ["PAGES", "SCHEMAS", "schema_page", "write_pages"]

SCHEMAS = {"config": config_schema, "manifest": manifest_schema, "mapping": mapping_schema, "pipeline": pipeline_schema}
SCHEMA_FILES = Path(__file__).resolve().parent.parent / "schemas"

_COMMANDS = """\
# Commands

Every command is `offline-cli COMMAND ...`; `python -m offline_cli COMMAND ...` does the same. Results go to stdout,
progress and messages to stderr. No command asks a question.

- `-h` shows the most used options, `--help` all of them. `offline-cli --install-completion` completes words in your shell.
- `--json` prints one JSON object on stdout and nothing else. NaN and infinities are `null`.
- A failure prints `error:` (what happened), `at:` (where) and `try:` (what to do) on stderr; `--json` adds `{"error":
  {"code": ..., "what": ..., "where": ..., "fix": ...}, "exit_code": n}` on stdout. `--debug` adds the traceback.
- Each command is also a function of the same name: [Python API](../python.md).

"""

_ERRORS = """\
# Errors and exit codes

Every error a user can cause is an `OfflineCliError` with `what`, `where` and `fix`; the message says which place and which
option. `--json` reports the code below as `error.code`. Problems that `validate` lists are in [checks](checks.md).

## Exit codes

| exit code | meaning |
| --- | --- |
"""

_CHECKS = """\
# Checks of validate

`offline-cli validate` reads a dataset or any recording once and lists what is wrong ([how to check and
repair](../howto/check-and-repair.md)). An **error** means that some command refuses the data or would learn from numbers
that nobody recorded; a **warning** that reading repairs or tolerates it; a **note** is worth knowing. Errors are exit code
3, and so are warnings with `--strict`. Each entry is counted in the unit that it names.
"""

_CONFIG = """\
# Configuration of train

`offline-cli train ... --config FILE` and `train-bc` take a TOML file with any of these keys ([JSON
Schema](schemas.md#config)). An option of the command line wins over the file, the file over the run that is resumed, and
that over the default. A `--network` or `--algorithm` beside a file that names another is exit code 4. `RUN/config.toml`
holds what a run was made with, and may be given as FILE.

```toml
env = "CartPole-v1"
hidden = [64, 64]
activation = "tanh"
batch_size = 256
lr = 0.001
until_return = 450.0
```

"""

_TABLES = """
## Tables

`[algorithm]` and `[network]` hold a name, and the options of what it names. All mistakes are reported at once. Other packages
can register more of both ([extend](../howto/extend.md)). `hidden` and `activation` are options of the network `mlp`, and may
stand in its table as well.
"""

_SCHEMAS = """\
# Schemas

JSON Schemas of the files that offline-cli writes or reads. They ship with the package, in `offline_cli/schemas/`; editors
use them to complete and check TOML and JSON.
"""

_PYTHON = """\
# Python API

Each command is a function of the same name: arguments first, then `out`, then options as keywords with the limits and
defaults of the command line. [Work in Python](../howto/python.md) shows how to use them. All names below are imported from
`offline_cli`.
"""

_PIECES = """\
# Connector pieces

Pieces between episodes and modules, from `offline_cli.connectors`; RLlib's import paths work too. A pipeline file names a
piece in snake case (`frame_stacking`) with its arguments as keys ([pipelines](../howto/pipelines.md)).
"""

REMEDIES = {
    "Bug": "Run the same command with `--debug`, and report the traceback with the command.",
    "UsageError": "Correct the option that the message names; `offline-cli COMMAND --help` lists all of them.",
    "OutputExists": "Choose another `--out`, or replace what is there with `--overwrite`, or continue it with `--resume`.",
    "BadData": "Look at the place that the message names. `validate` lists everything that is wrong, and `convert --on-error "
    "quarantine` sets bad rows aside.",
    "BadEpisode": "Correct the cell, set `[fill]` in the mapping, or skip the episode with `convert --on-error skip`. "
    "T actions and rewards need T+1 observations.",
    "EpisodeIndexError": "Ask for a timestep within `len(episode)`, or pass `fill`.",
    "EpisodeKeyError": "`episode.extra_model_outputs` names the outputs that it holds.",
    "UnsafeData": "Ask who wrote the file. Store numbers or JSON text instead of objects.",
    "InvalidData": "Each problem is listed with a remedy of its own; see the checks of validate.",
    "NoData": "Check the path. A dataset is the folder with `manifest.json`; `--from NAME` insists on a format.",
    "Uncommitted": "Run the same command again with `--resume`, or `offline-cli repair` to keep what is there.",
    "BadConfig": "Correct the mistakes that the message lists; all of them are listed at once.",
    "BadMapping": "Correct the mapping; `convert` without a mapping proposes one.",
    "TrainingDiverged": "Lower `--lr`, set `--clip-norm`, or put `mean_std_filter` before the network.",
    "SpaceMismatch": "Name the environment with `--env`, or convert the data to the spaces of the policy.",
    "UnknownPiece": "Correct the name; the message lists the pieces that there are, and an import path names one of your own.",
    "BadPiece": "Correct the arguments of the piece, or what its method returns, as the message says.",
    "UnsupportedSpace": "Use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple; `convert --drop` leaves out a part.",
    "UnknownEnvironment": "Correct the id, or name the module that registers it: `--env module:EnvId`.",
    "StorageError": "Check credentials, network and free space; then run the same command with `--resume`.",
    "StorageNotFound": "Check the path or URL, and whether the credentials are those of its owner.",
    "ClusterLost": "See that the cluster is up, then run the same command with `--resume`.",
    "WorkerDied": "Give fewer `--workers` or more memory, then run the same command with `--resume`.",
    "Locked": "Wait for the other writer. If it has ended on another machine: `--resume --force-unlock`.",
    "TakenOver": "Let one writer at a time work in a folder; the other writer now owns the dataset; stop this one.",
    "MissingPackage": "Run the install line of the message.",
    "OutOfMemory": "Use a smaller input or `--batch-size`, or a machine with more memory.",
    "MissingDevice": "Choose another `--device`, or install a PyTorch build for this one.",
    "MemoryLimitExceeded": "Raise `--memory-limit`, or use `--streaming` in training.",
    "TargetNotMet": "Look at the figure that the message names; the data and the best policy are kept.",
    "Interrupted": "What is whole was saved; run the same command with `--resume`.",
}
"""What to do about each error, where its own `fix` is not at hand."""

GUIDES = {
    "record": ("record", "agents", "scale"),
    "convert": ("tables", "formats", "check-and-repair"),
    "apply": ("pipelines",),
    "train": ("train", "algorithms"),
    "train-bc": ("train", "pipelines"),
    "evaluate": ("train", "ci", "offline-evaluation"),
    "compare": ("compare",),
    "publish": ("share",),
    "export": ("export", "deploy"),
    **dict.fromkeys(("report", "curves"), ("report",)),
    **dict.fromkeys(("inspect", "validate", "repair"), ("check-and-repair",)),
    **dict.fromkeys(("filter", "sample", "split", "merge", "repack", "diff"), ("select-and-split",)),
}
"""How-to pages of each command."""

HEAD = "| {} | value | default | meaning |\n| --- | --- | --- | --- |\n"


def write_pages(folder: Path) -> None:
    """Write all generated pages below `folder`; files that would not change keep their time, so that builds are short."""
    for name, page in PAGES.items():
        for path, text in {name: page()}.items() if name else command_pages().items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.is_file() or file.read_text(encoding="utf-8") != text:
                file.write_text(text, encoding="utf-8")


def command_pages() -> dict[str, str]:
    """A page for each command, which sphinxcontrib-typer fills, and one that lists them."""
    lines = {name: (command.__doc__ or "").partition("\n")[0] for name, command in COMMANDS.items()}
    listed = "".join(f"| [{name}]({name}.md) | {line} |\n" for name, line in lines.items())
    toctree = "\n```{toctree}\n:hidden:\n\n" + "\n".join(lines) + "\n```\n"
    pages = {"commands/index.md": f"{_COMMANDS}| command | what it does |\n| --- | --- |\n{listed}{toctree}"}
    for name in lines:
        directive = f":prog: offline-cli {name}\n:width: 118\n:preferred: text\n"
        guides = " · ".join(f"[{guide}](../../howto/{guide}.md)" for guide in GUIDES[name])
        pages[f"commands/{name}.md"] = (
            f"# {name}\n\nHow to: {guides}\n\n```{{typer}} offline_cli.cli.app:app:{name}\n{directive}```\n"
        )
    return pages


def errors_page() -> str:
    """Exit codes, and each class of errors by its code."""
    rows = [line.split(maxsplit=1) for line in EXIT_CODES.splitlines()[2:]]
    page = _ERRORS + "".join(f"| {code} | {text} |\n" for code, text in rows) + "\n## Codes\n"
    for kind in sorted(set(error_classes()), key=lambda one: one.code):
        cause, remedy = " ".join((kind.__doc__ or "").split()), REMEDIES[kind.__name__]
        page += (
            f"\n### {kind.code}\n\n{cause} Exit code {kind.exit_code}; `{kind.__name__}` in Python.\n\n**Remedy:** {remedy}\n"
        )
    return page


def error_classes() -> Iterator[type[errors.OfflineCliError]]:
    """Every error that a user can meet."""
    for kind in (vars(errors) | vars(failures)).values():
        if isinstance(kind, type) and issubclass(kind, errors.OfflineCliError) and kind is not errors.OfflineCliError:
            yield kind


def checks_page() -> str:
    """Every problem that `validate` reports, worst first."""
    page = _CHECKS
    for severity in SEVERITIES:
        page += f"\n## {severity.capitalize()}s\n"
        for name, code in CODES.items():
            if code.severity == severity:
                usual = f" {code.otherwise.capitalize()}." if code.otherwise else ""
                page += f"\n### {name}\n\n{code.unit.capitalize()}s: {code.meaning}.{usual}\n\n**Remedy:** {code.fix}.\n"
    return page


def config_page() -> str:
    """All keys of a config file."""
    own = {f"[algorithm] {name}": kind.schema for name, kind in own_algorithms().items()}
    own |= {f"[network] {name}": kind.schema for name, kind in OURS.items()}
    tables = [f"\n### {title}\n\n{_rows(schema['properties']) or 'No options.'}" for title, schema in own.items()]
    return _CONFIG + _rows(config_schema()["properties"]) + _TABLES + "".join(tables)


def _rows(properties: Mapping[str, Any]) -> str:
    rows = ""
    for name, key in properties.items():
        default = f"`{json.dumps(key['default'])}`" if "default" in key else ""
        rows += f"| `{name}` | {allowed(key)} | {default} | {key['description']} |\n"
    return rows and HEAD.format("key") + rows


def schemas_page() -> str:
    """Each schema: what it is of, its keys, and the file."""
    page = _SCHEMAS
    for file in sorted(SCHEMA_FILES.glob("*.json")):
        schema = json.loads(file.read_text(encoding="utf-8"))
        name = file.name.partition(".")[0]
        page += f"\n## {name}\n\n{schema.get('description', '')}\n\n{{download}}`{file.name} <../../schemas/{file.name}>`\n"
        parts = {"": schema, **(schema.get("$defs", {}) if schema.get("properties") else {})}
        for part, one in parts.items():
            rows = "".join(
                f"| `{key}` | {_value(kind)} | {_meaning(kind)} |\n" for key, kind in one.get("properties", {}).items()
            )
            title = f"\nA `{part}` has:\n" if part else ""
            page += f"{title}\n| key | value | meaning |\n| --- | --- | --- |\n{rows}" if rows else ""
    return page


def _value(schema: Mapping[str, Any]) -> str:
    """What a key may be, in short."""
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{json.dumps(one)}`" for one in schema.get("enum", [schema.get("const")]))
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if kinds := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(_value, kinds)))
    kind = schema.get("type", "any")
    listed = " or ".join(kind) if isinstance(kind, list) else kind
    return f"{listed} of {_value(schema['items'])}" if listed == "array" and schema.get("items") else listed


def _meaning(schema: Mapping[str, Any]) -> str:
    default = f" Default: `{json.dumps(schema['default'])}`." if schema.get("default") not in (None, "", {}, []) else ""
    return re.sub(r"\s+", " ", schema.get("description", "") + default).replace("|", "\\|").strip()


def python_page() -> str:
    """Functions, then classes, by autodoc."""
    names = [name for name in offline_cli.__all__ if name != "__version__"]
    classes = [name for name in names if isinstance(getattr(offline_cli, name), type)]
    functions = "".join(_entry("function", name) for name in names if name not in classes)
    return f"{_PYTHON}\n## Functions\n{functions}\n## Classes\n" + "".join(_entry("class", name) for name in classes)


def _entry(kind: str, name: str, package: str = "offline_cli") -> str:
    return f"\n### {name}\n\n```{{eval-rst}}\n.. auto{kind}:: {package}.{name}\n```\n"


def pieces_page() -> str:
    """All pieces by autodoc: what each does, and its arguments."""
    names = {name for name, kind in vars(connectors).items() if isinstance(kind, type) and name[0].isupper()}
    own = [name for name in sorted(names) if getattr(connectors, name).__module__.startswith("offline_cli.connectors.")]
    bases = ("ConnectorV2", "ConnectorPipelineV2")  # on the page of the API
    shown = [name for name in own if name not in bases and issubclass(getattr(connectors, name), connectors.ConnectorV2)]
    entry = "\n### {0}\n\n```{{eval-rst}}\n.. autoclass:: offline_cli.connectors.{0}\n   :no-members:\n```\n"
    return _PIECES + "".join(entry.format(name) for name in shown).replace("\n### ", "\n## ")


PAGES: dict[str, Callable[[], str]] = {
    "": str,  # commands/
    "errors.md": errors_page,
    "checks.md": checks_page,
    "config.md": config_page,
    "schemas.md": schemas_page,
    "python.md": python_page,
    "pieces.md": pieces_page,
}


def schema_page(name: str) -> str:
    """schemas/NAME.v1.json."""
    return json.dumps(SCHEMAS[name](), indent=2) + "\n"


if __name__ == "__main__":
    write(sys.stdout, schema_page(sys.argv[2]))
