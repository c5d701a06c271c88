"""CSV files that are not UTF-8: what is proposed for their names, and what is said of the wrong encoding."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli.errors import BadData, BadMapping
from offline_cli.formats.opening import open_sources

Read = Callable[..., Any]


def proposed(path: Path) -> str:
    """The mapping that is proposed for a table."""
    with pytest.raises(BadMapping) as caught:
        open_sources(str(path))
    return str(caught.value.details["starting_mapping"])


ROWS = [(run, k, 0.5 + k * (-1) ** k, k % 2, int(k == 4)) for run in "ab" for k in range(5)]


def encoded(path: Path, header: str, encoding: str, delimiter: str = ",") -> Path:
    """A CSV file of ROWS."""
    lines = [header, *(",".join(map(str, row)) for row in ROWS)]
    path.write_bytes("\n".join(lines).replace(",", delimiter).encode(encoding))
    return path


@pytest.mark.parametrize(("encoding", "obs", "delimiter"), [("cp1252", "température €", ","), ("utf-16", "скорость", ";")])
def test_names_that_are_not_utf_8_are_proposed_as_they_are(
    encoding: str, obs: str, delimiter: str, tmp_path: Path, read_table: Read
) -> None:
    path = encoded(tmp_path / "log.csv", f"run,k,{obs},cmd,done", encoding, delimiter)
    text = proposed(path)
    found = tomllib.loads(text)
    assert found["csv"] == {"encoding": encoding, **({"delimiter": ";"} if delimiter == ";" else {})}
    assert found["columns"]["obs"] == obs
    _, batch = read_table(path, text)
    assert batch.obs[:2].tolist() == [0.5, -0.5]


def test_a_mapping_in_the_wrong_encoding_gets_a_hint(tmp_path: Path, read_table: Read) -> None:
    path = encoded(tmp_path / "log.csv", "run,k,é,cmd,done", "latin-1")
    with pytest.raises(BadMapping) as caught:
        read_table(path, '[columns]\neps_id = "run"\nt = "k"\nobs = "é"\nactions = "cmd"\n')
    assert "[csv] encoding" in caught.value.fix


@pytest.mark.parametrize("small", [True, False])
def test_a_file_without_the_mark_of_its_encoding_is_refused_by_name(small: bool, tmp_path: Path, read_table: Read) -> None:
    path = encoded(tmp_path / "log.csv", "run,k,x,cmd,end", "utf-16-be")
    if not small:
        path.write_bytes(path.read_bytes() + "".join(f"c,{k},0.5,1,0\n" for k in range(200_000)).encode("utf-16-be"))
    mapping = '[columns]\neps_id = "run"\nt = "k"\nobs = "x"\nactions = "cmd"\n[csv]\nencoding = "utf-16"\n'
    columns = 'columns = ["run", "k", "x", "cmd", "end"]\n'
    with pytest.raises(BadData) as caught:
        read_table(path, mapping + columns)
    assert "text that is not utf-16" in caught.value.what
