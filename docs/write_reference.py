"""Write what `make docs` makes: `cli` docs/cli.md, `config` docs/config.md, `schema NAME` schemas/NAME.v1.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from offline_cli.cli.app import COMMANDS, EXIT_CODES
from offline_cli.cli.command import built
from offline_cli.cli.streams import write
from offline_cli.connectors.pipeline_spec import pipeline_schema
from offline_cli.datasets.manifest import manifest_schema
from offline_cli.formats.tables.mapping import mapping_schema
from offline_cli.modules.network import OURS
from offline_cli.training.algorithms.algorithm import own_algorithms
from offline_cli.training.config import allowed, config_schema

__all__ = ["cli_page", "config_page", "schema_page"]

_CLI = """\
# Commands

<!-- Written by `make docs` from the commands themselves; edit their help, not this page. -->

Every command is `offline-cli COMMAND ...`; `python -m offline_cli COMMAND ...` does the same. Results go to stdout, progress
and messages to stderr, as a bar on a terminal and as an occasional line elsewhere. No command ever asks a question.

- `-h` shows what most people need of a command, `--help` everything. `offline-cli --install-completion` has the shell complete
  commands, options, sources, run folders and presets.
- `--json` prints one JSON object and nothing else on stdout, with its `notes`. Numbers that JSON cannot hold (NaN, infinities)
  are `null`.
- A failure prints what happened (`error:`), where (`at:`) and what to try (`try:`) on stderr. With `--json` it also prints
  `{"error": {"code": ..., "what": ..., "where": ..., "fix": ..., ...}, "exit_code": n}` on stdout.
- `--debug` adds the traceback. Without it there never is one.
- `offline-cli` alone prints its help on stderr and exits with 2, so that a script whose command came out empty fails.
- A closed pipe (`offline-cli inspect D | head -c1`) is quiet, and no failure.
- Colours only on a terminal, and not where `NO_COLOR` is set.
"""

_CONFIG = """\
# Configuration of train

<!-- Written by `make docs` from offline_cli/training/config.py and the schemas of algorithms and networks. -->

`offline-cli train ... --config FILE` and `train-bc` take a TOML file with any of these keys; its JSON Schema is
`schemas/config.v1.json`. An option of the command line wins over the file, the file over the run that is resumed, and that over
the default; a `--network` or `--algorithm` beside a file that names another is exit code 4. `RUN/config.toml`
holds what a run was made with, and may itself be given as FILE.

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

`[algorithm]` and `[network]` hold a name, and the options of what it names. All mistakes are reported at once.
Other packages register more of both: [algorithms.md](algorithms.md). `hidden` and `activation` are the options of the network
`mlp`, and may stand in its table as well.
"""

HEAD = "| {} | value | default | meaning |\n| --- | --- | --- | --- |\n"


def cli_page() -> str:
    """The reference of all commands, as Markdown."""
    rows = [line.split(maxsplit=1) for line in EXIT_CODES.splitlines()[2:]]
    codes = "## Exit codes\n\n| code | meaning |\n| --- | --- |\n" + "".join(f"| {code} | {text} |\n" for code, text in rows)
    return "\n".join([_CLI, codes, *map(_section, COMMANDS)])


def _section(name: str) -> str:
    command = built(name, COMMANDS[name])
    ctx = command.context_class(command, info_name=f"offline-cli {name}")
    panels: dict[str, list[str]] = {"Arguments": []}
    for one in command.params:
        names, meaning = one.get_help_record(ctx)
        cells = names.replace("|", "\\|"), meaning.replace("|", "\\|")
        panels.setdefault(one.rich_help_panel or "Arguments", []).append(f"| `{cells[0]}` | {cells[1]} |\n")
    tables = "\n".join(f"| {panel} | |\n| --- | --- |\n{''.join(rows)}" for panel, rows in panels.items())
    examples, keys = "\n".join(command.about.examples), ", ".join(f"`{key}`" for key in command.about.keys)
    usage = f"```text\n{ctx.info_name} {' '.join(command.collect_usage_pieces(ctx))}\n```"
    shown = f"```sh\n{examples}\n```\n\nWith `--json`, at least these keys: {keys}, `notes`."
    return f"## {name}\n\n{command.help}\n\n{usage}\n\n{shown}\n\n{tables}"


def config_page() -> str:
    """The reference of all keys of a config file, as Markdown."""
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


SCHEMAS = {"config": config_schema, "manifest": manifest_schema, "mapping": mapping_schema, "pipeline": pipeline_schema}


def schema_page(name: str) -> str:
    """schemas/NAME.v1.json."""
    return json.dumps(SCHEMAS[name](), indent=2) + "\n"


if __name__ == "__main__":
    pages: dict[str, Callable[[], str]] = {
        "cli": cli_page,
        "config": config_page,
        **{f"schema {name}": partial(schema_page, name) for name in SCHEMAS},
    }
    write(sys.stdout, pages[" ".join(sys.argv[1:])]())
