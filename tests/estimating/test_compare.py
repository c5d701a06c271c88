"""`compare`: runs, folders of seeds and files of scores beside each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from offline_cli import compare
from offline_cli.cli.app import app
from offline_cli.errors import BadConfig, BadData, NoData, StorageNotFound, TargetNotMet, UsageError

Told = Callable[..., dict[str, Any]]


@pytest.fixture
def scores(tmp_path: Path) -> Callable[..., str]:
    """Writes a file of scores."""

    def write(name: str, content: Any) -> str:
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """Writes the files of a finished run that `compare` reads."""

    def write(name: str, value: float | None, env: str | None = "Sign-v0", **figures: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "policy.json").write_text('{"format": "offline-cli-policy"}')
        (folder / "config.toml").write_text(f'env = "{env}"\n' if env else "")
        result: dict[str, Any] = dict.fromkeys(
            ("loss", "val_loss", "eval_return_ci95", "eval_episodes", "val_accuracy", "val_accuracy_majority", "val_mse")
        )
        result |= {"run": name, "updates": 1, "epochs": 1.0, "seconds": 1.0, "samples_per_second": 1.0, "policy_update": 1}
        result |= {"stopped_by": "epochs", "episodes": 1, "steps": 1, "device": "cpu", "threads": 1, **figures}
        (folder / "result.json").write_text(json.dumps(result | {"eval_return_mean": value}))
        return folder

    return write


def test_the_command_compares_files_of_scores(told: Told, scores: Callable[..., str]) -> None:
    low, high = scores("low.json", [1, 2, 3, 4, 5]), scores("high.csv", "scores\n11\n12\n13\n14\n15\n")
    found = told("compare", low, high)
    assert found["best"] == high
    assert found["runs"][low]["mean"]["value"] == 3.0
    assert found["runs"][low]["iqm"]["value"] == 3.0
    assert found["runs"][low]["std"] == pytest.approx(2.5**0.5)
    assert found["probability_of_improvement"][high][low] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert found["differences"][high]["value"] == 10.0
    assert 7.5 < found["differences"][high]["low"] < 10 < found["differences"][high]["high"] < 12.5
    assert found["profile"][low][0] == 1.0
    assert found["profile"][low][-1] == 0.0


def test_columns_that_name_a_row_are_no_tasks(scores: Callable[..., str]) -> None:
    named = scores("named.csv", "run,Seed,a\nx,0,1\ny,1,2\n")
    assert compare(named).runs[named]["scores"] == {"a": [1.0, 2.0]}
    with pytest.raises(BadData):
        compare(scores("none.csv", "seed\n1\n"))


def test_runs_are_grouped_by_their_folder_and_environment(run: Callable[..., Path], tmp_path: Path) -> None:
    for seed, value in enumerate((1.0, 3.0)):
        run(f"bc/seed-{seed}", value)
        run(f"iql/sign/seed-{seed}", value + 1)
        run(f"iql/aim/seed-{seed}", 5.0, env="Aim-v0")
    found = compare([tmp_path / "bc"])
    assert found.runs[str(tmp_path / "bc")]["scores"] == {"Sign-v0": [1.0, 3.0]}
    found = compare(tmp_path / "iql")
    assert found.runs[str(tmp_path / "iql")]["scores"] == {"Aim-v0": [5.0, 5.0], "Sign-v0": [2.0, 4.0]}
    with pytest.raises(BadConfig):
        compare([tmp_path / "bc", tmp_path / "iql"])


def test_only_the_seeds_of_the_training_are_compared(run: Callable[..., Path], tmp_path: Path) -> None:
    for seed in (0, 1, 9):
        run(f"bc/seed-{seed}", float(seed))
    (tmp_path / "bc/seeds.json").write_text('{"seeds": [0, 1]}')
    assert compare(tmp_path / "bc").runs[str(tmp_path / "bc")]["scores"] == {"Sign-v0": [0.0, 1.0]}


def test_missing_seeds_are_named(run: Callable[..., Path], tmp_path: Path) -> None:
    run("bc/sign/seed-0", 1.0)
    (tmp_path / "bc/sign/seeds.json").write_text('{"seeds": [0, 4, 7]}')
    for place in ("bc/sign", "bc"):
        with pytest.raises(BadData) as caught:
            compare(tmp_path / place)
        assert "seed-4, seed-7" in caught.value.what
        assert caught.value.where == str(tmp_path / "bc/sign")
    (run("bc/sign/seed-4", 1.0) / "result.json").unlink()  # it diverged
    with pytest.raises(BadData) as caught:
        compare(tmp_path / "bc")
    assert "seed-4, seed-7" in caught.value.what


def test_scores_are_normalised_by_the_reference_of_their_task(scores: Callable[..., str]) -> None:
    one = scores("one.json", {"a": [10, 20], "b": [0, 1]})
    found = compare(one, reference=["a:random=10,expert=20", "b:random=0,expert=2"])
    assert found.runs[one]["scores"] == {"a": [0.0, 1.0], "b": [0.0, 0.5]}
    for given in (["a:random=10,expert=20"], ["random=0,expert=2", "q:random=0,expert=2"]):
        with pytest.raises(BadConfig):
            compare(one, reference=given)
    with pytest.raises(BadConfig):
        compare(one, reference=["random=10,expert=10"])


def test_a_lower_loss_is_better(run: Callable[..., Path]) -> None:
    for number in range(2):
        run(f"a/{number}", None, val_loss=0.5 + number / 100)
        folder = run(f"b/{number}", None, val_loss=0.3 + number / 100).parent
    a, b = str(folder.with_name("a")), str(folder)
    found = compare([a, b], metric="val_loss", no_regression=True)
    assert found.best == b
    assert found.differences[b]["value"] == pytest.approx(0.2)
    assert found.probability_of_improvement[b][a]["value"] == 1.0


def test_a_lower_loss_of_an_algorithm_is_better_and_what_is_no_quality_is_refused(run: Callable[..., Path]) -> None:
    a, b = (str(run(name, None, losses={"nll": loss})) for name, loss in (("a", 0.5), ("b", 0.3)))
    found = compare([a, b], metric="nll")
    assert found.best == b
    assert found.differences[b]["value"] == pytest.approx(0.2)
    for metric in ("seconds", "updates", "val_accuracy_majority"):
        with pytest.raises(BadData) as caught:
            compare([a, b], metric=metric)
        assert caught.value.fix.startswith("--metric nll")


def test_names_of_data_are_text_in_markdown(run: Callable[..., Path]) -> None:
    folder = run("a|<b>", 1.0, env="x|<y>\\nz")
    done = CliRunner().invoke(app, ["compare", str(folder), "--markdown"])
    heading, _, *table = done.stdout.splitlines()
    assert heading == r"eval_return_mean on x\|&lt;y&gt;\nz, with 95% intervals"
    assert table[2].startswith(f"| **{folder.parent}/a\\|&lt;b&gt;** |")
    assert r"\|&lt;b&gt;" in table[-1]  # the note on few runs


def test_references_of_data_are_for_returns_alone(run: Callable[..., Path], tmp_path: Path) -> None:
    folder = run("a", 15.0, val_loss=0.5, reference={"random": 10.0, "expert": 20.0})
    assert compare(folder).runs[str(folder)]["scores"] == {"Sign-v0": [0.5]}
    assert compare(folder).reference == {"Sign-v0": {"random": 10.0, "expert": 20.0}}
    found = compare(folder, metric="val_loss")
    assert found.runs[str(folder)]["scores"] == {"Sign-v0": [0.5]}
    assert found.reference == {}
    (tmp_path / "data").mkdir()
    (tmp_path / "data/manifest.json").write_text("{}")
    with pytest.raises(BadConfig) as caught:
        compare(folder, metric="val_loss", reference=[str(tmp_path / "data")])
    assert "val_loss" in caught.value.what


def test_a_normalised_loss_is_better_higher(run: Callable[..., Path]) -> None:
    for number in range(2):
        run(f"a/{number}", None, val_loss=0.5)
        folder = run(f"b/{number}", None, val_loss=0.3).parent
    a, b = str(folder.with_name("a")), str(folder)
    found = compare([a, b], metric="val_loss", reference=["random=0.5,expert=0.1"], success=0.4, no_regression=True)
    assert found.runs[b]["scores"]["Sign-v0"] == pytest.approx([0.5, 0.5])
    assert found.best == b
    assert found.differences[b]["value"] == pytest.approx(0.5)
    assert found.runs[b]["success_rate"]["value"] == 1.0
    assert found.runs[a]["success_rate"]["value"] == 0.0


def test_gates_pass_on_the_end_of_the_interval_alone(scores: Callable[..., str]) -> None:
    base, better = scores("base.json", [0, 1, 2, 3, 4]), scores("better.json", [10, 11, 12, 13, 14])
    low = compare([base, better], min_improvement=7).differences[better]["low"]
    with pytest.raises(TargetNotMet) as caught:
        compare([base, better], min_improvement=low + 0.1)  # which the difference itself, 10, is above
    assert caught.value.details["differences"][better]["value"] == 10
    compare([base, better], no_regression=True)
    with pytest.raises(TargetNotMet):
        compare([better, base], no_regression=True)
    single = scores("single.json", [100])
    for gate in ({"min_improvement": 1}, {"no_regression": True}):
        with pytest.raises(TargetNotMet):
            compare([base, single], **gate)  # type: ignore[arg-type]


def test_a_missed_gate_exits_with_7_and_still_prints_the_table(scores: Callable[..., str]) -> None:
    base, worse = scores("base.json", [10, 11, 12, 13, 14]), scores("worse.json", [0, 1, 2, 3, 4])
    done = CliRunner().invoke(app, ["compare", base, worse, "--no-regression", "--markdown"])
    assert done.exit_code == 7
    assert f"| **{base}** | 5 | 12" in done.stdout
    assert f"| {worse} | 5 | 2" in done.stdout


def test_success_is_a_score_of_at_least_a_value(scores: Callable[..., str]) -> None:
    one = scores("one.json", [1, 2, 3, 4])
    assert compare(one, success=3).runs[one]["success_rate"]["value"] == 0.5
    flags = scores("flags.json", [0, 1, 1, 1])
    assert compare(flags).runs[flags]["success_rate"]["value"] == 0.75
    assert "success_rate" not in compare(one).runs[one]


def test_what_cannot_be_compared_is_refused(run: Callable[..., Path], scores: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    unfinished = run("unfinished", 1.0)
    (unfinished / "result.json").unlink()
    kinds: list[tuple[Any, type[Exception]]] = [
        (tmp_path / "empty", NoData),
        (unfinished, BadData),
        (run("unplayed", None), BadData),
        (scores("text.json", ["x"]), BadData),
        (scores("empty.json", []), BadData),
        (scores("axes.json", [[0.1, 0.9], [0.2, 0.8]]), BadData),
        (tmp_path / "none.json", StorageNotFound),
        (scores("nan.csv", "a\nNaN\n"), BadData),
        ([tmp_path / "empty", tmp_path / "empty"], UsageError),
    ]
    for given, kind in kinds:
        with pytest.raises(kind):
            compare(given)


def test_a_score_that_is_no_finite_number_is_refused(run: Callable[..., Path]) -> None:
    broken = run("broken", float("nan"))
    with pytest.raises(BadData) as caught:
        compare([run("good", 1.0), broken], no_regression=True)
    assert caught.value.where == str(broken)


def test_seeds_beside_a_plain_run_are_compared_too(run: Callable[..., Path], tmp_path: Path) -> None:
    for name, value in (("all/plain", 1.0), ("all/several/seed-0", 2.0), ("all/several/seed-1", 3.0)):
        run(name, value)
    (tmp_path / "all/several/seeds.json").write_text('{"seeds": [0, 1]}')
    assert compare(tmp_path / "all").runs[str(tmp_path / "all")]["scores"] == {"Sign-v0": [1.0, 2.0, 3.0]}


def test_a_run_that_is_called_thresholds_is_refused(run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run("thresholds", 1.0).parent)
    with pytest.raises(UsageError) as caught:
        compare("thresholds")
    assert caught.value.where == "RUN"
    assert [*compare("./thresholds").profile] == ["thresholds", "./thresholds"]


def test_the_figure_is_written(scores: Callable[..., str], tmp_path: Path) -> None:
    one, other = scores("one.json", [1, 2, 3]), scores("_$x^{$.json", [2, 3, 4])  # a name that is no mathematics
    found = compare([one, other], plot=str(tmp_path / "c.png"))
    assert found.plot == str(tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_a_comparison_without_environment_names_no_task(run: Callable[..., Path]) -> None:
    folders = [str(run(name, None, env=None, val_loss=0.5)) for name in ("a", "b")]
    done = CliRunner().invoke(app, ["compare", *folders, "--metric", "val_loss"])
    assert (done.exit_code, "scores" in done.stdout) == (0, False)
