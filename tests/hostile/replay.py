"""Replays files of the hostile corpus through the commands: `python tests/hostile/replay.py WORK GROUP... [--quick|--write]`.

One process, a canary in it, and one line of JSON for each file and command: exit code, the error's code, how long the
messages were, whether a traceback was in them, seconds of CPU, and what the canary heard. WORK is the only folder that is
written to. `--write` notes the answers in outcomes.json.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
OUTCOMES = HERE / "outcomes.json"
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
sys.dont_write_bytecode = True  # else modules that are imported under the canary would write theirs

Words = list[str | Path]
TRAINING = ("configs", "datasets", "pipelines", "runs")  # their commands may draw curves
PATIENCE = 100  # seconds of one command, until all stacks are shown and the process ends
QUICK = ("quarantine", "evaluate", "resume", "apply")


def commands(group: str, case: Path, work: Path) -> Iterator[tuple[str, Words]]:
    """The command lines that read a case of a group, each with a name; those of `QUICK` read the most."""
    out = work / "out"
    training = ["--updates", "1", "--batch-size", "8", "--device", "cpu"]
    table, data = CORPUS / "tables" / "good.csv", CORPUS / "recordings" / "good.parquet"
    if group == "mappings":
        yield "inspect", ["inspect", table, "--mapping", case]
        yield "convert", ["convert", table, "--mapping", case, "--out", out]
    elif group == "configs":
        yield "train-bc", ["train-bc", data, "--config", case, "--out", out]
    elif group == "pipelines":
        yield "apply", ["apply", data, "--pipeline", case, "--out", out]
        yield "train-bc", ["train-bc", data, "--pipeline", case, "--out", work / "trained", *training]
    elif group == "runs":
        copy = work / "run"
        shutil.copytree(case, copy)
        yield "evaluate", ["evaluate", copy, "--env", "CartPole-v1", "--episodes", "1"]
        # others would only be trained once more
        if (case / "state.safetensors").is_file() or not (case / "policy.json").is_file():
            yield "resume", ["train-bc", data, "--out", copy, "--resume"]
        yield "record", ["record", "CartPole-v1", "--out", out, "--policy", copy, "--episodes", "1", "--num-env-runners", "0"]
    else:
        yield "inspect", ["inspect", case]
        yield "quarantine", ["convert", case, "--out", work / "kept", "--on-error", "quarantine", "--to", "columns"]
        yield "validate", ["validate", case]
        yield "convert", ["convert", case, "--out", out]
        if group == "datasets":
            yield "deep", ["validate", case, "--deep"]
            yield "train-bc", ["train-bc", case, "--out", work / "trained", *training]


def cases(group: str) -> list[Path]:
    return sorted((CORPUS / group).iterdir())


def replay(group: str, work: Path, *, quick: bool = False) -> Iterator[dict[str, Any]]:
    """What came of each case and command."""
    from canary import Canary, CanaryDied
    from typer.testing import CliRunner

    from offline_cli.cli.app import app

    if group in TRAINING:
        import matplotlib.font_manager  # noqa: F401  the first time, it asks a program where the fonts lie

    canary = Canary(readable=[CORPUS], writable=[work])
    runner = CliRunner()
    for case in cases(group):
        place = work / case.name
        place.mkdir(parents=True)
        for name, words in commands(group, case, place):
            if quick and name not in QUICK and (group, name) not in (("configs", "train-bc"), ("mappings", "inspect")):
                continue
            before = time.process_time()
            _forget_peak()
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            canary.arm()
            try:
                done = runner.invoke(app, [*map(str, words), "--json", "--quiet"])
                exit_code, stdout, stderr = done.exit_code, done.stdout, done.stderr
            except CanaryDied:
                exit_code, stdout, stderr = -1, "", ""
            canary.armed = False
            faulthandler.cancel_dump_traceback_later()
            yield {
                "case": f"{group}/{case.name}",
                "command": name,
                "exit": exit_code,
                **_said(stdout),
                "letters": len(stderr) + len(stdout),
                "traceback": "Traceback" in stderr or "Traceback" in stdout,
                "peak_mib": _peak_mib(),
                "seconds": round(time.process_time() - before, 2),
                "deaths": list(canary.deaths),
            }
            canary.deaths.clear()
        shutil.rmtree(place)


def _forget_peak() -> None:
    """Linux can count the most memory from now on; elsewhere the figure is that of the whole process."""
    gc.collect()
    gc.freeze()  # what stays are modules, which need not be looked through each time
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_mib() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 20
    return next(int(line.split()[1]) >> 10 for line in status.read_text().splitlines() if line.startswith("VmHWM"))


def _said(stdout: str) -> dict[str, Any]:
    """The error's code, and whether a result tells of problems or assumptions."""
    try:
        told = json.loads(stdout)
    except ValueError:
        return {"code": "no JSON", "told": False}
    error = told.get("error") or {}
    counted = told.get("problems") or told.get("assumptions") or told.get("rows_quarantined")
    return {"code": error.get("code", ""), "what": error.get("what", "")[:300], "told": bool(counted)}


def main() -> None:
    """Replay the groups of the command line."""
    work, *words = sys.argv[1:]
    os.environ["TMPDIR"] = os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.realpath(
        work
    )  # torch makes its folder when imported
    groups = [word for word in words if not word.startswith("-")]
    outcomes: dict[str, dict[str, str]] = {}
    for group in groups:
        for found in replay(group, Path(work).resolve(), quick="--quick" in words):
            print(json.dumps(found), flush=True)
            outcomes.setdefault(found["case"], {})[found["command"]] = f"{found['exit']} {found['code']}".strip()
    if "--write" in words:
        known = json.loads(OUTCOMES.read_text()) if OUTCOMES.exists() else {}
        kept = {case: told for case, told in known.items() if case.partition("/")[0] not in groups}
        OUTCOMES.write_text(json.dumps(dict(sorted((kept | outcomes).items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
