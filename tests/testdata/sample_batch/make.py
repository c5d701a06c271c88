"""Writes the samples beside it, one per dialect of SampleBatch JSON; uses no code of the project that reads them.

Run `python make.py` in any folder: the files are written beside this script, the same bytes every time.
"""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np

HERE = Path(__file__).parent
Batch = dict[str, Any]


def base() -> Batch:
    """Two episodes: 7001 of 3 steps, terminated, and 7002 of 4 steps, truncated. Floats are float32 values."""
    steps = [3, 4]
    obs = [
        np.float32(0.1) * np.arange(2 * (n + 1), dtype=np.float32).reshape(-1, 2) + np.float32(k) for k, n in enumerate(steps)
    ]
    batch: dict[str, np.ndarray | list[Any]] = {
        "obs": np.concatenate([o[:-1] for o in obs]),
        "new_obs": np.concatenate([o[1:] for o in obs]),
        "actions": np.array([0, 1, 1, 0, 0, 1, 0]),
        "rewards": np.array([1.0, 0.5, 0.1, 1.0, 2.0, 3.0, 4.0]),
        "terminateds": np.array([0, 0, 1, 0, 0, 0, 0], bool),
        "truncateds": np.array([0, 0, 0, 0, 0, 0, 1], bool),
        "infos": [{}] * 7,
        "eps_id": np.repeat([7001, 7002], steps),
        "unroll_id": np.repeat([1, 2], steps),
        "agent_index": np.zeros(7, np.int64),
        "t": np.concatenate([np.arange(n) for n in steps]),
        "action_logp": np.float32(-0.1) * np.arange(7, dtype=np.float32),
    }
    return batch


def old_numpy(pickled: bytes) -> bytes:
    """What numpy before 2.0 wrote: the same with its old module name (protocol 2 names modules in plain lines)."""
    assert b"numpy._core.multiarray\n" in pickled
    return pickled.replace(b"numpy._core.multiarray\n", b"numpy.core.multiarray\n")


def packed(value: Any, protocol: int = 5, *, old: bool = False) -> str:
    """As RLlib packs: pickle, lz4 frame, base64."""
    pickled = pickle.dumps(value, protocol)
    return base64.b64encode(lz4.frame.compress(old_numpy(pickled) if old else pickled)).decode("ascii")


def plain(batch: Batch) -> Batch:
    """Arrays as lists, at any depth."""
    return {
        key: value.tolist() if isinstance(value, np.ndarray) else plain(value) if isinstance(value, dict) else value
        for key, value in batch.items()
    }


def rows(batch: Batch, chosen: Any) -> Batch:
    """Some rows of every column."""
    index = np.arange(len(batch["t"]))[chosen]
    return {key: [value[i] for i in index] if isinstance(value, list) else value[index] for key, value in batch.items()}


def without(batch: Batch, *names: str) -> Batch:
    """All columns but those."""
    return {key: value for key, value in batch.items() if key not in names}


def single(batch: Batch) -> Batch:
    """A SampleBatch line."""
    return {"type": "SampleBatch", **plain(batch)}


def multi(**policies: Batch) -> Batch:
    """A MultiAgentBatch line."""
    count = max(len(batch["t"]) for batch in policies.values())
    return {
        "type": "MultiAgentBatch",
        "count": count,
        "policy_batches": {name: plain(batch) for name, batch in policies.items()},
    }


def text(*lines: Batch | str) -> str:
    """The lines of a file, as Python's json writes them (NaN included)."""
    return "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)


def object_array(items: list[Any]) -> np.ndarray:
    """infos as RLlib holds them before it packs them."""
    array = np.empty(len(items), object)
    array[:] = items
    return array


def recurrent(b: Batch) -> Batch:
    """With the columns of an LSTM of 2 cells: sequences of at most 2 steps, state_in one row per sequence."""
    state = np.float32(0.3) * np.arange(14, dtype=np.float32).reshape(7, 2)
    lengths = np.array([2, 1, 2, 2])
    return {**b, "state_out_0": state, "state_in_0": np.zeros((4, 2), np.float32), "seq_lens": lengths}


def padded(b: Batch) -> Batch:
    """The same with every sequence filled up to 2 rows: row 3 is no step."""
    full = rows(b, [0, 1, 2, 2, 3, 4, 5, 6])
    for name in ("obs", "new_obs", "rewards", "action_logp"):
        full[name][3] = 0
    full["terminateds"][3] = False
    return {**full, "seq_lens": np.array([2, 1, 2, 2])}


def with_parts(b: Batch, *, by_row: bool) -> Batch:
    """Observations {a: (2,), b: ()}, as columns by part (RLlib) or as a dict per row."""

    def parts(column: np.ndarray) -> Any:
        tree = {"a": column.tolist(), "b": column[:, 0].tolist()}
        return [{"a": a, "b": b} for a, b in zip(tree["a"], tree["b"], strict=True)] if by_row else tree

    return {**b, "obs": parts(b["obs"]), "new_obs": parts(b["new_obs"])}


def with_tuples(b: Batch, *, by_row: bool) -> Batch:
    """Actions (Discrete, Box of 2), as columns by part (RLlib) or as a list per row."""
    vectors = b["obs"] * np.float32(2)
    columns = [b["actions"].tolist(), vectors.tolist()]
    return {**b, "actions": [list(row) for row in zip(*columns, strict=True)] if by_row else columns}


def two_agents(b: Batch) -> Batch:
    """Both episodes as two agents of one."""
    return {**b, "eps_id": np.full(7, 7000), "agent_index": np.repeat([0, 1], [3, 4])}


def texts(b: Batch) -> dict[str, str]:
    """Every sample that is a plain text file, by name."""
    first, second = rows(b, slice(0, 3)), rows(b, slice(3, 7))
    turns = two_agents(b)
    return {
        "sample_batch": text(single(b)),
        "multi_agent_batch": text(multi(default_policy=b)),
        "without_type": text(plain(b)),
        "wrapped_object": text({"value": single(b)}),
        "wrapped_text": text({"value": json.dumps(multi(default_policy=b))}),
        "packed_obs": text(single({**b, "obs": packed(b["obs"]), "new_obs": packed(b["new_obs"])})),
        "packed_by_old_numpy": text(
            single({**b, "obs": packed(b["obs"], 2, old=True), "new_obs": packed(b["new_obs"], 2, old=True)})
        ),
        "packed_all": text(single({key: packed(object_array(value) if key == "infos" else value) for key, value in b.items()})),
        "packed_rows": text(single({**b, "obs": [packed(row) for row in b["obs"]]})),
        "dones": text(single({**without(b, "terminateds", "truncateds"), "dones": b["terminateds"] | b["truncateds"]})),
        "done_and_truncateds": text(single({**without(b, "terminateds"), "done": b["terminateds"] | b["truncateds"]})),
        "without_flags": text(single(without(b, "terminateds", "truncateds"))),
        "without_t": text(single(without(b, "t"))),
        "without_eps_id": text(
            single(rows(b, slice(0, 5))).copy() | {"eps_id": None}, single(rows(b, slice(5, 7))) | {"eps_id": None}
        ),
        "without_eps_id_and_t": text(
            single(without(rows(b, slice(0, 5)), "eps_id", "t")), single(without(rows(b, slice(5, 7)), "eps_id", "t"))
        ),
        "without_new_obs": text(single(without(b, "new_obs"))),
        "without_rewards": text(single(without(b, "rewards"))),
        "text_ids": text(single({**b, "eps_id": ["7001"] * 3 + ["7002"] * 4})),
        "infos": text(single({**b, "infos": [{"a": 1}, None, {}, {}, {"b": [1, 2]}, "odd", {}]})),
        "recurrent": text(single(recurrent(b))),
        "padded": text(single(padded(b))),
        "many_lines": text(*(multi(default_policy=rows(b, slice(a, a + 2))) for a in range(0, 7, 2))),
        "row_by_row": text(*(single(rows(b, [i])) for i in range(7))),
        "first_half": text(single(rows(b, slice(0, 5)))),
        "second_half": text(single(rows(b, slice(5, 7)))),
        "blank_lines": "\n" + text(single(first)) + "\n   \n" + text(single(second)),
        "cut": text(single(first)) + text(single(second))[:-200],
        "cut_in_the_middle": text(single(first)) + text(single(second))[:-200] + "\n" + text(single(second)),
        "nan": text(single({**b, "rewards": [1.0, float("nan"), 0.1, 1.0, 2.0, 3.0, float("inf")]})),
        "null": text(single({**b, "action_logp": [None, *b["action_logp"].tolist()[1:]]})),
        "float_actions": text(single({**b, "actions": b["obs"] * np.float32(2)})),
        "float64": text(single({**b, "obs": np.round(b["obs"], 6).astype(np.float64) / 3, "new_obs": b["new_obs"]})),
        "dict_by_part": text(single(with_parts(b, by_row=False))),
        "dict_by_row": text(single(with_parts(b, by_row=True))),
        "tuple_by_part": text(single(with_tuples(b, by_row=False))),
        "tuple_by_row": text(single(with_tuples(b, by_row=True))),
        "two_agents": text(multi(default_policy=two_agents(b))),
        "two_agents_in_turns": text(single(rows(turns, [0, 3, 1, 4, 2, 5, 6]))),
        "two_policies": text(multi(left={**first, "eps_id": np.full(3, 7000)}, right={**second, "eps_id": np.full(4, 7000)})),
        "previous": text(single({**b, "prev_actions": shifted(b["actions"]), "prev_rewards": shifted(b["rewards"])})),
        "previous_of_its_own": text(single({**b, "prev_actions": shifted(b["actions"]) + 5})),
        "notes": text(single({**b, "note": "by hand", "labels": ["a"] * 7, "epoch": 3})),
    }


def shifted(column: np.ndarray) -> np.ndarray:
    """The value of the step before, 0 at the first step of each episode."""
    out = np.concatenate([[0], column[:-1]]).astype(column.dtype)
    out[3] = 0
    return out


def write_zip(path: Path, members: dict[str, str]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)


def main() -> None:
    """Write every sample."""
    samples = texts(base())
    for name, content in samples.items():
        (HERE / f"{name}.json").write_text(content, encoding="utf-8", newline="\n")
    whole = gzip.compress(samples["sample_batch"].encode(), mtime=0)
    (HERE / "gzipped.json.gz").write_bytes(whole)
    (HERE / "gzipped_cut.json.gz").write_bytes(whole[: len(whole) // 2])
    write_zip(HERE / "zipped.zip", {"output-1.json": samples["second_half"], "output-0.json": samples["first_half"]})


if __name__ == "__main__":
    main()
