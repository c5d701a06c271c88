"""Writes docs/cli.md from the commands, or with the argument `config` docs/config.md, on stdout."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from offline_cli.cli.app import COMMANDS, EXIT_CODES, command_named
from offline_cli.cli.command_line import Command, Shown, placed
from offline_cli.cli.streams import write
from offline_cli.modules.network import OURS
from offline_cli.options.keywords import schema_of
from offline_cli.options.option import Declared, Group, declared_in
from offline_cli.options.training import ConfigKeys
from offline_cli.training.algorithms.algorithm import own_algorithms
from offline_cli.training.config_mistakes import allowed

__all__ = ["config_page", "page"]

HEADER = "| option | meaning | default |\n| --- | --- | --- |\n"

_INTRODUCTION = """\
# Commands

<!-- Written by `make docs` from the commands themselves; edit their help, not this page. -->

Every command is `offline-cli COMMAND ...`; `python -m offline_cli COMMAND ...` does the same. Results go to stdout, progress
and messages to stderr, as a bar on a terminal and as an occasional line elsewhere. No command ever asks a question.

- `--json` prints one JSON object and nothing else on stdout. Numbers that JSON cannot hold (NaN, infinities) are `null`.
- A failure prints what happened (`error:`), where (`at:`) and what to try (`try:`) on stderr. With `--json` it also prints
  `{"error": {"code": ..., "what": ..., "where": ..., "fix": ..., ...}, "exit_code": n}` on stdout.
- `-h` and `--help` show the options of a command, with examples.
- `--debug` adds the traceback. Without it there never is one.
- `offline-cli` alone prints its help on stderr and exits with 2, so that a script whose command came out empty fails.
- A closed pipe (`offline-cli inspect D | head -c1`) is quiet, and no failure.
- Colours only on a terminal, and not where `NO_COLOR` is set.
"""

_CONFIG = """\
# Configuration of train-bc

<!-- Written by `make docs` from offline_cli/options/training.py and the schemas of algorithms and networks. -->

`offline-cli train-bc ... --config FILE` takes a TOML file with any of these keys. An option of the command line wins over the
file, the file over the run that is resumed, and that over the default; only two different sizes of one network, `--hidden`
and `hidden` of the file, are exit code 2. `RUN/config.toml` holds what a run was made with, and
may itself be given as FILE.

```toml
env = "CartPole-v1"
hidden = [64, 64]
activation = "tanh"
batch_size = 256
lr = 0.001
until_return = 450.0
```

"""

_TABLES = """\
## Tables

`[algorithm]` and `[network]` hold a name, and the options of what it names. All mistakes are reported at once.
Other packages register more of both: [algorithms.md](algorithms.md). `hidden` and `activation` are the options of the network
`mlp`, and may stand in its table as well.
"""


def page() -> str:
    """The reference of all commands, as Markdown."""
    return "\n".join([_INTRODUCTION, _exit_codes(EXIT_CODES), *(_section(command_named(name)) for name in COMMANDS)])


def config_page() -> str:
    """The reference of all keys of a config file, as Markdown."""
    keys = declared_in(ConfigKeys)
    tables = []
    for group in Group:
        rows = [_key(name, key) for name, key in schema_of(ConfigKeys).items() if keys[name].option.group is group]
        if rows:
            tables.append(
                f"## {group.value}\n\n| key | value | default | meaning |\n| --- | --- | --- | --- |\n" + "".join(rows)
            )
    own = {f"[algorithm] {name}": kind.schema for name, kind in own_algorithms().items()}
    own |= {f"[network] {name}": kind.schema for name, kind in OURS.items()}
    return "\n".join([_CONFIG + "\n".join(tables), _TABLES, *(_table(title, schema) for title, schema in own.items())])


def _table(title: str, schema: Mapping[str, Any]) -> str:
    rows = "".join(_key(name, key) for name, key in schema["properties"].items())
    return f"### {title}\n\n" + (
        f"| key | value | default | meaning |\n| --- | --- | --- | --- |\n{rows}" if rows else "No options.\n"
    )


def _key(name: str, key: Mapping[str, Any]) -> str:
    default = f"`{json.dumps(key['default'])}`" if "default" in key else ""
    return f"| `{name}` | {allowed(key)} | {default} | {key['description']} |\n"


def _exit_codes(epilog: str) -> str:
    rows = [line.split(maxsplit=1) for line in epilog.splitlines()[2:]]
    table = "\n".join(f"| {code} | {meaning} |" for code, meaning in rows)
    return f"## Exit codes\n\n| code | meaning |\n| --- | --- |\n{table}\n"


def _section(command: Command) -> str:
    shown = command.shown
    tables = [f"| | meaning | default |\n| --- | --- | --- |\n{_rows(shown.arguments, shown)}"]
    tables += [f"**{heading}**\n\n{HEADER}{_rows(members, shown)}" for heading, members in shown.groups()]
    if not shown.arguments:
        del tables[0]
    keys = ", ".join(f"`{key}`" for key in command.keys)
    examples = "\n".join(command.examples)
    return (
        f"## {command.name}\n\n{inspect.cleandoc(command.run.__doc__ or '')}\n\n"
        f"```text\noffline-cli {command.name} {' '.join(shown.usage())}\n```\n\n"
        + "\n".join(tables)
        + f"\nWith `--json`, at least these keys: {keys}.\n\n```sh\n{examples}\n```\n"
    )


def _rows(members: Sequence[Declared], shown: Shown) -> str:
    return "".join(_row(one, shown) for one in members)


def _row(one: Declared, shown: Shown) -> str:
    value = f" {one.metavar}" if one.metavar and not one.option.is_argument else ""
    names = [placed(one)] if one.option.is_argument else [*shown.names(one)]
    spelled = ", ".join(f"`{name}{value}`" for name in names).replace("|", "\\|")
    default = shown.default_of(one)
    default = "required" if one.required else f"`{default}`" if one.option.default is not None and default else default
    return f"| {spelled} | {shown.meaning(one)} | {default} |\n"


if __name__ == "__main__":
    write(sys.stdout, config_page() if sys.argv[1:] == ["config"] else page())
