"""Rivals in processes of their own: what they answer, and what a row says when they cannot."""

from __future__ import annotations

import sys
import textwrap

import pytest

from benchmarks import rival_environments, rival_process
from benchmarks.cold_start import answer
from benchmarks.harness import Missing
from benchmarks.rival_environments import install, interpreter
from benchmarks.rival_process import SCRIPTS, Rival

pytestmark = pytest.mark.nightly

SCRIPT = """
import sys
sys.path.insert(0, {serving!r})
from serving import serve
def prepare(amount):
    print("what a library prints")
    runs = []
    def run():
        runs.append(1)
        print("and prints", file=sys.stderr)
        if len(runs) > amount:
            raise RuntimeError("too many runs")
        return amount
    return run
serve(prepare, "pip")
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text(SCRIPT.format(serving=str(SCRIPTS)))
    monkeypatch.setattr(rival_process, "SCRIPTS", tmp_path)
    return "toy.py"


def test_a_rival_gives_a_rate_each_time_it_is_asked_and_its_versions(script):
    with Rival(script, "none", python=sys.executable, amount=3) as rival:
        assert rival.versions.startswith("pip ")
        assert rival() > 0
        assert rival() > 0


def test_a_rival_that_fails_is_missing_with_its_last_words(script):
    with (
        pytest.raises(Missing, match=r"toy\.py failed: RuntimeError: too many runs"),
        Rival(script, "none", python=sys.executable, amount=2) as rival,
    ):
        rival()
        rival()


def test_a_rival_that_cannot_start_is_missing_with_its_last_words(tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text("import no_such_package")
    monkeypatch.setattr(rival_process, "SCRIPTS", tmp_path)
    with pytest.raises(Missing, match="No module named 'no_such_package'"), Rival("toy.py", "none", python=sys.executable):
        pass


def test_a_rival_that_says_nothing_is_missing(tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text("import sys; sys.stdin.read()")
    monkeypatch.setattr(rival_process, "SCRIPTS", tmp_path)
    monkeypatch.setattr(rival_process, "PATIENCE", 0.2)
    with pytest.raises(Missing, match="said nothing"), Rival("toy.py", "none", python=sys.executable):
        pass


def test_a_rival_does_not_see_our_packages(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "PYTHONPATH" not in rival_process.clean_environment()


def test_an_environment_that_is_not_there_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("OFFLINE_CLI_BENCH_RIVALS", str(tmp_path))
    with pytest.raises(Missing, match="rllib is not installed: run `make bench`"):
        interpreter("rllib")


def test_what_pip_refuses_is_kept_for_the_rows_place(tmp_path, monkeypatch):
    monkeypatch.setenv("OFFLINE_CLI_BENCH_RIVALS", str(tmp_path))

    def run(command, **_):
        (tmp_path / "d3rlpy").mkdir(exist_ok=True)
        words = "noise\nERROR: no matching distribution for gym\nmore noise"
        return type("Done", (), {"returncode": int("pip" in command), "stderr": words})()

    monkeypatch.setattr(rival_environments.subprocess, "run", run)
    requirements = tmp_path / "d3rlpy.txt"
    requirements.write_text("d3rlpy==2.8.1")
    assert not install("d3rlpy", requirements)
    with pytest.raises(Missing, match="d3rlpy cannot be installed: ERROR: no matching distribution for gym"):
        interpreter("d3rlpy")


def test_an_environment_is_made_once_and_again_when_its_requirements_change(tmp_path, monkeypatch):
    monkeypatch.setenv("OFFLINE_CLI_BENCH_RIVALS", str(tmp_path))
    made = []

    def run(command, **_):
        made.append(command)
        (tmp_path / "imitation").mkdir(exist_ok=True)
        return type("Done", (), {"returncode": 0, "stderr": ""})()

    monkeypatch.setattr(rival_environments.subprocess, "run", run)
    requirements = tmp_path / "imitation.txt"
    requirements.write_text("imitation==1.0.1")
    assert install("imitation", requirements)
    assert install("imitation", requirements)
    assert len(made) == 2  # the environment, and its packages
    requirements.write_text("imitation==1.0.2")
    assert install("imitation", requirements)
    assert len(made) == 4
    assert interpreter("imitation").endswith("python")


def test_every_rival_pins_the_versions_that_its_row_is_about():
    for file in rival_environments.REQUIREMENTS.glob("*.txt"):
        lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        assert all("==" in line for line in lines), textwrap.shorten(file.name, 40)
        assert "torch==2.13.0" in lines


def test_a_program_answers_with_its_last_line_of_json():
    code = """print('(worker) hello'); print('{"reached": true}'); print('(worker) bye')"""
    assert answer([sys.executable, "-c", code]) == {"reached": True}


def test_a_program_that_fails_is_missing_with_its_last_words():
    with pytest.raises(Missing, match="no cluster"):
        answer([sys.executable, "-c", "raise SystemExit('no cluster')"])
