"""`compare`: algorithms beside each other, each by its runs over seeds and tasks; gates on the difference."""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np
import orjson
import polars as pl

from offline_cli.checked_keywords import checked
from offline_cli.choices import Whole
from offline_cli.datasets.dataset import holds_dataset
from offline_cli.datasets.manifest import Manifest, reference_of
from offline_cli.errors import BadConfig, BadData, NoData, TargetNotMet, UsageError
from offline_cli.estimating import statistics
from offline_cli.estimating.statistics import Array, Interval, Scores, interval
from offline_cli.policies import run_policy as files
from offline_cli.reporting.intervals import draw_comparison
from offline_cli.storage.locations import Location, open_location
from offline_cli.training.chosen_episodes import place_named
from offline_cli.training.run_folder import RunFolder
from offline_cli.training.seeds import MEANS, runs_in

__all__ = ["CompareResult", "compare"]

RETURN: Final = "eval_return_mean"
HIGHER: Final = (RETURN, "val_accuracy")  # are better; other figures of runs are losses
LOWER: Final = ("loss", "mse")  # ends of names of metrics of files that are better lower
NO_SCORES: Final = ("seed", "run")  # columns that name a row
ONE_TASK: Final = "scores"  # where a file or run names none
FEW: Final = 5  # runs below which a percentile interval is known to be too narrow
THRESHOLDS: Final = 51  # of performance profiles
AGGREGATES: Final = {"mean": statistics.mean, "median": statistics.median, "iqm": statistics.iqm}


@dataclass(frozen=True, slots=True)
class CompareResult:
    """Algorithms by name, in the order given; the first is the one that others are compared to. Intervals are of 95%."""

    runs: Mapping[
        str, Mapping[str, Any]
    ]  # scores by task, how many, their std, and mean, median, iqm, success_rate: value, low, high
    best: str  # the name with the best interquartile mean
    probability_of_improvement: Mapping[str, Mapping[str, Any]]  # of each over each before it: value, low, high
    differences: Mapping[str, Mapping[str, Any]]  # of each from the first: of interquartile means; above 0 is better
    metric: str
    tasks: Sequence[str]  # environments of runs, columns of files
    reference: Mapping[str, Mapping[str, float]]  # by task: returns that became 0 (random) and 1 (expert); empty: none did
    profile: Mapping[str, Sequence[float]]  # share of all runs whose score is above each of its `thresholds`, by name
    plot: str | None = None
    notes: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; what was not asked for is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@checked
def compare(
    runs: Sequence[str | os.PathLike[str] | Location] | str | os.PathLike[str] | Location,
    *,
    metric: str = RETURN,
    reference: Sequence[str] = (),
    success: float | None = None,
    min_improvement: float | None = None,
    no_regression: bool = False,
    plot: str | None = None,
    seed: Whole = 0,
    storage_options: Mapping[str, Any] | None = None,
) -> CompareResult:
    """Compare algorithms by the scores of their runs: `runs` are run folders, folders of them (of seeds, or of tasks of seeds),
    or files of scores: JSON, a list of numbers or lists by task; CSV, a column a task (not `seed` or `run`), a row a run.

    A run's score is `metric` of its result: eval_return_mean, val_accuracy, val_loss, val_mse, loss, or one of its `losses`;
    losses that are not normalised are better lower. Runs of one environment are runs of one task. `reference` normalises scores
    to 0 at random play and 1 at the expert's: "random=R,expert=E", "TASK:random=R,expert=E", or, for returns, a dataset whose
    manifest has them; without, returns take those of the runs' data, where all have them. `success`: a score that counts as
    success, after normalisation. `plot`: a PNG.

    The first is the baseline of gates on interquartile means. With `min_improvement` the 95% interval of each difference has to
    lie at that or above; with `no_regression` none may lie below 0. A gate without an interval is missed.

    Definitions: Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice.

    Raises NoData, BadData, StorageNotFound for runs and files; BadConfig where tasks differ or a reference is wrong;
    UsageError; TargetNotMet for missed gates.
    """
    given = [runs] if isinstance(runs, str | os.PathLike | Location) else list(runs)
    names = [place_named(one).rstrip("/") for one in given]
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise UsageError(f"{twice[0]} is given twice", where="RUN", fix="each algorithm once")
    if "thresholds" in names:
        raise UsageError("thresholds is a name of the result", where="RUN", fix="./thresholds")
    if len(names) < 2 and (no_regression or min_improvement is not None):
        raise UsageError("gates compare two or more", where="RUN", fix="name the baseline first, then what is compared to it")
    places = [open_location(one, storage_options) for one in given]
    are_files = all(place.is_file() for place in places)
    found, of_data = zip(
        *[_scores_of(place) if place.is_file() else _results_of(place, metric) for place in places], strict=True
    )
    first, tasks, notes = names[0], sorted(found[0]), list[str]()
    for name, own in zip(names, found, strict=True):
        if sorted(own) != tasks:
            what = f"{name} has the tasks {', '.join(sorted(own))}, and {first} {', '.join(tasks)}"
            raise BadConfig(what, where="compare", fix="compare algorithms on the same tasks")
    references = dict[str, Any]()
    for text in reference:
        references |= _reference(text, tasks, metric, storage_options)
    if not reference and metric == RETURN and {*of_data[0]} == {*tasks} and all(one == of_data[0] for one in of_data):
        references = of_data[0]
    if references and references.keys() != {*tasks}:
        what = f"the tasks are {', '.join(tasks)}, and references of {', '.join(sorted(references))}"
        raise BadConfig(what, where="--reference", fix=f"--reference '{tasks[0]}:random=R,expert=E', one for each task")
    if not references and len(tasks) > 1:
        notes.append("scores of several tasks are aggregated as they are: --reference brings them to one scale")
    ends = [references.get(task, {"random": 0.0, "expert": 1.0}) for task in tasks]  # that become 0 and 1
    spans = {task: (one["random"], one["expert"] - one["random"]) for task, one in zip(tasks, ends, strict=True)}
    scores = {
        name: [(own[task] - least) / width for task, (least, width) in spans.items()]
        for name, own in zip(names, found, strict=True)
    }
    if few := [name for name, own in scores.items() if min(map(len, own)) < FEW]:
        notes.append(f"fewer than {FEW} runs of a task: intervals of {', '.join(few)} are rough, and often too narrow")
    is_loss = metric.endswith(LOWER) or not (are_files or metric in HIGHER)
    sign = -1.0 if is_loss and not references else 1.0  # normalised scores are higher at the expert
    better = {name: [sign * task for task in own] for name, own in scores.items()}  # higher is better
    differences = {name: interval(statistics.iqm_difference, better[name], better[first], seed=seed) for name in names[1:]}
    probability: dict[str, Any] = {name: {} for name in names[1:]}
    for other, name in combinations(names, 2):
        probability[name][other] = asdict(interval(statistics.improvement, better[name], better[other], seed=seed))
    every = np.concatenate([task for own in scores.values() for task in own])
    margin = 0.05 * (np.ptp(every) or 1.0)
    thresholds = np.linspace(every.min() - margin, every.max() + margin, THRESHOLDS)
    result = CompareResult(
        runs={name: _figures(own, tasks, sign, success, seed) for name, own in scores.items()},
        best=max(names, key=lambda name: float(statistics.iqm(better[name]))),
        probability_of_improvement=probability,
        differences={name: asdict(one) for name, one in differences.items()},
        metric=ONE_TASK if are_files else metric,
        tasks=tasks,
        reference=references,
        profile={"thresholds": thresholds.tolist()}
        | {name: statistics.profile(own, thresholds).tolist() for name, own in scores.items()},
        plot=plot,
        notes=notes,
    )
    if plot is not None:
        draw_comparison(result.as_dict(), open_location(plot, storage_options))
    if missed := [*_missed(differences, min_improvement, no_regression)]:
        fix = "more seeds narrow the intervals; or a better policy"
        raise TargetNotMet("; ".join(missed), where=f"compared to {first}", fix=fix, details=result.as_dict())
    return result


def _results_of(place: Location, metric: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """The scores of runs by task, and the references that all runs of a task share. Raises NoData, BadData, StorageNotFound."""
    scores, references = defaultdict[str, list[float]](list), defaultdict[str, list[Any]](list)
    for run in map(RunFolder, runs_in(place)):
        result, task = run.result(), (run.config() or {}).get("env") or ONE_TASK
        if result is None:
            raise BadData("the run is not finished", where=run.url, fix="train it to its end with --resume")
        figures = {name: getattr(result, name) for name in MEANS} | result.losses
        value = figures.get(metric)
        if not isinstance(value, int | float):
            known = [name for name, figure in figures.items() if figure is not None]
            what = f"the run has no {metric}" + (", which needs --env in training" if metric == RETURN else "")
            raise BadData(what, where=run.url, fix=f"--metric {' or '.join(known)}, or a file of scores")
        if not math.isfinite(value):
            raise BadData(
                f"{metric} is {value}, no finite number", where=run.url, fix="another --metric, or train that run again"
            )
        scores[task].append(float(value))
        references[task].append(result.reference)
    if not scores and not place.exists():
        raise place.missing()
    if not scores:
        fix = f"a run folder, a folder of them as train --seeds makes it ({files.SEEDS}), or a file of scores"
        raise NoData("no run here", where=place.url, fix=fix)
    shared = {task: own[0] for task, own in references.items() if own[0] and all(one == own[0] for one in own)}
    return {task: np.array(values) for task, values in scores.items()}, shared


def _scores_of(place: Location) -> tuple[dict[str, Array], dict[str, Any]]:
    """The scores of a file by task, which have no references. Raises BadData."""
    content, fix = place.read_bytes(), 'JSON: [1, 2] or {"task": [1, 2]}; CSV: a column a task, a row a run'
    try:
        if place.name.endswith(".csv"):
            table = pl.read_csv(content, infer_schema_length=None)
            told = {one.name: one.drop_nulls().to_list() for one in table if one.name.lower() not in NO_SCORES}
        else:
            read = orjson.loads(content)
            told = read if isinstance(read, dict) else {ONE_TASK: read}
        found = {str(task): np.array(values, np.float64, ndmin=1) for task, values in told.items()}
    except (ValueError, TypeError, pl.exceptions.PolarsError) as err:
        raise BadData(f"no scores can be read: {err}", where=place.url, fix=fix) from err
    if not found or not all(one.ndim == 1 and len(one) and np.isfinite(one).all() for one in found.values()):
        raise BadData("the scores of a task are no list of finite numbers", where=place.url, fix=fix)
    return found, {}


def _reference(
    text: str, tasks: Sequence[str], metric: str, storage_options: Mapping[str, Any] | None
) -> dict[str, Mapping[str, Any]]:
    """By task: of `random=R,expert=E`, for all or one, or of a dataset's manifest. Raises BadConfig."""
    task, _, values = text.rpartition(":")
    place, fix = open_location(text, storage_options), "convert or record it with --reference random=R,expert=E"
    is_dataset = holds_dataset(place)
    if "=" in values and not is_dataset:
        return {one: {**reference_of(values)} for one in ([task] if task else tasks)}
    if not is_dataset:
        raise BadConfig(f"{text} is neither KEY=VALUE nor a dataset", where="--reference", fix="random=R,expert=E")
    manifest = Manifest.read(place) if metric == RETURN else None
    if manifest is None or not manifest.reference:
        raise BadConfig(f"the dataset has no reference of {metric}", where=place.url, fix=fix)
    return {manifest.environment.id if manifest.environment and len(tasks) > 1 else tasks[0]: {**manifest.reference}}


def _figures(scores: Scores, tasks: Sequence[str], sign: float, success: float | None, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "runs": sum(map(len, scores)),
        "scores": dict(zip(tasks, map(np.ndarray.tolist, scores), strict=True)),
    }
    several = [task.std(ddof=1) for task in scores if len(task) > 1]
    found["std"] = float(np.mean(several)) if several else None  # over runs; mean over tasks
    found |= {name: asdict(interval(aggregate, scores, seed=seed)) for name, aggregate in AGGREGATES.items()}
    if success is not None or all(np.isin(task, (0, 1)).all() for task in scores):
        least = sign * (0.5 if success is None else success)
        found["success_rate"] = asdict(statistics.success_rate([sign * task for task in scores], least))
    return found


def _missed(differences: Mapping[str, Interval], min_improvement: float | None, no_regression: bool) -> Iterator[str]:
    for name, one in differences.items() if no_regression or min_improvement is not None else ():
        if one.low is None or one.high is None:
            yield f"{name}: a single run gives no interval"
            continue
        told = f"{name}: {one.value:+.4g} [{one.low:+.4g}, {one.high:+.4g}]"
        if min_improvement is not None and one.low < min_improvement:
            yield f"{told}, at least {min_improvement:+g} wanted"
        if no_regression and one.high < 0:
            yield f"{told} is a regression"
