"""`make gpu`, as far as a machine without a GPU can tell: what it says there, what it keeps, and how the page takes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_packages
from benchmarks.harness import Row, missing
from benchmarks.page import main as page_main
from benchmarks.run import QUESTIONS, answered
from benchmarks.targets import Target

REPOSITORY = Path(__file__).resolve().parents[2]
ABOUT = {"name": "NVIDIA H200", "memory_gib": 139.7, "driver": "570.1", "torch": "2.11.0", "cuda": "13.0", "found": True}
MACHINE = {
    "date": "2026-11-23",
    "processor": "16 cores, X",
    "load": "0.1",
    "busy": "",
    "python": "3.12.3",
    "versions": "numpy 2.5",
}
PASSED = '<testsuites><testsuite><testcase classname="a" name="b"/></testsuite></testsuites>'
SKIPPED = '<testsuite><testcase classname="a" name="b"><skipped message="no GPU"/></testcase></testsuite>'


def row(question="one update on the GPU"):
    return Row(question, "updates/s", 2e4, 1e3, 20.0, "a bare PyTorch loop", "", 7, target=Target(1, of="ours", words="fast"))


def a_machine(*, report=PASSED, tests=0, answers=None, slow=()):
    """Stands in for child processes: writes pytest's report, and answers questions."""

    def run(arguments, limit):
        (folder,) = [word.removeprefix("--junit-xml=") for word in arguments if word.startswith("--junit-xml=")] or [None]
        if folder is not None:
            Path(folder).write_text(report)
            return tests, "said by pytest"
        name = arguments[-1]
        if name in slow:
            return None, ""
        rows = (answers or {}).get(name, [row(f"{name} on the GPU")])
        if isinstance(rows, str):
            return 1, rows
        return 0, f"a warning\n{json.dumps({'machine': MACHINE, 'rows': [one.as_dict() for one in rows]})}\n"

    return run


def collected(tmp_path, *, budget=500.0, **machine):
    found = gpu.collect(a_machine(**machine), ABOUT, tmp_path / "gpu.json", budget=budget)
    assert json.loads((tmp_path / "gpu.json").read_text()) == found
    return found


# ---- without a GPU ----


@pytest.mark.nightly
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_is_told_so_with_exit_6(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 6
    assert "finds no usable GPU" in done.stderr
    assert "exit status 6" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
def test_make_gpu_takes_the_python_that_is_there_and_sets_nothing_up():
    done = subprocess.run(
        ["make", "--no-print-directory", "-n", "gpu", "PYTHON=python9"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["python9 -m benchmarks.gpu --wheels .gpu-wheels"]


def test_a_python_without_torch_is_told_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(gpu, "missing", lambda names=(): list(names))
    assert gpu.main(["--out", str(tmp_path / "out")]) == 6
    assert "has no torch; name a Python that has it: make gpu PYTHON=" in capsys.readouterr().err


def test_all_missing_packages_are_named_at_once(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu, "_probed", lambda run: ABOUT)
    monkeypatch.setattr(gpu, "missing", lambda names=(): ["gymnasium", "tomli_w", "pyarrow"])
    assert gpu.main(["--out", str(tmp_path / "out"), "--wheels", str(tmp_path)]) == 6
    assert "lacks gymnasium, tomli-w, pyarrow; `make gpu-wheels`" in capsys.readouterr().err


# ---- packages ----


def wheel(folder, name, tags, module):
    with zipfile.ZipFile(folder / f"{name}-1.0-{tags}.whl", "w") as archive:
        archive.writestr(f"{module}.py", "")


def test_only_wheels_of_missing_packages_for_this_python_are_unpacked(tmp_path):
    version = f"cp3{sys.version_info[1]}"
    wheel(tmp_path, "tomli_w", "py3-none-any", "tomli_w")
    wheel(tmp_path, "rpds_py", "cp39-cp39-manylinux2014_x86_64", "of_another_python")
    wheel(tmp_path, "rpds_py", f"{version}-{version}-manylinux_2_17_x86_64.manylinux2014_x86_64", "rpds")
    wheel(tmp_path, "safetensors", "cp310-abi3-manylinux2014_x86_64", "safetensors")
    wheel(tmp_path, "gymnasium", "py3-none-any", "gymnasium")
    (tmp_path / "into").mkdir()
    lacking = gpu_packages.provided(["tomli_w", "rpds", "safetensors", "orjson", "pyarrow"], tmp_path, tmp_path / "into")
    assert lacking == ["orjson", "pyarrow"]
    assert sorted(path.name for path in (tmp_path / "into").iterdir()) == ["rpds.py", "safetensors.py", "tomli_w.py"]


@pytest.mark.nightly
def test_the_list_of_packages_is_all_that_training_takes(tmp_path):
    """So that a machine that lacks one says so before it measures anything."""
    known = {*gpu_packages.THERE, *gpu_packages.SMALL}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {line.partition(">=")[0] for line in project["dependencies"]}
    listed = {*gpu_packages.THERE.values(), *gpu_packages.SMALL.values()}
    assert required - listed == {"polars", "s3fs", "gcsfs", "msgpack-numpy"}  # which the program below does without
    data = REPOSITORY / "sample_data" / "rllib_cartpole_expert"
    program = f"""
import sys
def blocked(name, path=None, target=None):
    if name in ("polars", "s3fs", "gcsfs", "msgpack_numpy", "pandas", "stable_baselines3", "ray"):
        raise ModuleNotFoundError(name)
sys.meta_path.insert(0, type("Blocked", (), {{"find_spec": staticmethod(blocked)}}))
import benchmarks.cuda_cold_start, benchmarks.cuda_frames, benchmarks.cuda_utilisation
from offline_cli import train_bc
train_bc({str(data)!r}, {str(tmp_path / "run")!r}, env="CartPole-v1", updates=2, eval_episodes=1, device="cpu")
print(*{{name for name in {sorted(known)!r} if name not in sys.modules}})
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"typer", "rich", "pytest"}  # of the command line, and of the tests


# ---- what is run, and kept ----


def test_every_gpu_question_is_run():
    assert list(gpu.LIMITS) == [gpu.TESTS, *(name for name in QUESTIONS if name.startswith("cuda_"))]
    assert gpu.BUDGET <= 540


def test_every_file_with_a_test_for_a_gpu_is_run():
    files = gpu._test_files()
    known = ("test_cuda.py", "test_updates.py", "test_algorithms.py", "test_loader_in_memory.py", "test_loader_on_disk.py")
    assert {f"tests/training/{name}" for name in known} <= set(files)
    assert all("tests/" in file for file in files)


def test_all_that_was_measured_is_kept_with_the_hardware(tmp_path):
    found = collected(tmp_path)
    assert (found["failed"], found["not_reached"]) == ([], [])
    assert found["gpu"] == ABOUT
    assert found["tests"]["results"] == {"a::b": "passed"}
    assert [part["rows"][0]["ours"] for part in found["questions"].values()] == [2e4] * 6


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ({"report": SKIPPED}, "1 of 1 did not pass"),
        ({"report": "<testsuites/>"}, "0 of 0 did not pass"),
        ({"tests": 1}, "pytest's exit status 1"),
    ],
)
def test_tests_that_were_skipped_or_did_not_run_are_a_failure(tmp_path, machine, words):
    found = collected(tmp_path, **machine)
    assert found["failed"] == ["tests"]
    assert words in found["tests"]["error"]
    assert len(found["questions"]) == 6


def test_a_question_that_fails_keeps_its_error_and_the_others_go_on(tmp_path):
    answers = {"cuda_frames": "Traceback ...\nRuntimeError: out of memory", "cuda_utilisation": [missing("q", "no nvidia-smi")]}
    found = collected(tmp_path, answers=answers, slow=["cuda_large_update"])
    assert found["failed"] == ["cuda_large_update", "cuda_frames", "cuda_utilisation"]
    errors = {name: part["error"] for name, part in found["questions"].items() if part["error"]}
    assert errors["cuda_frames"] == "exit status 1: RuntimeError: out of memory"
    assert errors["cuda_utilisation"] == "not measured: no nvidia-smi"
    assert errors["cuda_large_update"].startswith("no end within")


def test_what_the_budget_does_not_reach_is_named(tmp_path):
    found = collected(tmp_path, budget=0.0)
    assert found["not_reached"] == list(gpu.LIMITS)
    assert found["tests"] is None


@pytest.mark.parametrize(("machine", "status"), [({}, 0), ({"tests": 1}, 1), ({"slow": ["cuda_frames"]}, 1)])
def test_the_exit_status_says_whether_all_passed(tmp_path, monkeypatch, machine, status):
    monkeypatch.setattr(gpu, "_probed", lambda run: ABOUT)
    monkeypatch.setattr(gpu, "_runner", lambda environment: a_machine(**machine))
    monkeypatch.setenv("OUT", str(tmp_path))
    assert gpu.main([]) == status
    assert (tmp_path / "gpu.json").is_file()


@pytest.mark.nightly
def test_a_process_that_takes_too_long_is_ended_with_what_it_started():
    run = gpu._runner(os.environ)
    program = "import subprocess, sys; print('begun', flush=True); subprocess.run(['sleep', '60'])"
    assert run(["-c", program], 2.0) == (None, "begun\n")  # at once: a child that lived on would hold its output open
    assert run(["-c", "print(3); raise SystemExit(4)"], 60.0) == (4, "3\n")


# ---- the page ----


def test_the_page_takes_the_figures_with_date_and_hardware(tmp_path):
    old = {name: answered_without(name) for name in ("cuda_small_update", "cuda_frames")}
    (tmp_path / "latest.json").write_text(json.dumps(old))
    collected(tmp_path, answers={"cuda_large_update": "RuntimeError: lost"}, slow=["cuda_utilisation"])
    page_main([str(tmp_path / "gpu.json"), "--out", str(tmp_path)])
    text = (tmp_path / "benchmarks.md").read_text()
    assert "| cuda_small_update on the GPU | 2e+04 updates/s | 1,000 updates/s | 20 |" in text
    assert "2026-11-23; 16 cores, X" in text
    assert "GPU: NVIDIA H200, 139.7 GiB, driver 570.1, torch 2.11.0, CUDA 13.0; its tests: 1 passed." in text
    assert "not measured: failed on NVIDIA H200: exit status 1: RuntimeError: lost" in text
    assert "no CUDA device" not in text
    assert set(json.loads((tmp_path / "latest.json").read_text())) == {name for name in QUESTIONS if name.startswith("cuda_")}
    assert (tmp_path / "benchmarks.svg").is_file()


def answered_without(name):
    return {"machine": MACHINE, "rows": [missing(name, "no CUDA device").as_dict()]}


def test_questions_that_were_not_reached_stay_as_they_are(tmp_path, capsys):
    (tmp_path / "latest.json").write_text(json.dumps({"cuda_frames": answered_without("cuda_frames")}))
    collected(tmp_path, budget=0.0)
    page_main([str(tmp_path / "gpu.json"), "--out", str(tmp_path)])
    assert "not measured: no CUDA device" in (tmp_path / "benchmarks.md").read_text()
    assert "not reached: tests, cuda_small_update" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"format": "offline-cli-gpu", "version": 2}'])
def test_json_of_another_kind_is_refused_and_nothing_is_written(tmp_path, text):
    (tmp_path / "gpu.json").write_text(text)
    with pytest.raises(SystemExit):
        page_main([str(tmp_path / "gpu.json"), "--out", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["gpu.json"]


@pytest.mark.nightly
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_question_in_a_process_of_its_own_prints_its_rows():
    part = gpu._answered(gpu._runner(os.environ), "cuda_small_update", 120.0)
    assert part["error"] == "not measured: no CUDA device"
    assert part["rows"] == answered("cuda_small_update")["rows"]
