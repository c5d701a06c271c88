"""What fuzzing begins with: valid samples of each format, small ones, and the hostile corpus."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import lz4.frame
import msgpack
import numpy as np
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import encode_batch
from offline_cli.formats.tables.mapping import preset_names, preset_text
from offline_cli.spaces import Space, space_to_json, space_to_rllib
from offline_cli.tally import Tally

__all__ = ["seeds_of", "small_items"]

HERE = Path(__file__).resolve().parent
TESTDATA = HERE.parent / "testdata"
SAVED = HERE / "saved"
CORPUS = HERE / "corpus"

BOX = spaces.Box(np.array([-1.0, -np.inf]), np.array([1.0, np.inf]), dtype=np.float64)
NESTED = spaces.Dict(
    {"camera": spaces.Box(0, 255, (2, 2), np.uint8), "arm": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])}
)
SPACES: tuple[Space, ...] = (
    BOX,
    NESTED,
    spaces.Discrete(4, start=-1),
    spaces.MultiDiscrete([2, 3], start=[0, 5]),
    spaces.MultiBinary([2, 2]),
    spaces.Box(-1, 1, (0, 3)),
)


def _rows(space: Space, rows: int) -> Any:
    """Leaves (rows, *shape), all zeros or the lowest there is."""
    if isinstance(space, spaces.Dict):
        return {key: _rows(part, rows) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_rows(part, rows) for part in space.spaces)
    return np.zeros((rows, *(space.shape or ())), space.dtype)


def _batch(observations: Space, actions: Space, **more: Any) -> EpisodeBatch:
    return EpisodeBatch(
        ids=("one", "two"),
        starts=np.array([0, 2, 3]),
        obs=_rows(observations, 5),
        actions=_rows(actions, 3),
        rewards=np.array([1.0, -0.5, 0.0]),
        terminated=np.array([True, False]),
        truncated=np.array([False, True]),
        observation_space=observations,
        action_space=actions,
        **more,
    )


@cache
def small_items() -> tuple[bytes, ...]:
    """Packed episodes of two layouts, some with infos, extra outputs and custom data."""
    infos = [{}, {"a": 1, "deep": {"b": [1.5, "x"]}}, {}, {3: np.arange(2)}, {}]
    extra = {"action_logp": np.zeros(3, np.float32), "state_out": {"h": np.zeros((3, 2), np.float32)}}
    named = {"agent_ids": ("a", "b"), "module_ids": ("m", "m"), "custom_data": ({}, {"k": [1, {"l": None}]})}
    batches = [
        _batch(spaces.Box(-1, 1, (2,)), spaces.Discrete(2)),
        _batch(NESTED, BOX, infos=infos, extra=extra, t_started=np.array([0, 7]), **named),
    ]
    return tuple(item for batch in batches for item in encode_batch(batch, where="seed", tally=Tally()))


def _unfinished() -> bytes:
    """As RLlib writes an episode that was not made arrays: lists of steps."""

    def buffer(data: Any) -> dict[str, Any]:
        return {"data": data, "lookback": 0, "finalized": False, "space": None}

    def step(*values: float) -> dict[bytes, Any]:
        row = np.array(values, np.float32)
        return {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [len(values)], b"data": row.tobytes()}

    state = msgpack.unpackb(small_items()[0], strict_map_key=False)
    lists = {
        "observations": buffer([step(0, 1), step(1, 2), step(2, 3)]),
        "actions": buffer([0, 1]),
        "rewards": buffer([1.0, 0.5]),
        "infos": buffer([{}, {"n": 1}, {}]),
        "extra_model_outputs": {"logp": buffer([{b"nd": False, b"type": "<f4", b"data": bytes(4)}] * 2)},
    }
    packed: bytes = msgpack.packb({**state, **lists})
    return packed


def _pickles() -> list[bytes]:
    values: list[Any] = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array([True, False]),
        np.array(["ab", "c"]),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.float64(2.5),
        [{}, {"a": 1, "b": [np.int64(1), None, (1.5, {2})]}],
        {"x": np.zeros(0, np.uint8), "y": {"z": np.ones((1, 1), ">i4")}},
    ]
    made = [pickle.dumps(value, protocol) for value in values for protocol in (0, 2, 4, 5)]
    return [*made, pickle.dumps(np.array([{}, {"k": 1}], object), 4)]


def _cell(value: bytes) -> bytes:
    return base64.b64encode(lz4.frame.compress(value))


def _files(*patterns: str, below: Path = TESTDATA) -> list[bytes]:
    paths = sorted(path for pattern in patterns for path in below.glob(pattern))
    return [path.read_bytes() for path in paths if path.is_file()]


def _json_spaces() -> list[bytes]:
    return [json.dumps(space_to_json(space)).encode() for space in SPACES]


def _rllib_spaces() -> list[bytes]:
    return [msgpack.packb(space_to_rllib(space)) for space in SPACES]


def _mappings() -> list[bytes]:
    full = b"""unmapped = "extra"
optional = ["extra_one"]
episode_ends = "flags"
action_scale = "env"
environment = "CartPole-v1"
[columns]
eps_id = "ride"
t = "step"
obs = ["x", "x_dot"]
"actions.arm" = "a"
rewards = "r"
terminateds = "d"
[extra]
extra_one = "logp"
[categories]
a = ["left", "right"]
[dtypes]
obs = "float32"
[spaces]
observation = {type = "Box", shape = [2], dtype = "float32", low = -1.0, high = [1.0, "inf"]}
[csv]
delimiter = ";"
decimal = ","
nulls = ["NA"]
"""
    return [full, *(preset_text(name).encode() for name in preset_names()), *_files("tables/*.toml")]


PIPELINE = b"""kind = "learner"
defaults = true
[[pieces]]
name = "mean_std_filter"
clip_by_value = 10.0
[[pieces]]
name = "frame_stacking"
num_frames = 4
"""


MAKERS: dict[str, Callable[[], list[bytes]]] = {
    "episode": lambda: [*small_items(), _unfinished()],
    "episodes": lambda: [*small_items(), _unfinished()],
    "cell": lambda: [_cell(made) for made in _pickles()],
    "objects": _pickles,
    "sample-batch": lambda: _files("sample_batch/*.json", "sample_batch/*.gz", "sample_batch/*.zip"),
    "space-json": _json_spaces,
    "space-rllib": _rllib_spaces,
    "manifest": lambda: _files("datasets/good/manifest.json", below=CORPUS),
    "mapping": _mappings,
    "pipeline": lambda: [*_files("good.toml", below=CORPUS / "pipelines"), PIPELINE],
    "csv-table": lambda: [*_files("good.csv", below=CORPUS / "tables"), *_files("tables/*.csv.gz")],
    "json-table": lambda: _files("good.jsonl", below=CORPUS / "tables"),
}


def seeds_of(target: str) -> list[bytes]:
    """Valid samples for `target`, then the inputs that earlier runs found interesting."""
    saved = sorted((SAVED / target).glob("*")) if (SAVED / target).is_dir() else []
    found = [*MAKERS[target](), *(path.read_bytes() for path in saved)]
    return list(dict.fromkeys(found))
