"""`train` and `train_bc`: learn a policy from recordings; `loop.py` runs the training."""

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
    """Learn a policy from `sources` and save it in the run folder `out`, a path or a URL.

    `algorithm` names the learning algorithm and `set` its options, as in `[algorithm]` of the file `config`; see
    "Choose an algorithm" in the documentation.

    An option that is None takes its value from the TOML file `config`, else its default; so do algorithm and network.
    `pipeline`: a file, pieces, or a builder `lambda obs_space, act_space: pieces`. Its pieces learn from training episodes
    only, and their state is saved with the policy. A file declares which pieces also work in playing; for Python objects pass
    `env_to_module`, which may also be a file. `mapping` may be a dict.

    With `resume`, options that are None come from the configuration of the run in `out`; without a checkpoint a new run starts.
    Only the bound, `updates` or `epochs`, may change: the result equals a run with that bound from the start. A bound that is
    already reached adds no update; a bound below the updates already made is refused. Options that are not in the configuration
    must be repeated: `pipeline`, `env_to_module`, `module_id`, `weight`, `mapping` with the other options for tables, and an
    `env` that is code, `module:EnvId` or `python:...`.

    With several agents, `agent` learns from its own episodes, and plays in checks with the others by `policy`, strings
    `AGENT=POLICY`, default random; returns are the agent's own, and `until_return` may name it: "hunter=3". `track`: names of
    trackers that log each row of metrics.jsonl. `compile`: compile losses with torch.compile.

    `seeds`: the number of seeds, or the seeds themselves: one run each in `out`/seed-N, in parallel if there are cores. The
    result is a `SeedsResult`: means over the runs with 95% intervals, and each run's own. `resume` continues all of them.

    With `streaming`, steps are kept on disk, in `temp_dir`, in the same order. Code named by `config` or `pipeline` needs no
    `plugins`. `command`: unused.

    Raises OutputExists, UsageError; Locked if another process trains in `out`; BadConfig (all mistakes at once; Box actions of
    unknown scale; episodes of several modules, none of `module_id`, or none of `agent`; resuming with other settings, data or
    pipelines), for invalid pipelines before any data is read; SpaceMismatch; UnknownEnvironment; MissingPackage; MissingDevice;
    for the data like `read_episodes`; BadPiece if a piece raises on the data; BadData if the environment or a piece raises in a
    check; TrainingDiverged; Interrupted, after saving everything and a playable policy; StorageError, which names `resume`;
    TargetNotMet if `until_return` was not confirmed within the bound, or the kept policy's held-out loss or accuracy is beyond
    `max_val_loss` or `min_accuracy` (the best policy is kept).
    """
    options = dict(locals())
    if several := wanted_seeds(seeds, out, options):
        return train_seeds(train, several, options.pop("sources"), options.pop("out"), options)
    if "name" in (set or {}):
        raise UsageError("the algorithm's name is not one of its options", where="--set name", fix="use --algorithm NAME")
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
    """Fit a policy to the actions in `sources` by maximum likelihood: `train` with the algorithm `bc`, or that of `config`.

    Options and errors: see `train`.
    """
    return train(**locals())
