"""What fuzzing begins with: valid samples of each format, small ones, and the hostile corpus."""

from __future__ import annotations

import base64
import io
import json
import pickle
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import lz4.frame
import msgpack
import numpy as np
import pyarrow.parquet as pq
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


def _columns() -> list[bytes]:
    rng = np.random.default_rng(0)
    return [
        b"\n".join(_cell(pickle.dumps(row, 4)) for row in rng.normal(size=(6, 4)).astype(kind))
        for kind in ("f4", "f8", "U3", "?")
    ]


def _manifests() -> list[bytes]:
    from offline_cli.datasets.manifest import Counts, Environment, Manifest, Shard
    from offline_cli.datasets.statistics import StatisticsBuilder

    shard = Shard("data/shard-0123abcd-000000.parquet", 3, 3, 9, 1234, "0" * 64)
    statistics = StatisticsBuilder()
    statistics.add(_batch(NESTED, BOX))
    made = []
    for space in (spaces.Box(-1, 1, (2,)), NESTED):
        found = Manifest(
            format="episodes",
            complete=True,
            environment=Environment("CartPole-v1"),
            observation_space=space,
            action_space=spaces.Discrete(2),
            spaces_inferred=False,
            action_scale="env",
            compression="zstd",
            counts=Counts(3, 9, 3, 0, 0),
            shards=(shard,),
            statistics=statistics.as_json(),
            assumptions={"unfinished-episode": 1},
            provenance={"commands": ["offline-cli convert"], "sources": []},
        )
        made.append(json.dumps(found.as_json()).encode())
    return made


def _notes() -> list[bytes]:
    plain = {
        "generation": "0123abcd",
        "options": {"max_rows": 5},
        "first_quarantine": 0,
        "changes": [],
        "host": "h",
        "pid": 1,
        "process_started": "",
    }
    first = {**plain, "started": "2024-05-01T10:00:00+00:00", "command": "offline-cli convert"}
    later = {**first, "machine": "m", "token": "0" * 32, "beat": "2024-05-01T10:00:10+00:00", "left": False}
    return [json.dumps(note).encode() for note in (first, later)]


def _files(*patterns: str) -> list[bytes]:
    paths = sorted(path for pattern in patterns for path in TESTDATA.glob(pattern))
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


def _pipelines() -> list[bytes]:
    return [
        b"""kind = "learner"
defaults = true
[[pieces]]
name = "mean_std_filter"
clip_by_value = 10.0
[[pieces]]
name = "prev_actions_prev_rewards"
n_prev_actions = 2
[[pieces]]
name = "frame_stacking"
num_frames = 4
before = "AddStatesFromEpisodesToBatch"
""",
        b"""kind = "learner"
[[pieces]]
name = "frame_stacking"
num_frames = 4
[[pieces]]
name = "n_step_returns"
n_step = 3
gamma = 0.9
""",
        b"""kind = "env_to_module"
[[pieces]]
name = "one_hot"
[[pieces]]
name = "flatten_observations"
after = "one_hot"
[[pieces]]
name = "gymnasium_wrapper"
wrapper = "RescaleObservation"
options = {min_obs = 0.0, max_obs = 1.0}
""",
        b"""kind = "module_to_env"
normalize_actions = false
clip_actions = true
[[pieces]]
use = "package.module:Class"
before = "GetActions"
""",
    ]


def _learned_states() -> list[bytes]:
    from offline_cli.connectors.connector_v2 import state_to_bytes

    moments = {"count": 4, "mean": np.zeros(3), "m2": np.ones(3)}
    full = {"MeanStdFilter": {"shared": {"obs": moments}, "own": {}}}
    return [state_to_bytes(state, where="seed") for state in ({}, full)]


def _policies() -> list[bytes]:
    import hashlib

    from fuzz_policies import POLICY, TRAINED, policy_files

    digest = hashlib.sha256(policy_files()[1]).hexdigest()
    frames = {"kind": "learner", "pieces": [{"name": "frame_stacking", "num_frames": 2}]}
    told = [{"document": document, "pieces": ["FrameStacking"], "state_sha256": digest} for document in (frames, TRAINED, None)]
    return [json.dumps(POLICY).encode(), *(json.dumps({**POLICY, "pipeline": one}).encode() for one in told)]


def _tensors() -> list[bytes]:
    from fuzz_policies import policy_files

    return [policy_files()[0]]


def _table_rows() -> list[dict[str, Any]]:
    steps = [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2)]
    return [
        {
            "eps_id": name,
            "t": t,
            "obs": [0.5 * t, -1.0],
            "actions": t % 2,
            "rewards": 1.0,
            "terminateds": (name, t) == ("a", 2),
            "truncateds": False,
            "infos": {"lives": t},
            "action_logp": -0.5,
        }
        for name, t in steps
    ]


def _csv() -> bytes:
    rows = _table_rows()
    cells = [[json.dumps(value).replace('"', '""') for value in row.values()] for row in rows]
    lines = [",".join(rows[0]), *(",".join(f'"{cell}"' for cell in row) for row in cells)]
    return "\n".join(lines).encode()


def _json_rows() -> list[bytes]:
    rows = _table_rows()
    dicts = [{**row, "obs": {"x": row["obs"], "y": 1}, "actions": [0.5, -0.5]} for row in rows]
    return [b"\n".join(json.dumps(row).encode() for row in table) for table in (rows, dicts, rows[:1])]


def _hdf5(name: str) -> list[bytes]:
    from fuzz_hdf5 import MAKERS as OF_HDF5

    return OF_HDF5[name]()


# ---- formats of several files, and archives ----


def _archives() -> list[bytes]:
    ends = np.isin(np.arange(6), (2, 5))
    flat = {"observations": np.zeros((6, 2), np.float32), "actions": np.arange(6), "rewards": np.ones(6), "terminals": ends}
    made = []
    for arrays in (
        flat,
        {"observations/a": np.ones((6, 1)), **{name: flat[name] for name in ("actions", "rewards", "terminals")}},
    ):
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        made.append(buffer.getvalue())
    return [*made, (TESTDATA / "ogbench" / "cube-single-play-v0-val.npz").read_bytes()]


def _folder(path: str, leave_out: tuple[str, ...] = ()) -> bytes:
    folder = TESTDATA / path
    files = {str(file.relative_to(folder)): file for file in sorted(folder.rglob("*")) if file.is_file()}
    packed: bytes = msgpack.packb({name: _slim(file) for name, file in files.items() if not name.startswith(leave_out)})
    return packed


def _slim(file: Path) -> bytes:
    """Parquet without statistics of episodes, which no reader looks at."""
    if file.suffix != ".parquet":
        return file.read_bytes()
    table = pq.read_table(file)
    buffer = io.BytesIO()
    pq.write_table(table.drop_columns([name for name in table.column_names if name.startswith("stats/")]), buffer)
    return buffer.getvalue()


MAKERS: dict[str, Callable[[], list[bytes]]] = {
    "episode": lambda: [*small_items(), _unfinished()],
    "episodes": lambda: [*small_items(), _unfinished()],
    "cell": lambda: [_cell(made) for made in _pickles()],
    "cells": _columns,
    "pickle": _pickles,
    "objects": _pickles,
    "sample-batch": lambda: _files("sample_batch/*.json", "sample_batch/*.gz", "sample_batch/*.zip"),
    "space-json": _json_spaces,
    "space-rllib": _rllib_spaces,
    "manifest": _manifests,
    "note": _notes,
    "npz": _archives,
    "lerobot": lambda: [
        _folder(f"lerobot/{layout}", ("videos", "meta/stats", "meta/episodes_stats")) for layout in ("v30", "v21")
    ],
    "imitation": lambda: [_folder("imitation/continuous"), _folder("imitation/discrete")],
    "info": lambda: [b"{}", b'{"a": 1, "b": [1.5, NaN, "x"], "c": {"d": null}}'],
    "mapping": _mappings,
    "pipeline": _pipelines,
    "pieces-state": _learned_states,
    "policy": _policies,
    "tensors": _tensors,
    "csv": lambda: _files("tables/*.csv", "tables/*.tsv", "tables/*.csv.gz"),
    "csv-table": lambda: [_csv(), *_files("tables/*.csv.gz")],
    "json-lines": lambda: _files("tables/*.jsonl"),
    "json-table": _json_rows,
    **{name: partial(_hdf5, name) for name in ("d4rl", "robomimic", "d3rlpy", "minari", "minari-metadata")},
}


def seeds_of(target: str) -> list[bytes]:
    """Valid samples for `target`, then the inputs that earlier runs found interesting."""
    saved = sorted((SAVED / target).glob("*")) if (SAVED / target).is_dir() else []
    found = [*MAKERS[target](), *(path.read_bytes() for path in saved)]
    return list(dict.fromkeys(found))
