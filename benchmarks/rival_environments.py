"""`python -m benchmarks.rival_environments`: a virtual environment for RLlib with Minari, beside ours; `d3rlpy`: one for tests.

The versions are pinned in rivals/requirements. What cannot be installed leaves its error behind, for the row's place.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

__all__ = ["REQUIREMENTS", "Missing", "install", "interpreter", "root"]

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "rivals" / "requirements"
INSTALLED, FAILED = "installed.txt", "failed.txt"


class Missing(Exception):
    """What a row needs is not on this machine: a rival, a recording, a device. Says which, and why."""


def root() -> Path:
    """Where the environments are: `.venv-bench` in the repository, or OFFLINE_CLI_BENCH_RIVALS."""
    return Path(os.environ.get("OFFLINE_CLI_BENCH_RIVALS", HERE.parent / ".venv-bench"))


def interpreter(name: str) -> str:
    """The Python of that environment. Raises Missing with what pip said where it could not be made."""
    folder = root() / name
    if (folder / FAILED).is_file():
        raise Missing(f"{name} cannot be installed: {(folder / FAILED).read_text(encoding='utf-8').strip()}")
    if not (folder / INSTALLED).is_file():
        raise Missing(f"{name} is not installed: run `make bench`")
    return str(folder / "bin" / "python")


def install(name: str, requirements: Path) -> bool:
    """Make or renew the environment for `requirements`, unless it is as they say; whether it can be used."""
    folder = root() / name
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    done = folder / INSTALLED
    if done.is_file() and done.read_text(encoding="utf-8") == wanted:
        return True
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    result = subprocess.run([*pip, "-r", str(requirements)], stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    if result.returncode:
        (folder / FAILED).write_text(_reason(result.stderr), encoding="utf-8")
        return False
    done.write_text(wanted, encoding="utf-8")
    return True


def _reason(words: str) -> str:
    """pip's last line that says what was wrong."""
    lines = [line.strip() for line in words.splitlines() if line.lower().lstrip().startswith("error")]
    return lines[-1] if lines else words.strip().splitlines()[-1] if words.strip() else "pip said nothing"


def main(names: list[str]) -> None:
    """Install them; a rival that cannot be installed is no failure of ours."""
    for name in names:
        usable = install(name, REQUIREMENTS / f"{name}.txt")
        print(f"{name}: {'ready' if usable else 'cannot be installed'}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:] or ["rllib"])
