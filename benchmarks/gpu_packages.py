"""What the GPU's tests and questions import, taken from wheels where the Python that is there lacks it; nothing is installed.

`python -m benchmarks.gpu_packages download FOLDER` puts wheels of the small packages there, on a machine with a network, for
machines without one. `provided` unpacks those that are missing into a folder for PYTHONPATH. Packages that are
large, or need many others, have to be there (`THERE`). Imports nothing but the standard library.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path

__all__ = ["SMALL", "THERE", "download", "missing", "provided"]

THERE = {name: name for name in ("torch", "numpy", "pyarrow", "matplotlib", "typer", "rich", "pytest")}
SMALL = {
    "gymnasium": "gymnasium",
    "cloudpickle": "cloudpickle",
    "farama_notifications": "farama-notifications",
    "typing_extensions": "typing-extensions",
    "fsspec": "fsspec",
    "safetensors": "safetensors",
    "msgpack": "msgpack",
    "lz4": "lz4",
    "orjson": "orjson",
    "tomli_w": "tomli-w",
    "jsonschema": "jsonschema",
    "jsonschema_specifications": "jsonschema-specifications",
    "referencing": "referencing",
    "rpds": "rpds-py",
    "attrs": "attrs",
}
"""By the name that is imported the name of the distribution."""

PYTHONS = ("3.11", "3.12")
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_24_x86_64", "manylinux_2_28_x86_64")
CONSTRAINTS = Path(__file__).resolve().parent.parent / ".ci" / "constraints.txt"


def missing(names: Iterable[str] = (*THERE, *SMALL)) -> list[str]:
    """Those of the imports `names` that this Python does not find."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def provided(names: Collection[str], wheels: Path, folder: Path) -> list[str]:
    """Unpack a wheel for each of the imports `names` into `folder`; gives those for which `wheels` has none for this Python."""
    return [name for name in names if name not in SMALL or not _unpacked(SMALL[name], wheels, folder)]


def _unpacked(distribution: str, wheels: Path, folder: Path) -> bool:
    for wheel in sorted(wheels.glob("*.whl")):
        name, _, *tags = wheel.stem.split("-")
        if _plain(name) == _plain(distribution) and _fits(*tags[-3:]):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
            return True
    return False


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _fits(pythons: str, abis: str, platforms: str) -> bool:
    """Whether a wheel with these tags is for this Python on this machine, as far as such small packages go."""
    major, minor = sys.version_info[:2]
    if abis == "none" and platforms == "any":
        return any(python in ("py3", f"py{major}{minor}", f"cp{major}{minor}") for python in pythons.split("."))
    if "linux" not in platforms or not sys.platform.startswith("linux"):
        return False
    if "abi3" in abis.split("."):
        return any(
            int(python.removeprefix(f"cp{major}")) <= minor for python in pythons.split(".") if python[:3] == f"cp{major}"
        )
    return f"cp{major}{minor}" in abis.split(".")


def download(folder: Path, pythons: Iterable[str]) -> None:
    """Put wheels of all small packages into `folder`, for Linux on x86-64. Raises CalledProcessError where pip fails."""
    folder.mkdir(parents=True, exist_ok=True)
    for python in pythons:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, "--dest", str(folder)]
        command += [word for platform in PLATFORMS for word in ("--platform", platform)]
        subprocess.run([*command, "--constraint", str(CONSTRAINTS), *SMALL.values()], check=True)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_packages", description=__doc__)
    parser.add_argument("action", choices=["download"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", nargs="+", default=PYTHONS, metavar="VERSION", help="default: %(default)s")
    options = parser.parse_args(arguments)
    download(options.folder, options.python)
    size = sum(wheel.stat().st_size for wheel in options.folder.glob("*.whl"))
    print(f"{options.folder}: {size / 2**20:.0f} MiB of wheels for Python {' and '.join(options.python)}")


if __name__ == "__main__":
    main(sys.argv[1:])
