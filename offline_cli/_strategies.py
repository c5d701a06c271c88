"""Hypothesis strategies of `offline_cli.testing`: spaces, batches and episodes; needs the package hypothesis."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from gymnasium import spaces as gym_spaces
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.episode_spaces import category_bounds, space_tree
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.spaces import Space
from offline_cli.trees import Tree, map_leaves

BOXES: Final = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool")
MAX_STEPS: Final = 6


def spaces(*, max_depth: int = 2) -> SearchStrategy[Space]:
    """Box of any dtype and rank, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple nested up to `max_depth`."""
    shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
    counts = st.lists(st.integers(1, 4), min_size=1, max_size=3)
    space: SearchStrategy[Space] = st.one_of(
        st.builds(_box, st.sampled_from(BOXES), shapes),
        st.builds(lambda n, start: gym_spaces.Discrete(n, start=start), st.integers(1, 5), st.integers(-2, 3)),
        st.builds(lambda sizes, start: gym_spaces.MultiDiscrete(sizes, start=[start] * len(sizes)), counts, st.integers(0, 1)),
        st.integers(1, 4).map(gym_spaces.MultiBinary),
    )
    keys = st.text("abcxyz_", min_size=1, max_size=5)
    for _ in range(max_depth):
        parts = st.dictionaries(keys, space, min_size=1, max_size=3)
        pairs = parts.map(lambda named: gym_spaces.Dict(list(named.items())))
        space = st.one_of(space, pairs, st.lists(space, min_size=1, max_size=3).map(gym_spaces.Tuple))
    return space


def _box(dtype: str, shape: tuple[int, ...]) -> gym_spaces.Box:
    limits: dict[str, tuple[Any, Any]] = {"float": (-np.inf, np.inf), "bool": (False, True)}
    low, high = limits.get(dtype.rstrip("0123456789"), (0, 100))
    return gym_spaces.Box(np.full(shape, low, dtype), np.full(shape, high, dtype), shape, np.dtype(dtype))  # type: ignore[arg-type]


@st.composite
def episode_batches(draw: DrawFn, *, observation_space: Space | None = None, action_space: Space | None = None) -> EpisodeBatch:
    """Batches of 1 to 4 episodes of 0 to 6 steps, with values inside the spaces (drawn unless given)."""
    lengths = draw(st.lists(st.integers(0, MAX_STEPS), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))  # values come from a seed: drawing each one takes seconds
    count, steps = len(lengths), sum(lengths)
    obs, actions = observation_space or draw(spaces()), action_space or draw(spaces())
    extra = draw(st.dictionaries(st.sampled_from(("action_logp", "vf_preds", "state_out")), spaces(max_depth=1), max_size=2))
    flags = draw(_each(count, st.sampled_from(((False, False), (True, False), (False, True)))))
    seconds = st.floats(0, 1e9) | st.just(float("nan"))
    t_started, clock = draw(st.none() | _each(count, st.integers(0, 1000))), draw(st.none() | _each(2 * count, seconds))
    names = st.none() | _each(count, st.none() | st.text(max_size=8))
    return EpisodeBatch(
        ids=tuple(f"{draw(st.text(max_size=40))}{i}" for i in range(count)),
        starts=np.cumsum([0, *lengths]),
        obs=_rows(obs, steps + count, rng),
        actions=_rows(actions, steps, rng),
        rewards=rng.normal(size=steps),
        terminated=np.array([flag for flag, _ in flags], np.bool_),
        truncated=np.array([flag for _, flag in flags], np.bool_),
        extra={name: _rows(space, steps, rng) for name, space in extra.items()},
        infos=draw(st.none() | _each(steps + count, _plain_maps())),
        t_started=None if t_started is None else np.array(t_started, np.int64),
        agent_ids=draw(names),
        module_ids=draw(names),
        multi_agent_ids=draw(names),
        custom_data=draw(st.none() | _each(count, _plain_maps())),
        clock=None if clock is None else np.array(clock, np.float64).reshape(count, 2),
        observation_space=obs,
        action_space=actions,
    )


def _each(count: int, value: SearchStrategy[Any]) -> SearchStrategy[tuple[Any, ...]]:
    return st.lists(value, min_size=count, max_size=count).map(tuple)


def _plain_maps() -> SearchStrategy[dict[str, Any]]:
    """Infos and custom data that survive a round trip unchanged."""
    arrays = st.lists(st.floats(width=32), max_size=3).map(lambda values: np.array(values, np.float32))
    numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(width=32) | st.sampled_from((np.int64(7), np.float32(0.5)))
    scalars = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=8), arrays)
    keys = st.text(max_size=6)
    nested = st.lists(scalars, max_size=3) | st.dictionaries(keys, scalars, max_size=3)
    return st.just({}) | st.dictionaries(keys, scalars | nested, max_size=3)


def _rows(space: Space, count: int, rng: np.random.Generator) -> Tree:
    """Leaves (count, *shape) of values in `space`; about one float in sixteen is NaN or infinite."""

    def leaf_rows(leaf: Any) -> Any:
        shape = (count, *leaf.shape)
        if isinstance(leaf, gym_spaces.Box) and np.dtype(leaf.dtype).kind == "f":
            odd = rng.choice([np.nan, np.inf, -np.inf], shape)
            return np.where(rng.random(shape) < 1 / 16, odd, rng.normal(size=shape)).astype(leaf.dtype)
        low, high = category_bounds(leaf) if not isinstance(leaf, gym_spaces.Box) else (leaf.low, leaf.high)
        return rng.integers(np.asarray(low, np.int64), np.asarray(high, np.int64) + 1, shape).astype(leaf.dtype)

    return map_leaves(leaf_rows, space_tree(space))


@st.composite
def episodes(draw: DrawFn, *, observation_space: Space | None = None, action_space: Space | None = None) -> SingleAgentEpisode:
    """Episodes of 0 to 6 steps, numpy'ized or still growing, whole or a chunk with a lookback buffer."""
    whole = draw(episode_batches(observation_space=observation_space, action_space=action_space))[0]
    if draw(st.booleans()):
        return whole
    cut_at, lookback = draw(st.none() | st.integers(0, MAX_STEPS)), draw(st.integers(0, 3))
    return _stepped(whole, cut_at, lookback)


def _stepped(whole: SingleAgentEpisode, cut_at: int | None, lookback: int) -> SingleAgentEpisode:
    """`whole` rebuilt step by step, as a recorder does; with `cut_at`, the chunk that starts at that step."""
    names = ("id_", "observation_space", "action_space", "agent_id", "module_id", "multi_agent_episode_id")
    episode = SingleAgentEpisode(**{name: getattr(whole, name) for name in names})
    episode.custom_data.update(whole.custom_data)
    infos = whole.get_infos()
    episode.add_env_reset(whole.get_observations(0), infos[0])
    for t in range(len(whole)):
        if t == cut_at:
            episode = episode.cut(len_lookback_buffer=lookback)
        last = t == len(whole) - 1
        episode.add_env_step(
            whole.get_observations(t + 1),
            whole.get_actions(t),
            float(whole.get_rewards(t)),
            infos[t + 1],
            terminated=last and whole.is_terminated,
            truncated=last and whole.is_truncated,
            extra_model_outputs={name: whole.get_extra_model_outputs(name, t) for name in whole.extra_model_outputs},
        )
    return episode
