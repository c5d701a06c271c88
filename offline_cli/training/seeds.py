"""One training for several seeds: a run in RUN/seed-N for each, side by side in processes, and what they have in common.

RUN/seeds.json     the seeds, and once all runs are finished their figures
RUN/seed-N/        a run folder for each
RUN/curve.png      mean curves over the seeds, with 95% intervals
"""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import isfinite
from statistics import fmean, stdev
from typing import Any, Final

import torch

from offline_cli.datasets.target_folder import exclusive
from offline_cli.engines.engine import PROCESSES, EngineSpec
from offline_cli.errors import BadData, Interrupted, OutputExists, TargetNotMet, TrainingDiverged, UsageError, WorkerDied
from offline_cli.mean_interval import mean_interval
from offline_cli.modules.python_network import choose_device
from offline_cli.policies import run_policy as files
from offline_cli.progress import Progress, no_progress
from offline_cli.reporting.curves import draw_curves
from offline_cli.stop_signals import StopRequested, requested, signals_noted
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.staging import whole_file, write_whole
from offline_cli.training.run_folder import RunFolder, TrainResult

__all__ = ["MEANS", "SeedsResult", "runs_in", "train_seeds", "wanted_seeds"]

MEANS: Final = ("loss", "val_loss", "val_accuracy", "val_mse", "eval_return_mean")
_log = logging.getLogger(__name__)

Train = Callable[..., TrainResult]


@dataclass(frozen=True, slots=True)
class SeedsResult(TrainResult):
    """Runs of several seeds. Figures are means over the seeds, `updates` and `eval_episodes` sums, `seconds` of the whole, and
    `eval_return_ci95` half the width of the mean's 95% interval over seeds; `policy_update` is 0.
    """

    seeds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the result of each
    intervals: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # of each figure: mean, std, and low, high (Student's t)
    figure: str | None = None


def wanted_seeds(seeds: int | str | Sequence[int] | None, out: Any, options: Mapping[str, Any]) -> tuple[int, ...]:
    """The seeds asked for: 5 are 0 to 4. Of a resumed RUN those that it has too. Empty: a run as usual.

    Raises UsageError for what is no such list, with `--seed`, or in processes that train together.
    """
    known: tuple[int, ...] = ()
    if options["resume"]:
        known = tuple((_told(open_location(out, options["storage_options"])) or {}).get("seeds", ()))
    if seeds is None and not known:
        return ()
    try:
        texts = str(seeds).split(",") if isinstance(seeds, str | int) else () if seeds is None else [*map(str, seeds)]
        numbers = tuple(int(text) for text in texts)
    except ValueError:
        numbers = (-1,)
    if len(numbers) == 1 and isinstance(seeds, str | int) and numbers[0] >= 0:
        numbers = tuple(range(numbers[0]))
    wrong = None
    if any(number < 0 for number in numbers) or len({*numbers}) < len(numbers) or not (numbers or (known and seeds is None)):
        wrong = f"{seeds!r} is neither a number of seeds nor different seeds", "--seeds 5, or --seeds 3,7,11"
    elif options["seed"] is not None:
        wrong = "--seeds and --seed are mutually exclusive", "leave out --seed"
    elif os.environ.get("WORLD_SIZE", "1") != "1":
        wrong = "several seeds are processes of their own, and torchrun starts some already", "leave out torchrun, or --seeds"
    if wrong:
        raise UsageError(wrong[0], where="--seeds", fix=wrong[1])
    return (*known, *(one for one in numbers if one not in known))


def runs_in(place: Location, depth: int = 2) -> list[Location]:
    """The run at `place`, or those in its folders, or in theirs; of a training of several seeds its own.

    Raises BadData for seeds whose run is missing or not finished.
    """
    if place.join(files.POLICY).exists():
        return [place]
    told = _told(place) or {}
    listed = [place.join(f"seed-{seed}") for seed in told.get("seeds", ())]
    if missing := [one.name for one in listed if not one.join(files.RESULT).exists()]:
        fix = "train it to its end with --resume"
        raise BadData(f"no finished run in {', '.join(missing)}, which {files.SEEDS} lists", where=place.url, fix=fix)
    below = [one for one in place.children() if one.is_dir()] if depth else []
    return listed or [run for one in below for run in runs_in(one, depth - 1)]


def train_seeds(train: Train, seeds: Sequence[int], sources: Any, out: Any, options: Mapping[str, Any]) -> SeedsResult:
    """Train a run for each seed with these keywords of `train`. Raises what it raises, and OutputExists for another RUN.

    A run that diverges or misses its target does not keep the others from theirs.
    """
    began, on_progress = time.perf_counter(), options["on_progress"]
    place = open_location(out, options["storage_options"])
    _claim(place, seeds, resume=options["resume"], overwrite=options["overwrite"])
    given = {name: value for name, value in options.items() if name not in ("on_progress", "seeds", "command")}
    calls = [(train, sources, place.join(f"seed-{seed}").url, {**given, "seed": seed}) for seed in seeds]
    if options["resume"]:  # those that had not begun are as the others
        begun = [place.join(f"seed-{seed}", files.CONFIG) for seed in seeds]
        known = next((one.url for one in begun if one.exists()), None)
        if known is None and options["seeds"] is None:
            fix = "repeat all options of the command, --seeds too, with --resume"
            raise UsageError("no run has begun there, so its options are unknown", where=place.url, fix=fix)
        for call, own in zip(calls, begun, strict=True):
            call[3]["config"] = options["config"] or (None if own.exists() else known)
    if options["dry_run"]:
        return replace(_together(place, {seeds[0]: train(sources, calls[0][2], **calls[0][3])}, began), run=place.url)
    write_whole(place.join(files.SEEDS), files.json_bytes({"seeds": list(seeds)}), folder=_made(place))
    found, missed = dict[int, TrainResult](), list[str]()
    engines = _engines(calls, str(options["device"] or "auto"))
    alone = engines.workers == 1
    with signals_noted():
        try:
            with engines.engine() as engine, engine.streamed(_quiet if not alone else _run, calls) as results:
                for number, (seed, (result, problem)) in enumerate(zip(seeds, results, strict=True), 1):
                    if result is not None:
                        found[seed] = result
                    missed += [f"seed {seed}: {problem}"] if problem else []
                    on_progress(Progress("training", number, len(seeds), "runs"))
        except WorkerDied as died:
            fix = f"{died.fix}; the same command with --resume continues all runs"
            raise WorkerDied(died.what, where=place.url, fix=fix) from died
        except StopRequested as stopped:
            name = signal.Signals(requested() or signal.SIGINT).name
            what = f"stopped by {name}; {len(found)} of {len(seeds)} runs are finished"
            details = {"exit_code": stopped.exit_code, "run": place.url}
            fix = "the same command with --resume continues all of them"
            raise Interrupted(what, where=place.url, fix=fix, details=details) from stopped
    if not found:
        raise TrainingDiverged("; ".join(missed), where=place.url, fix="another --lr, or check the data for extreme values")
    result = _together(place, found, began)
    for note in result.notes if not alone else ():
        _log.warning("note: %s", note)
    rows, picture = [RunFolder(place.join(f"seed-{seed}")).metrics() for seed in found], io.BytesIO()
    draw_curves([(f"{place.name or 'runs'} ({len(found)} seeds)", rows)], picture)
    write_whole(place.join(files.CURVE), picture.getvalue(), folder=place)
    result = replace(result, figure=place.join(files.CURVE).url)
    write_whole(place.join(files.SEEDS), files.json_bytes({"seeds": list(seeds), "intervals": result.intervals}), folder=place)
    if missed:
        fix = "--resume with a longer run, more or better data, or another --lr"
        raise TargetNotMet("; ".join(missed), where=place.url, fix=fix, details=result.as_dict())
    return result


def _run(call: tuple[Train, Any, str, Mapping[str, Any]]) -> Iterator[tuple[TrainResult | None, str]]:
    """The result of one seed, None where it diverged; and why it failed, or which target or gate it missed."""
    train, sources, out, options = call
    try:
        yield train(sources, out, **options, on_progress=no_progress), ""
    except TargetNotMet as error:
        known = [one.name for one in fields(TrainResult)]
        yield TrainResult(**{name: value for name, value in error.details.items() if name in known}), error.what
    except TrainingDiverged as error:
        yield None, error.what


def _quiet(call: tuple[Train, Any, str, Mapping[str, Any]]) -> Iterator[tuple[TrainResult | None, str]]:
    """The same in a worker on its own core; the command tells its notes."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    yield from _run(call)


def _engines(calls: Sequence[Any], device: str) -> EngineSpec:
    """A process a core, at most one a seed; this process alone on a GPU, and for Python objects that cannot be sent."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(len(calls), cores)
    try:
        pickle.dumps(calls)
    except Exception:  # noqa: BLE001  a pipeline of the caller's own objects
        workers = 1
    if workers == 1 or choose_device(device).type != "cpu":
        return EngineSpec()
    return EngineSpec(PROCESSES, workers)


def _claim(place: Location, seeds: Sequence[int], *, resume: bool, overwrite: bool) -> None:
    """Raise OutputExists unless RUN is new, or holds runs of several seeds that are resumed, all replaced, or have learned
    nothing.
    """
    if resume and overwrite:
        raise exclusive(place.url, "run")
    told = _told(place)
    runs = [RunFolder(place.join(f"seed-{seed}")) for seed in (told or {}).get("seeds", ())]
    if not (resume or overwrite) and any(run.has_learned() for run in runs):
        fix = "--resume to continue those runs, --overwrite to replace them, or another --out"
        raise OutputExists("runs of several seeds are there already", where=place.url, fix=fix)
    others = [seed for seed in told["seeds"] if seed not in seeds] if told else []
    if stale := [name for seed in others if place.join(name := f"seed-{seed}").exists()]:
        fix = f"remove {' and '.join(stale)} first, train those seeds too, or choose another --out"
        raise OutputExists(f"earlier runs would stay: {', '.join(stale)}", where=place.url, fix=fix)
    if told is None and (place.is_file() or place.children()):
        raise OutputExists("something else is there already", where=place.url, fix="choose another --out")


def _told(place: Location) -> dict[str, Any] | None:
    content = whole_file(place.join(files.SEEDS))
    if content is None:
        return None
    try:
        told = json.loads(content)
        if all(isinstance(seed, int) and seed >= 0 for seed in told["seeds"]):
            return dict(told)
    except (ValueError, TypeError, KeyError):
        pass
    raise BadData(f"{files.SEEDS} cannot be read", where=place.url, fix="train again into another --out")


def _made(place: Location) -> Location:
    place.make_folder()
    return place


def _together(place: Location, found: Mapping[int, TrainResult], began: float) -> SeedsResult:
    """The result of all: see `SeedsResult`."""
    every = list(found.values())
    intervals = dict[str, dict[str, Any]]()
    for name in MEANS:
        values = [value for one in every if (value := getattr(one, name)) is not None]
        if len(values) == len(every):
            mean, half = map(float, mean_interval(values))
            if half != half:  # a single value
                intervals[name] = {"mean": mean, "std": None, "low": None, "high": None}
            else:
                std = stdev(value for value in values if isfinite(value))
                intervals[name] = {"mean": mean, "std": std, "low": mean - half, "high": mean + half}
    told = {one.name: getattr(every[0], one.name) for one in fields(TrainResult)}
    returns = intervals.get("eval_return_mean", {})
    told |= {name: intervals.get(name, {}).get("mean") for name in MEANS}
    told |= {
        "run": place.url,
        "updates": sum(one.updates for one in every),
        "epochs": fmean(one.epochs for one in every),
        "seconds": round(time.perf_counter() - began, 3),
        "samples_per_second": round(fmean(one.samples_per_second for one in every), 1),
        "eval_return_ci95": returns["high"] - returns["mean"] if returns.get("high") is not None else None,
        "eval_episodes": sum(one.eval_episodes or 0 for one in every) or None,
        "policy_update": 0,
        "stopped_by": ", ".join(Counter(one.stopped_by for one in every)),
        "notes": list(dict.fromkeys(note for one in every for note in one.notes)),
        "losses": {name: fmean(one.losses[name] for one in every) for name in every[0].losses},
        "val_recall": {},
    }
    return SeedsResult(**told, seeds={str(seed): asdict(one) for seed, one in found.items()}, intervals=intervals)
