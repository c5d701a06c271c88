"""`train` and `train_bc`: recordings in, a run folder with a policy out; `loop.py` is the run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from offline_cli.checked_keywords import checked
from offline_cli.choices import (
    ActionScale,
    Count,
    Device,
    DropShare,
    EpisodeEnds,
    NotNegative,
    OpenShare,
    Positive,
    Precision,
    Schedule,
    Share,
    Tracker,
    Whole,
)
from offline_cli.connectors.pipeline_spec import Given
from offline_cli.errors import UsageError
from offline_cli.progress import OnProgress, no_progress
from offline_cli.storage.locations import Location, Sources
from offline_cli.training.chosen_episodes import place_named
from offline_cli.training.loop import learn
from offline_cli.training.run_folder import TrainResult
from offline_cli.training.seeds import train_seeds, wanted_seeds

__all__ = ["train", "train_bc"]


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
    agent: str | None = None,
    top_fraction: Share | None = None,
    weight: Mapping[str, float] | Sequence[str] | None = None,
    batch_size: Count | None = None,
    lr: Positive | None = None,
    seed: Whole | None = None,
    seeds: int | str | Sequence[int] | None = None,
    hidden: Sequence[int] | None = None,
    config: str | os.PathLike[str] | None = None,
    network: str | None = None,
    pipeline: Given = None,
    lr_schedule: Schedule | None = None,
    lr_warmup: Whole | None = None,
    weight_decay: NotNegative | None = None,
    clip_norm: Positive | None = None,
    init_from: str | os.PathLike[str] | None = None,
    dropout: DropShare | None = None,
    layer_norm: bool | None = None,
    ema: OpenShare | None = None,
    log_std_min: float | None = None,
    log_std_max: float | None = None,
    algorithm: str | None = None,
    set: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] | None = None,
    policy: Sequence[str] | None = None,
    updates: Count | None = None,
    epochs: Count | None = None,
    until_return: float | str | None = None,
    patience: Count | None = None,
    val_fraction: OpenShare | None = None,
    max_val_loss: float | None = None,
    min_accuracy: Share | None = None,
    eval_every: Count | None = None,
    eval_episodes: Count | None = None,
    checkpoint_every: Count | None = None,
    track: Sequence[Tracker] | None = None,
    device: Device | None = None,
    precision: Precision | None = None,
    compile: bool | None = None,
    streaming: bool | None = None,
    memory_limit: int | str | None = None,
    temp_dir: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    resume: bool = False,
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

    In a game of several agents `agent` learns, from its own episodes, and is checked beside others that play by `policy`, texts
    `AGENT=POLICY`, else at random; returns are its own, and `until_return` may say so: "hunter=3". `track`: names of trackers
    that get each row of metrics.jsonl. `compile`: compute losses by torch.compile.

    `seeds`: a run for each, in `out`/seed-N, side by side where there are cores; how many, or the seeds themselves. Then
    the result is a `SeedsResult`: means over the runs with 95% intervals, and each run's own. `resume` continues all of them.

    With `streaming`, steps are kept on disk, in `temp_dir`; their order is the same. What `config` or
    `pipeline` names is imported without `plugins`. `command`: not used here.

    Raises OutputExists, UsageError; Locked where another process trains in `out`; BadConfig (every mistake at once; Box
    actions of unknown scale; episodes of several modules, none of `module_id`, or none of `agent`; resuming with other
    settings, data or pipelines), and before any data is read for pipelines that are wrong or do not fit; SpaceMismatch;
    UnknownEnvironment; MissingPackage; MissingDevice; what `read_episodes` raises for the data; BadPiece where a piece raises
    on the data; BadData where the environment raises, or a piece beside it; Diverged; Interrupted, with all saved and a policy
    to play; StorageError, which says from where `resume` continues; TargetNotMet where `until_return` was not confirmed within
    the bound, or the kept policy's held-out loss or accuracy is beyond `max_val_loss` or `min_accuracy` (the best policy is
    kept all the same).
    """
    options = dict(locals())
    if several := wanted_seeds(seeds, out, options):
        return train_seeds(train, several, options.pop("sources"), options.pop("out"), options)
    if "name" in (set or {}):
        raise UsageError("the name of the algorithm is not an option of it", where="--set name", fix="--algorithm NAME")
    options["algorithm"] = {**(set or {}), **({"name": algorithm} if algorithm else {})}
    options["init_from"] = init_from and place_named(init_from)
    return learn(sources, out, options, on_progress)


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
    agent: str | None = None,
    batch_size: Count | None = None,
    lr: Positive | None = None,
    seed: Whole | None = None,
    seeds: int | str | Sequence[int] | None = None,
    hidden: Sequence[int] | None = None,
    config: str | os.PathLike[str] | None = None,
    network: str | None = None,
    pipeline: Given = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] | None = None,
    policy: Sequence[str] | None = None,
    updates: Count | None = None,
    epochs: Count | None = None,
    until_return: float | str | None = None,
    patience: Count | None = None,
    val_fraction: OpenShare | None = None,
    max_val_loss: float | None = None,
    min_accuracy: Share | None = None,
    eval_every: Count | None = None,
    eval_episodes: Count | None = None,
    checkpoint_every: Count | None = None,
    track: Sequence[Tracker] | None = None,
    device: Device | None = None,
    precision: Precision | None = None,
    compile: bool | None = None,
    streaming: bool | None = None,
    memory_limit: int | str | None = None,
    temp_dir: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    resume: bool = False,
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
    return train(**locals())
