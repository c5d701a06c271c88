"""Trains the modules of several agents in one run: a run folder for each in `modules/`, checked together in one environment.

    RUN/modules.json          which agents each module plays; the first file
    RUN/modules/NAME/         an ordinary run folder, whose policy is playable by itself
    RUN/metrics.jsonl         a row for each check of all modules in the environment: returns of games, by agent
    RUN/result.json           the last file

A module learns as it would in a run of its own, with the same seed: to the last bit. Modules take turns, each from one check to
the next. All have saved a checkpoint there before they are played together, and the row of that check is durable before one of
them goes on: so a resumed run has every check that it needs, played or written down. `until_return` and the choice of the best
are those of a single run, by the return of games: the sum over agents. A module whose training is over plays as it is kept.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from signal import SIGTERM
from typing import Any

from offline_cli.applying.modules_of_agents import AgentsSeen, ModuleOf, OneModule
from offline_cli.byte_sizes import byte_size
from offline_cli.connectors.pipeline_spec import Given
from offline_cli.converting.reading import read_episodes
from offline_cli.converting.whole_episodes import ExtraOutputs
from offline_cli.engines.ranks import one_process
from offline_cli.errors import BadConfig, Interrupted, OfflineCliError, OutputExists, UsageError
from offline_cli.files.locations import Location, Sources, expand, open_location
from offline_cli.files.staging import write_whole
from offline_cli.formats.tables import TableOptions
from offline_cli.policies.agents_by_name import RunModules, is_module_name, modules_of_run
from offline_cli.policies.run_files import MODULES_FILE, MODULES_FOLDER, RESULT, copy_into, json_bytes
from offline_cli.policies.run_policy import load_policy
from offline_cli.progress import OnProgress
from offline_cli.stop_signals import StopRequested, requested, signals_noted
from offline_cli.training.checks import CONFIRMED
from offline_cli.training.checks_together import ChecksTogether, Prepared
from offline_cli.training.config import read_config
from offline_cli.training.metrics_file import TrainResult
from offline_cli.training.outcomes import finished, interrupted, result_of, unless_missed
from offline_cli.training.run_lock import TRAINING, RunLock, holds_nothing_else
from offline_cli.training.session import Session

__all__ = ["ModulesResult", "Prepared", "Steps", "finished_result", "learn_modules"]


@dataclass(frozen=True, slots=True)
class ModulesResult(TrainResult):
    """A finished run of several modules: sums of episodes, steps and seconds, means of losses, returns of games."""

    modules: dict[str, Any] = field(default_factory=dict)  # the result of each
    return_by_agent: dict[str, Any] = field(default_factory=dict)  # of the check that `eval_return_mean` is of


@dataclass(frozen=True, slots=True)
class Steps:
    """What a single run is made of."""

    prepared: Callable[..., Prepared]
    fit: Callable[..., None]
    begun: Callable[[Prepared], None]


def finished_result(run: Prepared) -> TrainResult | None:
    """The result of a run that is finished within its bound; None: it is not. Raises BadConfig for a bound that is passed."""
    state, folder, bound = run.session.state, run.session.folder, run.session.checks.bound
    if state.update > bound:
        fix = f"{run.session.checks.least_bound(state.update)} or more, or train again with --overwrite"
        raise BadConfig(f"{state.update} updates are made already, and only {bound} asked for", where=folder.url, fix=fix)
    known = None if run.tensors is None else folder.result()
    return known if known is not None and (state.stopped_by is not None or state.update == bound) else None


def learn_modules(
    sources: Sources,
    out: Any,
    options: Mapping[str, Any],
    steps: Steps,
    *,
    command: str,
    env_to_module: Given,
    on_progress: OnProgress,
) -> TrainResult:
    """See the module, and `train`. Raises what that raises."""
    if options["module_id"] is not None:
        fix = "--module-of alone; --module-id NAME trains one module by itself"
        raise UsageError("--module-id and --module-of exclude each other", where="--module-of", fix=fix)
    if not one_process():
        fix = "--module-id NAME, a run for each module"
        raise BadConfig("several modules in one run learn in one process", where="--module-of", fix=fix)
    module_of = ModuleOf.of(options["module_of"])
    asked = [sources] if isinstance(sources, (str, os.PathLike, Location)) else list(sources)
    beside = [out, *asked, *filter(None, [options.get("init_from")])]  # all that storage options may be for
    place = open_location(out, options["storage_options"], beside=beside)
    _claim(place, resume=options["resume"], overwrite=options["overwrite"])
    agents = _agents(expand(asked, options["storage_options"], beside=beside), module_of, options, on_progress)
    told = RunModules(tuple(sorted(agents)), module_of.texts, _played_by(agents))
    _check_names(told, place, options)
    own: dict[str, Any] = {"module_of": None}
    limit = options["memory_limit"]
    if limit is None and options["config"] is not None:
        limit = read_config(options["config"]).get("memory_limit")
    if limit is not None:
        own["memory_limit"] = byte_size(limit, option="--memory-limit", minimum=1) // len(told.modules)
    checks = ChecksTogether(place, told)
    with ExitStack() as held:
        for name in told.modules:
            there = place.join(MODULES_FOLDER).join(name)
            begun = (there.exists() and bool(there.children())) if there.is_local else there.exists()
            how = {"resume": options["resume"], "overwrite": options["overwrite"] and begun}
            kind = {"module": OneModule(name, module_of), "together": checks.of(name)}
            try:
                checks.runs[name] = steps.prepared(held, there, {**own, **how}, **kind)
            except OfflineCliError as err:
                err.where = f"{err.where}, module {name}"
                raise
        checks.open_environment(held)
        with signals_noted():
            for name in told.modules:
                with checks.turn_of(name):
                    checks.runs[name].session.check_losses()
            checks.forget_chances()
            if options["dry_run"]:
                found = {name: result_of(run.session, run.session.state.update) for name, run in checks.runs.items()}
                return replace(_joined(place, checks, found), stopped_by="dry-run")
            with RunLock(place, command).held(saved=lambda: None):
                write_whole(place.join(MODULES_FILE), json_bytes(told.as_dict()), folder=place)
                result = _trained(place, checks, steps, command, options["plugins"])
    return unless_missed(result, next(iter(checks.runs.values())).session.config)


def _claim(place: Location, *, resume: bool, overwrite: bool) -> None:
    """Raise OutputExists unless this call may write at `place`, Locked where another trainer is at work. Touches nothing."""
    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other", where=place.url, fix="one of the two")
    RunLock.refuse_second(place)
    if place.is_file() or (not place.join(MODULES_FILE).is_file() and not holds_nothing_else(place, TRAINING)):
        fix = (
            "choose another --out"
            if place.is_file()
            else "choose another --out; a run of one module is resumed without --module-of"
        )
        raise OutputExists("something else is there already", where=place.url, fix=fix)
    if place.join(MODULES_FILE).is_file() and not (resume or overwrite):
        fix = "--resume to continue that run, --overwrite to replace it, or another --out"
        raise OutputExists("a run is there already", where=place.url, fix=fix)
    place.check_writable()


def _agents(
    sources: Sequence[Location], module_of: ModuleOf, options: Mapping[str, Any], on_progress: OnProgress
) -> dict[str, list[str]]:
    """The modules that learn, with their agents: all sources are read once for it. Raises BadConfig."""
    seen = AgentsSeen()
    reading = read_episodes(
        sources,
        from_=options["from_"],
        action_scale=options["action_scale"],
        tables=TableOptions.of({name: value for name, value in options.items() if name != "memory_limit"}),
        storage_options=options["storage_options"],
        on_progress=on_progress,
        extras=lambda opened: ExtraOutputs(()),
    )
    with reading as stream:
        for batch in stream:
            seen.see(batch)
        where = ", ".join(stream.locations)
    if not seen.episodes:
        raise BadConfig("no episode has any steps", where=where, fix="record again")
    return seen.modules(module_of, where)


def _played_by(agents: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The module of each agent, of those that have one; of others a caller has to say by which they play."""
    counts = Counter(agent for own in agents.values() for agent in own)
    return {agent: name for name, own in sorted(agents.items()) for agent in own if counts[agent] == 1}


def _check_names(told: RunModules, place: Location, options: Mapping[str, Any]) -> None:
    """Raise BadConfig for names that no folder can have, and for modules that the run at `place` has and this one has not."""
    strange = [name for name in told.modules if not is_module_name(name)]
    if strange:
        fix = "letters, digits, _ - + . @, with --module-of AGENT=NAME"
        raise BadConfig(
            f"modules are called {', '.join(map(repr, strange))}, and folders cannot be", where="--module-of", fix=fix
        )
    known = modules_of_run(place)
    if known is None or known == told:
        return
    if options["resume"]:
        what = f"the run has the modules {known.as_dict()['agents']}, this call {told.as_dict()['agents']}"
        fix = "resume with the data and --module-of that the run was started with, or train again with --overwrite"
        raise BadConfig(what, where=place.url, fix=fix)
    others = set(known.modules) - set(told.modules)
    if others:
        what = f"the run there has other modules: {', '.join(sorted(others))}"
        raise OutputExists(what, where=place.url, fix="choose another --out, or remove that run")


def _trained(place: Location, checks: ChecksTogether, steps: Steps, command: str, plugins: Sequence[str]) -> ModulesResult:
    """All modules to their ends."""
    results: dict[str, TrainResult] = {}
    with ExitStack() as held:
        for name, run in checks.runs.items():
            known = finished_result(run)
            if known is not None:
                run.session.folder.remove_note(command)
                kept = load_policy(place.join(MODULES_FOLDER).join(name), plugins=plugins).module
                copy_into(run.session.learner.policy.state_dict(), kept.state_dict())
                run.session.state.stopped_by = known.stopped_by
                results[name] = known
        if len(results) < len(checks.runs):
            place.join(RESULT).remove()
        for name, run in checks.runs.items():
            if name not in results:
                held.enter_context(run.session.folder.at_work(command))
                with checks.turn_of(name):
                    steps.begun(run)
        checks.begin()
        try:
            while len(results) < len(checks.runs):
                _to_next_check(checks, results, steps)
        except Interrupted as err:
            err.where, err.details["run"] = place.url, place.url
            raise
    result = _joined(place, checks, results)
    write_whole(place.join(RESULT), json_bytes(result.as_dict()), folder=place)
    return result


def _to_next_check(checks: ChecksTogether, results: dict[str, TrainResult], steps: Steps) -> None:
    """Every module that is not finished to the first check that one of them has not settled, and what follows from it."""
    number = min(checks.number(name) for name in checks.runs if name not in results)
    due = [name for name in checks.runs if name not in results and checks.number(name) == number]
    for name in due:
        session = checks.runs[name].session
        with checks.turn_of(name):
            if session.state.stopped_by is None:
                steps.fit(session, until=checks.update_of(name, number))
    for name in due:
        session = checks.runs[name].session
        with checks.turn_of(name):
            _settled(session)
            if session.state.stopped_by is not None:
                if session.state.update < session.checks.bound:
                    session.save()
                results[name] = finished(session)
            else:
                session.advance()


def _settled(session: Session) -> None:
    """What belongs to this number of updates. Raises Interrupted, with what was saved."""
    try:
        session.settle()
    except StopRequested as err:
        raise interrupted(session, requested() or SIGTERM) from err


def _joined(place: Location, checks: ChecksTogether, results: Mapping[str, TrainResult]) -> ModulesResult:
    """One result of those of all modules."""
    first, every = next(iter(results.values())), list(results.values())

    def mean(name: str) -> float | None:
        values = [getattr(one, name) for one in every]
        return None if None in values else float(sum(values) / len(values))

    seconds = sum(one.seconds for one in every)
    reasons = list(dict.fromkeys(one.stopped_by for one in every))
    rows = [row for row in checks.rows if first.eval_return_mean in (row.get(CONFIRMED), row.get("eval_return_mean"))]
    return ModulesResult(
        run=place.url,
        updates=max(one.updates for one in every),
        epochs=max(one.epochs for one in every),
        seconds=round(seconds, 3),
        samples_per_second=round(sum(one.samples_per_second for one in every) / len(every), 1),
        loss=mean("loss"),
        losses={f"{module}.{name}": value for module, one in results.items() for name, value in one.losses.items()},
        val_loss=mean("val_loss"),
        eval_return_mean=first.eval_return_mean,
        eval_return_ci95=first.eval_return_ci95,
        eval_episodes=first.eval_episodes,
        val_accuracy=mean("val_accuracy"),
        val_mse=mean("val_mse"),
        policy_update=max(one.policy_update for one in every),
        stopped_by="target" if "target" in reasons else ", ".join(reasons),
        episodes=sum(one.episodes for one in every),
        steps=sum(one.steps for one in every),
        steps_left_out=sum(one.steps_left_out for one in every),
        device=first.device,
        threads=first.threads,
        notes=list(dict.fromkeys(note for one in every for note in one.notes)),
        modules={name: one.as_dict() for name, one in results.items()},
        return_by_agent=dict(rows[-1]["return_by_agent"]) if rows and first.eval_return_mean is not None else {},
    )
