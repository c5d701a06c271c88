"""Training: recordings in, a run folder with a policy out; a run resumes with the same data and settings alone."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from offline_cli.byte_sizes import byte_size
from offline_cli.checked_keywords import checked
from offline_cli.choices import ActionScale, Device, EpisodeEnds, Precision, Schedule
from offline_cli.connectors.pipeline_spec import Given
from offline_cli.datasets.lock import unlock
from offline_cli.engines.ranks import is_first, joined
from offline_cli.environments import Environment, EnvironmentSpec, open_environment
from offline_cli.errors import BadConfig, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.opening import infos_of_manifests
from offline_cli.formats.tables import TableOptions
from offline_cli.modules.devices import choose_device, choose_threads, use_threads
from offline_cli.plugins import check_plugins, network_named
from offline_cli.policies.seeds import draw
from offline_cli.progress import OnProgress, no_progress
from offline_cli.source_code import code_of
from offline_cli.stop_signals import StopRequested, signals_noted
from offline_cli.storage.blanking import this_command
from offline_cli.storage.locations import Location, Sources, expand, open_location
from offline_cli.training.checkpoints import TrainState, check_same_learned, describe_policy, learned_bytes
from offline_cli.training.config import BCConfig, check_named_again, differences, read_config, resolve_config
from offline_cli.training.learner import Setup
from offline_cli.training.memory_store import check_training_fits
from offline_cli.training.metrics_file import TrainResult
from offline_cli.training.mixing import Selection, Weights, place_named
from offline_cli.training.outcomes import finished, interrupted, notes_on, result_of, unless_missed
from offline_cli.training.read_run import ReadRun
from offline_cli.training.run_folder import RunFolder
from offline_cli.training.run_lock import TRAINING
from offline_cli.training.session import CHANCE, Session, check_same_run
from offline_cli.training.training_data import TrainingData, load_data

__all__ = ["train", "train_bc"]

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Prepared:
    """A session that can begin, or resume."""

    session: Session
    tensors: Mapping[str, Tensor] | None  # of the checkpoint that it resumes from; None: it begins
    described: Mapping[str, Any]  # policy.json


def fit(session: Session) -> None:
    """Update, check and save until the session's checks end it. Raises Interrupted, saved, once a signal has come.

    Every checkpoint is of the moment before what belongs to its number of updates (row of metrics, check, end of the run), so
    that a run which resumes there with another bound is as if it had had that from the start: to one that is reached already
    as well.
    """
    state, bound = session.state, session.checks.bound
    while True:
        if session.is_to_stop:
            session.save()
            session.folder.keep_policy(session.policy_state())
            raise interrupted(session, session.signal_that_stops())
        if state.update == bound:
            session.save()
        else:
            session.save_if_due()
        try:
            session.settle()
        except StopRequested:  # the check that was cut short is made again by the resumed run
            session.cut_short()
            continue
        if state.stopped_by is not None:
            if state.update < bound:
                session.save()
            return
        session.advance()


@checked
def train(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    *,
    env: str | None = None,
    action_scale: ActionScale | None = None,
    keep_invented: bool | None = None,
    from_: str = "auto",
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    rows_as_episodes: bool = False,
    episode_ends: EpisodeEnds | None = None,
    plugins: Sequence[str] = (),
    module_id: str | None = None,
    top_fraction: float | None = None,
    weight: Mapping[str, float] | Sequence[str] | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    hidden: Sequence[int] | None = None,
    config: str | os.PathLike[str] | None = None,
    network: str | None = None,
    pipeline: Given = None,
    lr_schedule: Schedule | None = None,
    lr_warmup: int | None = None,
    weight_decay: float | None = None,
    clip_norm: float | None = None,
    init_from: str | os.PathLike[str] | None = None,
    dropout: float | None = None,
    layer_norm: bool | None = None,
    ema: float | None = None,
    log_std_min: float | None = None,
    log_std_max: float | None = None,
    algorithm: str | None = None,
    set: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] | None = None,
    updates: int | None = None,
    epochs: int | None = None,
    until_return: float | None = None,
    patience: int | None = None,
    val_fraction: float | None = None,
    eval_every: int | None = None,
    eval_episodes: int | None = None,
    checkpoint_every: int | None = None,
    device: Device | None = None,
    precision: Precision | None = None,
    streaming: bool | None = None,
    memory_limit: int | str | None = None,
    temp_dir: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    resume: bool = False,
    force_unlock: bool = False,
    allow_changes: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    env_to_module: Given = None,
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
) -> TrainResult:
    """Learn a policy from `sources` and keep it in the run folder `out`, a path or a URL.

    `algorithm` names the way of learning and `set` has options of it, as `[algorithm]` of the file `config`; see
    docs/algorithms.md.

    An option that is None takes its value from the TOML file `config`, else its default; so do algorithm and network.
    `pipeline` may be a file, pieces, or what builds them, `lambda obs_space, act_space: pieces`. What its pieces learn, they
    learn from episodes that are not held out, and it is kept with the policy. A file says itself which pieces belong beside the
    environment too; for Python objects `env_to_module` says it, which may be a file as well. `mapping` may be a dict.

    With `resume`, the configuration of the run in `out` stands for options that are None; where there is no checkpoint yet, a
    run begins. Only the bound, `updates` or `epochs`, may be another: the result is that of a run which had it from the start.
    With a bound that is reached already no update follows, and one below the updates made is refused. A finished run within its
    bound stays as it is. What is not kept in the configuration is to be named again: `pipeline`, `env_to_module`, `module_id`,
    `weight`, `mapping` with the other options of tables, and an `env` that is code, `module:EnvId` or `python:...`.

    With `streaming`, each epoch has the same steps once, in an order that depends on `memory_limit` too. What `config` or
    `pipeline` names is imported without `plugins`. `command`: for the note that says who trains here.

    Raises OutputExists, UsageError; Locked where another process trains in `out`; BadConfig (every mistake at once; Box actions
    of unknown scale; episodes of several modules, or none of `module_id`; resuming with other settings, data or pipelines), and
    before any data is read for pipelines that are wrong or do not fit; SpaceMismatch; UnknownEnvironment; MissingPackage;
    MissingDevice; what `read_episodes` raises for the data; BadPiece where a piece raises on the data; BadData where the
    environment raises, or a piece beside it; Diverged; Interrupted, with all saved and a policy to play; StorageError, which
    says from where `resume` continues; TargetNotMet where `until_return` was not confirmed within the bound (the best policy is
    kept all the same).
    """
    options = dict(locals())
    given: dict[str, Any] = dict(options)
    asked: dict[str, Any] = {name: given.pop(name) for name in ("algorithm", "set", "weight")}
    table = dict(asked["set"] or {})
    if "name" in table:
        raise UsageError("the name of the algorithm is not an option of it", where="--set name", fix="--algorithm NAME")
    table |= {"name": asked["algorithm"]} if asked["algorithm"] else {}
    given |= {"init_from": given["init_from"] and place_named(given["init_from"])}
    how: dict[str, Any] = {"env_to_module": env_to_module, "on_progress": on_progress, "command": command}
    return _learned(sources, out, given, table, asked["weight"], **how)


@checked
def train_bc(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    *,
    env: str | None = None,
    action_scale: ActionScale | None = None,
    keep_invented: bool | None = None,
    from_: str = "auto",
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    rows_as_episodes: bool = False,
    episode_ends: EpisodeEnds | None = None,
    plugins: Sequence[str] = (),
    module_id: str | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    hidden: Sequence[int] | None = None,
    config: str | os.PathLike[str] | None = None,
    network: str | None = None,
    pipeline: Given = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] | None = None,
    updates: int | None = None,
    epochs: int | None = None,
    until_return: float | None = None,
    patience: int | None = None,
    val_fraction: float | None = None,
    eval_every: int | None = None,
    eval_episodes: int | None = None,
    checkpoint_every: int | None = None,
    device: Device | None = None,
    precision: Precision | None = None,
    streaming: bool | None = None,
    memory_limit: int | str | None = None,
    temp_dir: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    resume: bool = False,
    force_unlock: bool = False,
    allow_changes: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    env_to_module: Given = None,
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
) -> TrainResult:
    """Fit a policy to the actions in `sources` by maximum likelihood: `train` with the algorithm `bc`, or the one of `config`.

    Options and what is raised: see `train`.
    """
    options = dict(locals())
    return _learned(sources, out, options, {}, None, env_to_module=env_to_module, on_progress=on_progress, command=command)


def _learned(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    options: Mapping[str, Any],
    algorithm: Mapping[str, Any],
    weight: Any,
    *,
    env_to_module: Given,
    on_progress: OnProgress,
    command: Sequence[str],
) -> TrainResult:
    """See `train`. `options`: those of `train_bc` and keys of the file. `algorithm`: what was asked for of its table."""
    places: dict[str, Any] = {"env_to_module": env_to_module, "on_progress": on_progress}
    told = shlex.join(command) or this_command()
    with ExitStack() as held:
        run = _prepared(held, sources, out, options, algorithm, weight, **places)
        session, state = run.session, run.session.state
        with use_threads(state.threads), signals_noted():
            with _own_chance(state):
                session.check_losses()  # before anything is written: an algorithm's mistake leaves no run folder
            if options["dry_run"]:
                return replace(result_of(session, state.update), stopped_by="dry-run")
            result = _train(run, told)
    return unless_missed(result, session.config)


def _prepared(
    held: ExitStack,
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    options: Mapping[str, Any],
    algorithm: Mapping[str, Any],
    weight: Any,
    *,
    env_to_module: Given,
    on_progress: OnProgress,
) -> Prepared:
    """A session that can begin or resume, nothing written yet; `held` owns what it needs."""
    asked_of_config = {name: value for name, value in options.items() if name in BCConfig.model_fields and name != "network"}
    if options["memory_limit"] is not None:
        asked_of_config["memory_limit"] = byte_size(options["memory_limit"], option="--memory-limit", minimum=1)
    storage_options, resume = options["storage_options"], options["resume"]
    others = {name: value for name, value in options.items() if name not in (*asked_of_config, "network")}
    asked = [sources] if isinstance(sources, (str, os.PathLike, Location)) else list(sources)
    beside = [out, *asked, *filter(None, [options.get("init_from")])]  # all that storage options may be for
    weights = Weights.of(weight, asked)
    place = open_location(out, storage_options, beside=beside)
    folder = (RunFolder if is_first() else ReadRun)(place)
    if options["force_unlock"] and is_first():
        unlock(place, TRAINING)
    folder.claim(resume=resume, overwrite=options["overwrite"])
    tables = TableOptions.of(others)
    check_plugins(options["plugins"])
    named = {"algorithm": algorithm, "network": network_named(options["network"]), "plugins": options["plugins"]}
    resolved = _resolve(asked_of_config, options["config"], folder, resume=resume, named=named)
    setup = _setup(resolved)
    target = choose_device(resolved.device)
    checkpoint = folder.load_checkpoint() if resume else None
    if checkpoint is not None:
        setup = setup.resumed(folder.learned(), resolved)
    elif resolved.init_from is not None:
        setup = setup.starting(resolved, storage_options, options["plugins"], out=folder.url, beside=beside)
    ranks = held.enter_context(joined(lambda: target.type))
    places = expand(asked, storage_options, beside=beside)
    numbers = () if weights is None else weights.numbers(asked, storage_options, beside=beside)
    played_in, notes = _played_in(resolved, places)
    environment = held.enter_context(_environment(played_in))
    data = load_data(
        places,
        resolved,
        setup,
        environment=environment,
        env_to_module=env_to_module,
        device=target.type,
        tables=tables,
        selection=Selection(resolved.top_fraction, weights, numbers),
        on_progress=on_progress,
        **{name: options[name] for name in ("module_id", "pipeline", "from_", "storage_options")},
    )
    held.callback(data.close)
    data = replace(data, played_in=played_in, environment_notes=tuple(notes))
    if resolved.streaming:
        check_training_fits(resolved.memory_limit, target.type, data.learner, data.train, resolved.batch_size)
    state, tensors = TrainState(data=data.digest, seen=data.seen, device=target.type, pipeline=data.pipeline), None
    state.init_from = setup.told(data.learner) if checkpoint is None else checkpoint[0].init_from
    own_code = [resolved.env or "", *(resolved.wrappers or ()), resolved.network["name"], resolved.algorithm["name"]]
    state.code = code_of(*(environment.singles(1) if environment else ()), *own_code, data.learner.algorithm, *data.code)
    state.threads = resolved.threads or choose_threads(data.learner.whole, resolved.batch_size, ranks.here)
    _warn(resolved, target.type, notes_on(data, resolved, state), new=resume and checkpoint is None, where=folder.url)
    described = describe_policy(data, resolved)
    if checkpoint is not None:
        _check_same(checkpoint[0], state, data, folder, options["allow_changes"])
        state, tensors = checkpoint
    given: dict[str, Any] = {"environment": environment, "on_progress": on_progress, "ranks": ranks}
    return Prepared(Session(data, resolved, state, folder, **given), tensors, described)


def _check_same(stored: TrainState, wanted: TrainState, data: TrainingData, folder: RunFolder, allow_changes: bool) -> None:
    """Raise BadConfig unless the run in `folder`, with the state `stored`, can continue as `wanted`."""
    before = len(stored.changes)
    check_same_run(stored, wanted, allow_changes, where=folder.url)
    for change in stored.changes[before:]:
        _log.warning("note: resumed although %s", change)
    check_same_learned(folder.learned(), data.trained, where=folder.url)


def _played_in(config: BCConfig, places: Sequence[Location]) -> tuple[EnvironmentSpec | None, list[str]]:
    """The environment of the checks, None where none was asked for, and notes on it and the data's. Raises BadConfig."""
    asked = AskedEnvironment.of(dict(config))
    known = ((info.location, info.environment) for info in infos_of_manifests(places))
    return (None, []) if asked is None else asked.chosen(known)


def _warn(config: BCConfig, device: str, notes: Sequence[str], *, new: bool, where: str) -> None:
    """Log what was asked for but may not be intended."""
    if config.precision == "bf16" and device == "cpu":
        _log.warning("warning: bf16 on a CPU is often 10 to 30 times slower than fp32; leave out --precision bf16")
    if new:
        _log.warning("note: no checkpoint in %s yet, so --resume begins a new run", where)
    for note in notes:
        _log.warning("note: %s", note)


def _train(run: Prepared, command: str) -> TrainResult:
    """Begin with the policy as `described`, or resume from a checkpoint's `tensors`, to the end; the result of a run that is
    finished already, without any message.
    """
    session, state, folder = run.session, run.session.state, run.session.folder
    known = _finished_result(run)
    session.ranks.wait()  # until each has read what is there
    if known is not None:
        folder.remove_note(command)
        return known
    with folder.at_work(command), _own_chance(state):
        _begun(run)
        if state.stopped_by is None:
            fit(session)
        return finished(session)


def _finished_result(run: Prepared) -> TrainResult | None:
    """The result of a run that is finished within its bound; None: it is not. Raises BadConfig for a bound that is passed."""
    state, folder, bound = run.session.state, run.session.folder, run.session.checks.bound
    if state.update > bound:
        fix = f"{run.session.checks.least_bound(state.update)} or more, or train again with --overwrite"
        raise BadConfig(f"{state.update} updates are made already, and only {bound} asked for", where=folder.url, fix=fix)
    known = None if run.tensors is None else folder.result()
    return known if known is not None and (state.stopped_by is not None or state.update == bound) else None


def _begun(run: Prepared) -> None:
    """Write the first files of a run, or go back to its checkpoint; then the session is ready."""
    session, folder = run.session, run.session.folder
    if run.tensors is None:
        torch.manual_seed(draw(session.config.seed, CHANCE))
        folder.begin(session.config, run.described, learned_bytes(session.data))
    else:
        session.restore(run.tensors)
        folder.go_on(session.config, session.state.metrics_bytes)
    session.prepare()


def _own_chance(state: TrainState) -> AbstractContextManager[None]:
    """Within it torch's random generators are the run's; afterwards they are restored."""
    return torch.random.fork_rng(devices=[torch.cuda.current_device()] if state.device == "cuda" else [])


def _setup(config: BCConfig) -> Setup:
    """Raises BadConfig for an algorithm that cannot stream, and for an environment that is wrong whatever the data is."""
    AskedEnvironment.of(dict(config))
    setup = Setup.of(config)
    every = setup.algorithm.refresh_every
    if config.streaming and every is not None:
        name = config.algorithm["name"]
        what = f"the algorithm {name!r} recomputes its columns every {every} updates, from episodes in memory"
        once = "--set refresh_every=0 to compute them once; or " * ("refresh_every" in setup.algorithm.options)
        raise BadConfig(what, where="--streaming", fix=f"{once}leave out --streaming")
    return setup


@contextlib.contextmanager
def _environment(spec: EnvironmentSpec | None) -> Iterator[Environment | None]:
    """The environment to measure in; it is closed afterwards whatever happens."""
    if spec is None:
        yield None
        return
    with open_environment(spec.id, spec.kwargs, spec.wrappers) as environment:
        if environment.agents is not None:
            fix = "leave out --env; `offline-cli evaluate --env` plays the runs of all agents, --policy AGENT=RUN"
            raise BadConfig(f"{spec.id} is an environment of several agents", where="--env", fix=fix)
        yield environment


def _resolve(
    options: Mapping[str, Any],
    file: str | os.PathLike[str] | None,
    folder: RunFolder,
    *,
    resume: bool,
    named: Mapping[str, Any],
) -> BCConfig:
    """The configuration; for a resumed run the stored one, or with another bound. Raises BadConfig for other changes.

    `named`: the algorithm and the network that were asked for, and the packages that may be imported.
    """
    if not (resume and folder.is_run):
        return resolve_config(options, file=file, **named)
    wanted = resolve_config(options, file=file, stored=folder.config(), **named)
    said = {**({} if file is None else read_config(file)), **{name: one for name, one in options.items() if one is not None}}
    check_named_again(wanted, said, where=folder.url)
    changed = differences(folder.resolved_config(), wanted)
    if changed:
        fix = "leave these options out to resume, or train again with --overwrite"
        raise BadConfig.of(changed, where=folder.url, fix=fix)
    return wanted
