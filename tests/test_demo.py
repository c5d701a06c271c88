"""`make demo`, which is also the example of RLlib's documents: record 500 expert episodes, clone the expert, reach 450."""

from __future__ import annotations

import shlex
from pathlib import Path

from named_commands import command_named

SCRIPT = Path(__file__).resolve().parent.parent / "sample_data" / "demo.sh"


def commands() -> list[list[str]]:
    """The words of every offline-cli command in the script, in order."""
    joined = SCRIPT.read_text(encoding="utf-8").replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in joined.splitlines() if line.startswith("offline-cli ")]


def test_every_option_of_the_demo_is_one_of_its_command() -> None:
    for words in commands():
        options = {name for parameter in command_named(words[0]).params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, words[0]
