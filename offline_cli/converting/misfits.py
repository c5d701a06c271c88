"""Whether a policy learned from data can play in an environment, judged by their spaces; refuses to compare bounds."""

from __future__ import annotations

from gymnasium import spaces

from offline_cli.spaces import Space, describe, leaf_spaces

__all__ = ["misfits"]


def misfits(data: Space, environment: Space, *, inferred: bool, what: str) -> list[str]:
    """Why a policy for `data` cannot play in `environment`, in words; empty where it can.

    Bounds may differ (recorders store them in many ways), structure, shapes, kinds and numbers of choices may not. An inferred
    space knows only the choices that were seen, so the environment may have more.
    """
    ours, theirs = leaf_spaces(data, what), leaf_spaces(environment, what)
    if list(ours) != list(theirs):
        return [f"{what}: the data has {describe(data)}, the environment {describe(environment)}"]
    return [
        f"{path}: the data has {describe(ours[path])}, the environment {describe(theirs[path])}"
        for path in ours
        if not _fits(ours[path], theirs[path], inferred)
    ]


def _fits(data: Space, environment: Space, inferred: bool) -> bool:
    if inferred and isinstance(data, (spaces.Discrete, spaces.MultiDiscrete)):
        return _counted_fits(data, environment)
    if inferred and isinstance(environment, spaces.MultiBinary) and data.shape == environment.shape:
        return True  # zeros and ones read as integers
    if isinstance(data, spaces.Box) and isinstance(environment, spaces.Box):
        return data.shape == environment.shape
    if isinstance(data, spaces.Discrete) and isinstance(environment, spaces.Discrete):
        return bool((data.n, data.start) == (environment.n, environment.start))
    return bool(data == environment)


def _counted_fits(data: Space, environment: Space) -> bool:
    """Whether the largest choice seen, counted from 0, is one of the environment's."""
    if isinstance(data, spaces.Discrete) and isinstance(environment, spaces.Discrete):
        return int(data.n) <= int(environment.start) + int(environment.n)
    if isinstance(data, spaces.MultiDiscrete) and isinstance(environment, spaces.MultiDiscrete):
        return data.shape == environment.shape and all(
            seen <= start + count
            for seen, start, count in zip(
                data.nvec.ravel().tolist(), environment.start.ravel().tolist(), environment.nvec.ravel().tolist(), strict=True
            )
        )
    return isinstance(environment, (spaces.MultiBinary, spaces.Box)) and data.shape == environment.shape
