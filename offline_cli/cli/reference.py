"""Writes docs/cli.md from the commands, or with the argument `config` docs/config.md from the schema, on stdout; refuses to
change a file.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from typing import Any

import typer.main

from offline_cli.cli import apply, convert, evaluate, record, repair, train_bc, validate
from offline_cli.cli import inspect as inspect_command
from offline_cli.cli.app import app
from offline_cli.cli.streams import write
from offline_cli.storage.schemas import load_schema
from offline_cli.training.config_mistakes import SCHEMA, allowed

__all__ = ["config_page", "page"]

_INTRODUCTION = """\
# Commands

<!-- Written by `make docs` from the commands themselves; edit their help, not this page. -->

Every command is `offline-cli COMMAND ...`; `python -m offline_cli COMMAND ...` does the same. Results go to stdout, progress
and messages to stderr, as a bar on a terminal and as an occasional line elsewhere. No command ever asks a question.

- `--json` prints one JSON object and nothing else on stdout. Numbers that JSON cannot hold (NaN, infinities) are `null`.
- A failure prints what happened (`error:`), where (`at:`) and what to try (`try:`) on stderr. With `--json` it also prints
  `{"error": {"code": ..., "what": ..., "where": ..., "fix": ..., ...}, "exit_code": n}` on stdout.
- `--debug` adds the traceback. Without it there never is one.
- `offline-cli` alone prints its help on stderr and exits with 2, so that a script whose command came out empty fails.
- A closed pipe (`offline-cli inspect D | head -c1`) is quiet, and no failure.
- Colours only on a terminal, and not where `NO_COLOR` is set.
"""

_CONFIG = """\
# Configuration of train-bc

<!-- Written by `make docs` from schemas/config.v1.json; edit that, not this page. -->

`offline-cli train-bc ... --config FILE` takes a TOML file with any of these keys. An option of the command line wins over the
file, the file over the run that is resumed, and that over the default. `RUN/config.toml` holds what a run was made with, and
may itself be given as FILE.

```toml
env = "CartPole-v1"
hidden = [64, 64]
activation = "tanh"
batch_size = 256
lr = 0.001
until_return = 450.0
```

| key | value | default | meaning |
| --- | --- | --- | --- |
"""


_KEYS = {
    "record": record.KEYS,
    "convert": convert.KEYS,
    "apply": apply.KEYS,
    "train-bc": train_bc.KEYS,
    "evaluate": evaluate.KEYS,
    "inspect": inspect_command.KEYS,
    "validate": validate.KEYS,
    "repair": repair.KEYS,
}


def page() -> str:
    """The reference of all commands, as Markdown."""
    group: Any = typer.main.get_command(app)
    sections = [_INTRODUCTION, _exit_codes(group.epilog)]
    sections += [_section(name, command) for name, command in group.commands.items()]
    return "\n".join(sections)


def config_page() -> str:
    """The reference of all keys of a config file, as Markdown."""
    rows = []
    for name, key in load_schema(SCHEMA)["properties"].items():
        default = f"`{json.dumps(key['default'])}`" if "default" in key else ""
        rows.append(f"| `{name}` | {allowed(key)} | {default} | {key['description']} |\n")
    return _CONFIG + "".join(rows)


def _exit_codes(epilog: str) -> str:
    rows = [line.split(maxsplit=1) for line in epilog.splitlines()[2:]]
    table = "\n".join(f"| {code} | {meaning} |" for code, meaning in rows)
    return f"## Exit codes\n\n| code | meaning |\n| --- | --- |\n{table}\n"


def _section(name: str, command: Any) -> str:
    positional = [param for param in command.params if param.param_type_name == "argument"]
    flags = [param for param in command.params if param.param_type_name == "option"]
    needed = [f"{param.opts[0]} {param.metavar}" for param in flags if param.required]
    usage = " ".join(["offline-cli", name, *(_positional(param) for param in positional), *needed, "[OPTIONS]"])
    rows = [_row(f"`{_positional(param)}`", param) for param in positional] + [_row(_spelled(param), param) for param in flags]
    examples = "\n".join(_examples(command.epilog))
    keys = ", ".join(f"`{key}`" for key in _KEYS[name])
    return (
        f"## {name}\n\n{inspect.cleandoc(command.help)}\n\n```text\n{usage}\n```\n\n"
        f"| option | meaning | default |\n| --- | --- | --- |\n{chr(10).join(rows)}\n\n"
        f"With `--json`, at least these keys: {keys}.\n\n```sh\n{examples}\n```\n"
    )


def _positional(param: Any) -> str:
    return f"{param.metavar}..." if param.nargs == -1 else str(param.metavar)


def _spelled(param: Any) -> str:
    value = "" if param.is_flag else f" {param.metavar}"
    return ", ".join(f"`{opt}{value}`" for opt in param.opts).replace("|", "\\|")


def _row(spelled: str, param: Any) -> str:
    default = "required" if param.required else "" if param.default in (None, False) else f"`{param.default}`"
    return f"| {spelled} | {param.help} | {default} |"


def _examples(epilog: str) -> Iterator[str]:
    return (line.strip() for line in epilog.splitlines()[2:])


if __name__ == "__main__":
    write(sys.stdout, config_page() if sys.argv[1:] == ["config"] else page())
