"""Films of episodes (`evaluate --video FOLDER`): what the environment renders, written by imageio.

An episode is played once more, alone, in a copy that renders. Files are MP4 where imageio finds ffmpeg, else GIF.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium.wrappers import RenderCollection

from offline_cli.environments import Environment, open_environment
from offline_cli.errors import BadConfig, BadData, MissingPackage, UsageError
from offline_cli.playing.loop import Plan, played
from offline_cli.playing.returns import Returns
from offline_cli.policies.policy import Policy
from offline_cli.stop_signals import check


def check_video(episodes: Sequence[int], count: int) -> ModuleType:
    """imageio, which writes films. Raises MissingPackage without it, UsageError for episodes that are not played."""
    if max(episodes, default=0) >= count:
        what = f"episode {max(episodes)} is not among the {count} that are played, which count from 0"
        raise UsageError(what, where="--video-episodes", fix="name episodes below --episodes")
    try:
        return importlib.import_module("imageio.v2")
    except ImportError as err:
        fix = "pip install 'offline-cli[video]'"
        raise MissingPackage(f"videos need the package {err.name}", where="--video", fix=fix) from err


def film(plan: Plan, policy: Policy, folder: str, episodes: Sequence[int]) -> list[str]:
    """Play these episodes of the plan once more, and write a file of each: the paths.

    Raises BadConfig for an environment that renders no images, BadData where it raises.
    """
    imageio = check_video(episodes, plan.episodes or 0)
    spec, written = plan.environment, list[str]()
    ending = "mp4" if importlib.util.find_spec("imageio_ffmpeg") else "gif"
    Path(folder).mkdir(parents=True, exist_ok=True)
    with open_environment(spec.id, {**spec.kwargs, "render_mode": "rgb_array"}, spec.wrappers) as environment:
        fps = (environment.singles(1)[0].metadata or {}).get("render_fps") or 30
        for number in episodes:
            frames = _frames(replace(plan, first=number, episodes=1, vectorize="sync"), environment, policy)
            path = Path(folder) / f"episode-{number}.{ending}"
            try:
                imageio.mimwrite(path, frames, **({"fps": fps} if ending == "mp4" else {"duration": 1000 / fps}))
            except (OSError, ValueError) as err:
                raise BadData(f"the film cannot be written: {err}", where=str(path), fix="another folder") from err
            written.append(str(path))
    return written


def _frames(plan: Plan, environment: Environment, policy: Policy) -> list[Any]:
    frames: list[Any] = []
    with suppress(AssertionError):  # gymnasium's, for an environment that does not render
        rendering: Any = RenderCollection(environment.singles(1)[0])
        with Environment(environment.name, lambda: rendering, environment.spec) as filmed:
            for _ in played(plan, filmed, policy, Returns):
                check()
            frames += rendering.frame_list
    if not frames or not all(isinstance(frame, np.ndarray) and frame.ndim == 3 for frame in frames):
        fix = "an environment with render_mode 'rgb_array'"
        raise BadConfig("it renders no images", where=f"--env {environment.name}", fix=fix)
    return frames
