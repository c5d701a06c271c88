"""Writes the tables beside it: small ones in the manners of people who never heard of this project.

The values follow formulas, so that a test can say what every episode holds without reading a file. Run it again only to add a
table; what is there stays as it is: files of formats are frozen.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
EPISODES = 3


def length(e: int) -> int:
    """Steps of episode `e`."""
    return 3 + e


def feature(e: int, t: int, i: int) -> float:
    """Element `i` of the observation at step `t`, exact in every float dtype."""
    return e + t / 8 + i / 2


def reward(e: int, t: int) -> float:
    """What step `t` earned."""
    return t - e / 4


def action(e: int, t: int) -> int:
    """The category that was chosen at step `t`."""
    return (e + t) % 3


def last(e: int, t: int) -> bool:
    """Whether the episode ends with step `t`."""
    return t == length(e) - 1


def steps() -> list[tuple[int, int]]:
    """(episode, step), in order."""
    return [(e, t) for e in range(EPISODES) for t in range(length(e))]


def interleaved() -> list[tuple[int, int]]:
    """The same as several robots write into one log: by time."""
    return sorted(steps(), key=lambda step: (step[1], step[0]))


def write_csv(name: str, header: list[str], rows: list[list[Any]], *, delimiter: str = ",") -> None:
    """A CSV file as Python's own writer makes it."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerows([header, *rows])
    put(name, text.getvalue().encode())


def put(name: str, data: bytes) -> None:
    """Write a file that is not there yet."""
    path = HERE / name
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        path.write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)


def put_table(name: str, table: pa.Table) -> None:
    """Write a Parquet file that is not there yet."""
    sink = io.BytesIO()
    pq.write_table(table, sink)
    put(name, sink.getvalue())


def robot_log() -> None:
    """Several robots in one log: a column a sensor, seconds as floats, a flag that only the last row has."""
    header = ["run", "stamp", "joint_a", "joint_b", "gripper", "cmd_turn", "cmd_lift", "score", "battery", "done"]
    rows = [
        [
            f"run-{e:02d}",
            1700000000.25 + 1000 * e + 0.125 * t,
            *(feature(e, t, i) for i in range(3)),
            *((t + 1) / 4, -e / 2),
            reward(e, t),
            100 - t,
            "1" if last(e, t) else "",
        ]
        for e, t in interleaved()
    ]
    write_csv("robot_log.csv", header, rows)
    put(
        "robot_log.toml",
        b'action_scale = "env"\n\n[columns]\neps_id = "run"\nt = "stamp"\nobs = ["joint_a", "joint_b", "gripper"]\n'
        b'actions = ["cmd_turn", "cmd_lift"]\nrewards = "score"\ndones = "done"\n',
    )


def recommender() -> None:
    """Sessions of a shop: text ids, ISO times, an event by name, features as a JSON list."""
    events = ["view", "cart", "buy"]
    lines = [
        {
            "session": f"s/{e}",
            "at": f"2024-05-0{e + 1}T10:{t:02d}:00Z",
            "features": [feature(e, t, i) for i in range(2)],
            "event": events[action(e, t)],
            "revenue": reward(e, t),
            "country": "NO",
        }
        for e, t in interleaved()
    ]
    put("recommender.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    put(
        "recommender.toml",
        b'[columns]\neps_id = "session"\nt = "at"\nobs = "features"\nactions = "event"\nrewards = "revenue"\n\n'
        b'[categories]\nevent = ["view", "cart", "buy"]\n',
    )


def d4rl() -> None:
    """D4RL's arrays as they are, one after the other: no ids, `terminals` and `timeouts`."""
    table = pa.table(
        {
            "observations": pa.array([[feature(e, t, i) for i in range(3)] for e, t in steps()], pa.list_(pa.float32())),
            "actions": pa.array([[(t - e) / 8, t / 16] for e, t in steps()], pa.list_(pa.float32())),
            "rewards": pa.array([reward(e, t) for e, t in steps()], pa.float32()),
            "terminals": [last(e, t) and e % 2 == 0 for e, t in steps()],
            "timeouts": [last(e, t) and e % 2 == 1 for e, t in steps()],
        }
    )
    put_table("d4rl.parquet", table)


def old_gym() -> None:
    """(o_t, a_t, r_t, o_tp1, d_t, i_t, logprobs_t), vectors as JSON text, infos as JSON objects."""
    rows = [
        [
            json.dumps([feature(e, t, i) for i in range(2)]),
            action(e, t),
            reward(e, t),
            json.dumps([feature(e, t + 1, i) for i in range(2)]),
            last(e, t),
            json.dumps({"lives": 3 - e}) if t == 1 else "{}",
            -0.5 * t,
        ]
        for e, t in steps()
    ]
    write_csv("old_gym.csv", ["o_t", "a_t", "r_t", "o_tp1", "d_t", "i_t", "logprobs_t"], rows)


def kaggle() -> None:
    """A data frame as it was saved: an index without a name, text with commas, quotes and line ends."""
    rows = [
        [n, e, t, feature(e, t, 0), feature(e, t, 1), action(e, t), reward(e, t), f'said "{t}", then\nwent on']
        for n, (e, t) in enumerate(interleaved())
    ]
    write_csv("kaggle.csv", ["", "episode", "step", "x", "y", "action", "reward", "comment"], rows)
    put(
        "kaggle.toml",
        b'[columns]\neps_id = "episode"\nt = "step"\nobs = ["x", "y"]\nactions = "action"\nrewards = "reward"\n',
    )


def minari_export() -> None:
    """A row a step from Minari's episodes: fixed-size lists, both flags, the next observation."""

    def vectors(shift: int) -> pa.Array:
        flat = [feature(e, t + shift, i) for e, t in interleaved() for i in range(4)]
        return pa.FixedSizeListArray.from_arrays(pa.array(flat, pa.float64()), 4)

    table = pa.table(
        {
            "episode_id": pa.array([e for e, _ in interleaved()], pa.int32()),
            "timestep": pa.array([t for _, t in interleaved()], pa.int64()),
            "observation": vectors(0),
            "action": pa.array([action(e, t) for e, t in interleaved()], pa.int64()),
            "reward": [reward(e, t) for e, t in interleaved()],
            "next_observation": vectors(1),
            "termination": [last(e, t) and e == 0 for e, t in interleaved()],
            "truncation": [last(e, t) and e > 0 for e, t in interleaved()],
        }
    )
    put_table("minari_export.parquet", table)
    put(
        "minari_export.toml",
        b'[columns]\neps_id = "episode_id"\nt = "timestep"\nobs = "observation"\nactions = "action"\nrewards = "reward"\n'
        b'new_obs = "next_observation"\nterminateds = "termination"\ntruncateds = "truncation"\n',
    )


def dict_observations() -> None:
    """Observations in parts: a camera of 2x2 pixels, an arm in a struct; actions in parts too."""
    camera = pa.array(
        [[[e, t], [t, e]] for e, t in interleaved()],
        pa.list_(pa.list_(pa.uint8())),
    )
    arm = pa.array([{"angle": feature(e, t, 0), "load": feature(e, t, 1)} for e, t in interleaved()])
    table = pa.table(
        {
            "trial": pa.array([f"t{e}" for e, _ in interleaved()]).dictionary_encode(),
            "frame": pa.array([t for _, t in interleaved()], pa.int32()),
            "cam": camera,
            "arm": arm,
            "grip": pa.array([action(e, t) for e, t in interleaved()], pa.int8()),
            "speed": pa.array([t / 2 for _, t in interleaved()], pa.float32()),
            "reward": [reward(e, t) for e, t in interleaved()],
            "is_last": [last(e, t) for e, t in interleaved()],
        }
    )
    put_table("dict_observations.parquet", table)
    put(
        "dict_observations.toml",
        b'[columns]\neps_id = "trial"\nt = "frame"\nobs.camera = "cam"\n"obs.arm" = "arm"\n"actions.grip" = "grip"\n'
        b'"actions.speed" = ["speed"]\nrewards = "reward"\nterminateds = "is_last"\n',
    )


def json_cells() -> None:
    """RLlib's names in a packed CSV, vectors as JSON text: no mapping is needed."""
    rows = [
        [e, t, json.dumps([feature(e, t, i) for i in range(2)]), action(e, t), reward(e, t), last(e, t)]
        for e, t in interleaved()
    ]
    write_csv("json_cells.csv.gz", ["eps_id", "t", "obs", "actions", "rewards", "terminateds"], rows)


def arrow_parts() -> None:
    """A recording in two Arrow files, one of them a stream; an episode lies across both."""
    table = pa.table(
        {
            "eps_id": pa.array([f"ep{e}" for e, _ in steps()]),
            "t": pa.array([t for _, t in steps()], pa.int32()),
            "obs": pa.array([[feature(e, t, i) for i in range(2)] for e, t in steps()], pa.list_(pa.float32(), 2)),
            "actions": pa.array([action(e, t) for e, t in steps()], pa.int32()),
            "rewards": [reward(e, t) for e, t in steps()],
            "terminateds": [last(e, t) for e, t in steps()],
            "action_logp": pa.array([-t / 4 for _, t in steps()], pa.float32()),
        }
    )
    for name, part, new in (
        ("arrow_parts/part-0.arrow", table.slice(0, 5), pa.ipc.new_file),
        ("arrow_parts/part-1.arrow", table.slice(5), pa.ipc.new_stream),
    ):
        sink = io.BytesIO()
        with new(sink, part.schema) as writer:
            writer.write_table(part)
        put(name, sink.getvalue())


def from_one() -> None:
    """Tab-separated, steps counted from 1, no flags, no rewards, no next observation."""
    rows = [[e + 10, t + 1, feature(e, t, 0), feature(e, t, 1), action(e, t)] for e, t in interleaved()]
    write_csv("from_one.tsv", ["ride", "step", "x", "y", "a"], rows, delimiter="\t")
    put("from_one.toml", b'[columns]\neps_id = "ride"\nt = "step"\nobs = ["x", "y"]\nactions = "a"\n')


def falling_back() -> None:
    """No id and no flags: a counter that begins again."""
    rows = [[t, feature(e, t, 0), feature(e, t, 1), action(e, t), reward(e, t)] for e, t in steps()]
    write_csv("falling_back.csv", ["tick", "x", "y", "a", "r"], rows)
    put(
        "falling_back.toml",
        b'episode_ends = "t"\n\n[columns]\nt = "tick"\nobs = ["x", "y"]\nactions = "a"\nrewards = "r"\n',
    )


def chain() -> None:
    """No id, no flags, no counter: only the next observations tell where an episode ends."""
    table = pa.table(
        {
            "s": [[feature(e, t, i) for i in range(2)] for e, t in steps()],
            "a": [action(e, t) for e, t in steps()],
            "r": [reward(e, t) for e, t in steps()],
            "s2": [[feature(e, t + 1, i) for i in range(2)] for e, t in steps()],
        }
    )
    put_table("chain.parquet", table)
    put("chain.toml", b'episode_ends = "chain"\n\n[columns]\nobs = "s"\nactions = "a"\nrewards = "r"\nnew_obs = "s2"\n')


def decimal_commas() -> None:
    """A spreadsheet of a place where decimals have a comma."""
    rows = [
        [e, t, *(str(feature(e, t, i)).replace(".", ",") for i in range(2)), action(e, t), str(reward(e, t)).replace(".", ",")]
        for e, t in interleaved()
    ]
    write_csv("decimal_commas.csv", ["lauf", "schritt", "x", "y", "aktion", "lohn"], rows, delimiter=";")
    put(
        "decimal_commas.toml",
        b'[columns]\neps_id = "lauf"\nt = "schritt"\nobs = ["x", "y"]\nactions = "aktion"\nrewards = "lohn"\n\n'
        b'[csv]\ndelimiter = ";"\ndecimal = ","\n',
    )


def two_agents() -> None:
    """Two agents that share every episode, each with a policy of its own."""
    lines = [
        {
            "game": e,
            "turn": t,
            "player": player,
            "brain": f"brain-{player}",
            "state": {"pos": feature(e, t, k), "vel": feature(e, t, k + 1)},
            "move": action(e, t + k),
            "points": reward(e, t) + k,
            "over": last(e, t),
        }
        for e, t in interleaved()
        for k, player in enumerate(["red", "blue"])
    ]
    put("two_agents.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    put(
        "two_agents.toml",
        b'[columns]\neps_id = "game"\nt = "turn"\nagent_id = "player"\nmodule_id = "brain"\nobs = ["state.pos", "state.vel"]\n'
        b'actions = "move"\nrewards = "points"\nterminateds = "over"\n',
    )


if __name__ == "__main__":
    for write in (
        *(robot_log, recommender, d4rl, old_gym, kaggle, minari_export, dict_observations, json_cells, arrow_parts),
        *(from_one, falling_back, chain, decimal_commas, two_agents),
    ):
        write()
