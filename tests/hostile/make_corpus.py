"""Makes the hostile corpus: `python tests/hostile/make_corpus.py [FOLDER]`; refuses nothing, and runs nothing of what it makes.

Small files in one folder per kind, made to break a reader, to fill its memory or to have it run what they hold; a payload,
were it run, would make the folder `CANARY`. The same script gives the same bytes (Parquet: with the same pyarrow). Tricks on
single episodes and cells in memory are in tests/episodes and tests/formats; here stands what takes a whole file to show, and
one of each kind of the others.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import pickle
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lz4.frame
import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CANARY = "/tmp/offline-cli-canary"
HERE = Path(__file__).resolve().parent
Files = Iterator[tuple[str, bytes]]


class Payload:
    """Its pickle makes a file where it is let in."""

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.mkdir, (CANARY,)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def packed(data: bytes) -> bytes:
    """gzip, the same every time."""
    made = io.BytesIO()
    with gzip.GzipFile(fileobj=made, mode="wb", mtime=0, compresslevel=9) as file:
        file.write(data)
    return made.getvalue()


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0)), data, compress_type=method)
    return made.getvalue()


def parquet(columns: dict[str, Any], **options: Any) -> bytes:
    made = io.BytesIO()
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, made, **{"compression": "zstd", "store_schema": True, **options})
    return made.getvalue()


# ---- recordings: packed episodes in Parquet ----


def node(type_: Any, shape: Any, data: Any, **more: Any) -> dict[Any, Any]:
    return {
        b"nd": True,
        b"type": type_,
        b"kind": b"",
        b"shape": shape,
        b"data": data,
        **{k.encode(): v for k, v in more.items()},
    }


def buffer(data: Any) -> dict[str, Any]:
    return {"data": data, "lookback": 0, "finalized": True, "space": None}


def state(**changes: Any) -> dict[Any, Any]:
    """Two steps of an episode."""
    return {
        "id_": "e",
        "agent_id": None,
        "module_id": None,
        "multi_agent_episode_id": None,
        "observations": buffer(node("<f4", [3, 1], bytes(12))),
        "actions": buffer(node("<i8", [2], bytes(16))),
        "rewards": buffer(node("<f8", [2], bytes(16))),
        "infos": {"data": [{}, {}, {}], "lookback": 0, "finalized": False},
        "extra_model_outputs": None,
        "is_terminated": True,
        "is_truncated": False,
        "t_started": 0,
        "t": 2,
        "_observation_space": {"space": "box", "low": bound(-1), "high": bound(1), "shape": [1], "dtype": "<f4"},
        "_action_space": {"space": "discrete", "n": 2, "start": 0},
        "_start_time": None,
        "_last_step_time": None,
        "custom_data": {},
        **changes,
    }


def bound(value: float, *, size: int = 1, dtype: str = "<f4") -> str:
    """RLlib's text of a bound of `size` equal numbers."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({size},), }}".encode().ljust(117) + b"\n"
    array = np.full(size, value, dtype).tobytes()
    return base64.b64encode(zlib.compress(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + array, 9)).decode()


def items(*episodes: Any, **options: Any) -> bytes:
    """A recording of these states, or bytes that pretend to be."""
    values = [episode if isinstance(episode, bytes) else msgpack.packb(episode) for episode in episodes]
    return parquet({"item": pa.array(values, pa.binary())}, **options)


def in_custom_data(value: bytes) -> bytes:
    return msgpack.packb(state(custom_data={"x": 1})).replace(msgpack.packb({"x": 1}), b"\x81\xa1x" + value)


def recordings() -> Files:
    pickled = pickle.dumps(Payload())
    yield "good.parquet", items(state())
    yield "pickle_in_an_object_array.parquet", items(state(observations=buffer(node("|O", [3], pickled, kind=b"O"))))
    yield "pointers_as_an_object_array.parquet", items(state(observations=buffer(node("|O", [3], b"A" * 24))))
    yield "record_dtype_with_an_object.parquet", items(state(actions=buffer(node("f8,O", [1], bytes(16)))))
    yield "huge_shape.parquet", items(state(observations=buffer(node("<f4", [1 << 62, 4, 3], bytes(12)))))
    yield "list_of_2_to_the_32.parquet", items(in_custom_data(b"\xdd\xff\xff\xff\xff"))
    yield "nested_3000_deep.parquet", items(in_custom_data(b"\x91" * 3000 + b"\xc0"))
    yield "id_nan.parquet", items(state(id_=float("nan")))
    yield "id_of_a_megabyte.parquet", items(state(id_="e" * (1 << 20)))
    yield "key_twice.parquet", items(msgpack.Packer().pack_map_pairs([*state().items(), ("t", 2)]))
    yield "two_episodes_of_one_id.parquet", items(state(), state(is_truncated=True))
    yield "space_of_objects.parquet", items(state(_action_space={"space": "discrete", "n": 2, "dtype": "f4,O"}))
    yield "item_repeated_by_a_dictionary.parquet", items(*[bytes(1 << 20)] * 1000)
    yield "cut.parquet", items(state())[:-30]
    yield "garbage_after_the_magic.parquet", b"PAR1" + bytes(range(256)) + struct.pack("<I", 256) + b"PAR1"


# ---- columns: RLlib's steps in Parquet ----


def cell(value: Any, **options: Any) -> str:
    data = value if isinstance(value, bytes) else pickle.dumps(value, 4)
    return base64.b64encode(lz4.frame.compress(data, **options)).decode()


def objects(values: list[Any], rows: int = 3) -> pa.Array:
    """Values as Ray writes those that Arrow has no type for; after the last of them come empty tuples."""
    cells = [value if isinstance(value, bytes) else pickle.dumps(value, 5) for value in values]
    return pa.array([*cells, *[b"\x80\x05)."] * (rows - len(cells))], pa.large_binary())


def columns(rows: int = 3, **changes: Any) -> bytes:
    """Steps of one episode; a column that is None is left out."""
    plain = {
        "eps_id": pa.array(["e"] * rows),
        "obs": pa.array([[0.0, 1.0]] * rows, pa.list_(pa.float32())),
        "actions": pa.array([0] * rows, pa.int64()),
        "rewards": pa.array([1.0] * rows),
        "new_obs": pa.array([[0.0, 1.0]] * rows, pa.list_(pa.float32())),
        "terminateds": pa.array([False] * (rows - 1) + [True]),
        "truncateds": pa.array([False] * rows),
        **changes,
    }
    return parquet({name: column for name, column in plain.items() if column is not None})


def extension(name: bytes, metadata: bytes, *, rows: int = 3) -> bytes:
    """Observations of an extension type that says this of itself."""
    storage = pa.array([[0.0, 1.0]] * rows, pa.list_(pa.float32()))
    table = pq.read_table(io.BytesIO(columns(rows)))
    index = table.column_names.index("obs")
    field = pa.field("obs", storage.type, metadata={b"ARROW:extension:name": name, b"ARROW:extension:metadata": metadata})
    return parquet(table.set_column(index, field, storage))


def invalid_text(count: int) -> pa.Array:
    offsets = np.arange(count + 1, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(b"\xff" * count)])


def rllib_columns() -> Files:
    yield "good.parquet", columns()
    yield "pickle_in_a_cell.parquet", columns(obs=pa.array([cell(Payload())] * 3))
    yield "cell_that_unfolds.parquet", columns(obs=pa.array([cell(np.zeros(40 << 20, np.uint8))] * 3))
    yield "pickled_object_of_code.parquet", columns(actions=objects([Payload()] * 3))
    yield "ids_not_utf8.parquet", columns(eps_id=invalid_text(3))
    yield "infos_nested_deep.parquet", columns(infos=pa.array(["[" * 100_000] * 3))
    yield "infos_half_a_letter.parquet", columns(infos=pa.array(['{"a": "\\ud800"}'] * 3))
    yield "t_negative.parquet", columns(t=pa.array([-3, -2, -1]))
    yield (
        "two_columns_of_one_name.parquet",
        parquet(pa.table([[1], [2], ["e"], [1.0], [0]], ["obs", "obs", "eps_id", "rewards", "actions"])),
    )
    ray = b"ray.data.arrow_tensor"
    yield "ray_tensor_of_a_huge_shape.parquet", extension(ray, b"[4611686018427387904, 4]")
    yield "ray_tensor_pickled.parquet", extension(ray, pickle.dumps(Payload()))


# ---- lines: SampleBatch JSON ----


def batch(**changes: Any) -> bytes:
    """A SampleBatch of two steps; a column that is None is left out."""
    plain = {
        "type": "SampleBatch",
        "eps_id": [1, 1],
        "obs": [[0.0, 1.0], [1.0, 2.0]],
        "new_obs": [[1.0, 2.0], [2.0, 3.0]],
        "actions": [0, 1],
        "rewards": [1.0, 0.5],
        "terminateds": [False, True],
        "truncateds": [False, False],
        "t": [0, 1],
        **changes,
    }
    return as_json({name: value for name, value in plain.items() if value is not None})


def lines() -> Files:
    yield "good.json", batch()
    yield "pickle_in_a_column.json", batch(obs=cell(Payload()))
    yield "lz4_declares_a_tebibyte.json", batch(obs=base64.b64encode(_declared(1 << 40)).decode())
    yield "lz4_bomb_in_gzip.json.gz", packed(batch(obs=cell(bytes(200 << 20))))
    yield "line_that_unfolds.json.gz", packed(b'{"type": "SampleBatch", "obs": "' + b"x" * (48 << 20))
    yield "nested_20000_deep.json", b'{"type": "SampleBatch", "obs": ' + b"[" * 20_000
    yield "ids_nan.json", batch(eps_id=[float("nan")] * 2)
    yield "huge_integers.json", batch(actions=[10**400, 1])
    yield "half_a_letter.json", batch(infos=[{"a": "\ud800"}, {"b": float("nan")}])
    yield "key_twice.json", batch()[:-1] + b', "obs": [[5.0, 5.0]]}'
    yield "not_utf8.json", batch(eps_id=["aa", "aa"]).replace(b"aa", b"a\xff")
    yield "columns_of_two_lengths.json", batch(rewards=[1.0])
    yield "seq_lens_that_lie.json", batch(seq_lens=[1 << 40, -5], state_in_0=[[0.0]])
    yield "cut.json", batch()[:-30]
    yield "gzip_with_a_broken_sum.json.gz", packed(batch())[:-8] + bytes(8)
    yield (
        "escaping_names.zip",
        zipped({"../../../etc/passwd": batch(), "/abs": batch(eps_id=[2, 2]), "a\\..\\b": batch(eps_id=[3, 3])}),
    )
    yield "overlapping_members.zip", _overlapping()
    yield "encrypted.zip", _patched(zipped({"a.json": batch()}), flags=1)
    yield "bomb.zip", zipped({"a.json": b'{"type": "SampleBatch", "obs": "' + b" " * (40 << 20) + b'"}'})


def _declared(size: int) -> bytes:
    return bytes(lz4.frame.LZ4FrameCompressor().begin(source_size=size) + bytes(100))


def _lists(depth: int, rows: int) -> Any:
    value: Any = 0.0
    for _ in range(depth):
        value = [value]
    return [value] * rows


def _patched(archive: bytes, *, flags: int) -> bytes:
    """A zip archive of one member with changes in its central directory."""
    work, at = bytearray(archive), archive.rindex(b"PK\x01\x02")
    struct.pack_into("<H", work, at + 8, flags)
    struct.pack_into("<H", work, 6, flags)
    return bytes(work)


def _overlapping() -> bytes:
    """Fifty names for one member."""
    one = zipped({"00.json": batch() + b"\n" + b" " * (1 << 20)})
    start = one.rindex(b"PK\x01\x02")
    entry = one[start : one.rindex(b"PK\x05\x06")]
    entries = b"".join(entry.replace(b"00.json", b"%02d.json" % i) for i in range(50))
    return one[:start] + entries + struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 50, 50, len(entries), start, 0)


# ---- tables ----


def csv(*rows: str) -> bytes:
    return "\n".join(["eps_id,t,obs,actions,rewards,terminateds,truncateds", *rows, ""]).encode("utf-8", "surrogatepass")


def json_rows(*rows: dict[str, Any]) -> bytes:
    plain = [
        {"eps_id": "e", "t": t, "obs": [0.0, 1.0], "actions": 0, "rewards": 1.0, "terminateds": t == 2, "truncateds": False}
        for t in range(3)
    ]
    changed = [{**step, **(rows[t] if t < len(rows) else {})} for t, step in enumerate(plain)]
    return b"\n".join(map(as_json, changed))


def tables() -> Files:
    good = ("e,0,0.5,1,1.0,False,False", "e,1,1.5,0,1.0,True,False")
    yield "good.csv", csv(*good)
    yield "not_utf8.csv", csv(*good).replace(b"e,1", b"\xff,1")
    yield "cell_of_2_mib.csv.gz", packed(csv(*good, "e,2," + "1" * (2 << 20) + ",0,1.0,True,False"))
    yield "unclosed_quote.csv", csv('e,0,"0.5,1,1.0,False,False', *good)
    yield "many_columns.csv.gz", packed(b",".join(b"column%d" % i for i in range(8_000)) + b"\n" + b"1," * 7_999 + b"1\n")
    yield "huge_integers.csv", csv("e,0,0.5," + "9" * 300 + ",1.0,True,False", "e,99999999999999999999,1,1,1,True,False")
    yield "bomb.csv.gz", packed(csv(*good) + b"\n" * (64 << 20))
    yield "good.jsonl", json_rows()
    yield "nested_deep.jsonl", json_rows()[:-1] + b', "infos": ' + b"[" * 50_000
    yield "half_a_letter.jsonl", json_rows({"eps_id": "\ud800", "rewards": float("nan")})
    yield "key_twice.jsonl", json_rows()[:-1] + b', "obs": [9.0, 9.0]}'
    yield "line_of_spaces.jsonl.gz", packed(json_rows() + b"\n{" + b" " * (40 << 20) + b"}")
    yield "utf16.jsonl", json_rows().decode().encode("utf-16")
    yield "cut.arrow", _arrow()[:-200]
    yield "lying.arrow", _arrow().replace(struct.pack("<q", 3), struct.pack("<q", 1 << 40))
    yield "unfolding.arrow", _arrow(zeros=1 << 20)
    yield "asking.arrow", _arrow(zeros=1000).replace(struct.pack("<q", 8000), struct.pack("<q", 33 << 30))


def _arrow(*, zeros: int = 0) -> bytes:
    """`zeros`: that many rows of the number zero, packed, in place of good rows."""
    made = io.BytesIO()
    names = ("eps_id", "t", "obs", "actions", "rewards", "terminateds")
    table = pa.table({name: np.zeros(zeros, np.int64) for name in names}) if zeros else pq.read_table(io.BytesIO(columns()))
    with pa.ipc.new_file(made, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd" if zeros else None)) as writer:
        writer.write_table(table)
    return made.getvalue()


# ---- datasets of ours ----

SHARD = "data/shard-0123abcd-000000.parquet"


def dataset(name: str, shard: bytes, **changes: Any) -> Files:
    """A folder with one shard and the manifest that says so; `changes` by dotted path, `None` removes."""
    import hashlib

    quantities = {"count": 1, "mean": 2.0, "std": 0.0, "min": 2.0, "max": 2.0}
    quantiles = {"quantiles": dict.fromkeys(("0", "1", "5", "25", "50", "75", "95", "99", "100"), 2.0)}
    document: dict[str, Any] = {
        "format": "episodes",
        "version": 1,
        "complete": True,
        "environment": None,
        "observation_space": {"type": "Box", "shape": [1], "dtype": "float32", "low": -1.0, "high": 1.0},
        "action_space": {"type": "Discrete", "n": 2, "start": 0, "dtype": "int64"},
        "spaces_inferred": False,
        "action_scale": "env",
        "compression": "zstd",
        "counts": {"episodes": 1, "steps": 2, "terminated": 1, "truncated": 0, "unfinished": 0},
        "shards": [
            {
                "path": SHARD,
                "episodes": 1,
                "rows": 1,
                "steps": 2,
                "bytes": len(shard),
                "sha256": hashlib.sha256(shard).hexdigest(),
            }
        ],
        "statistics": {"return": {**quantities, **quantiles}, "length": {**quantities, **quantiles}},
        "assumptions": {},
        "provenance": {"commands": [], "sources": []},
    }
    for path, value in changes.items():
        _set(document, path.split("__"), value)
    yield f"{name}/manifest.json", as_json(document)
    yield f"{name}/{SHARD}", shard


def _set(document: Any, path: list[str], value: Any) -> None:
    *parents, last = [int(part) if part.isdigit() else part for part in path]
    for part in parents:
        document = document[part]
    document[last] = value


def whole_shard(**changes: Any) -> bytes:
    plain = {
        "item": pa.array([msgpack.packb(state())], pa.binary()),
        "eps_id": pa.array(["e"]),
        "length": pa.array([2]),
        "return": pa.array([0.0]),
        "terminated": pa.array([True]),
        "truncated": pa.array([False]),
        **changes,
    }
    return parquet(plain, use_dictionary=False)


def datasets() -> Files:
    shard = whole_shard()
    yield from dataset("good", shard)
    for number, path in enumerate(
        (
            "../../etc/passwd",
            "data/../../../etc/passwd",
            "/etc/passwd",
            "s3://bucket/data/shard-0123abcd-000000.parquet",
        )
    ):
        yield from dataset(f"shard_path_{number}", shard, shards__0__path=path)
    yield from dataset("more_rows_than_there_are", shard, shards__0__rows=2, shards__0__episodes=2, counts__episodes=2)
    yield from dataset("another_hash", shard, shards__0__sha256="0" * 64)
    yield from dataset("counts_that_do_not_add_up", shard, counts__episodes=5)
    yield from dataset("counts_beyond_64_bits", shard, counts__steps=10**30, shards__0__steps=10**30)
    yield from dataset("length_column_that_lies", whole_shard(length=pa.array([1 << 40])))
    yield from dataset("other_space_than_the_items", shard, observation_space__shape=[5])
    yield from dataset("space_of_terabytes", shard, observation_space__shape=[1 << 40])
    yield from dataset("space_nested_90_deep", shard, action_space=_json_tuples(45))
    yield from dataset(
        "shard_listed_twice",
        shard,
        shards=[{"path": SHARD, "episodes": 1, "rows": 1, "steps": 1, "bytes": 1, "sha256": "0" * 64}] * 2,
    )
    yield from dataset("version_of_the_future", shard, version=99)
    yield from dataset("shard_that_is_no_parquet", b"hello")
    yield from dataset("item_with_a_pickle", whole_shard(item=pa.array([_pickled_item()], pa.binary())))
    parquet({"item": pa.array([bytes(1 << 20)] * 1000, pa.binary())})
    plain = dict(dataset("plain", shard))
    manifest = plain["plain/manifest.json"]
    for name, data in {
        "nested_20000_deep": b"[" * 20_000,
        "key_twice": manifest[:-1] + b', "shards": []}',
        "not_utf8": manifest.replace(b'"zstd"', b'"\xff"'),
        "nan": manifest.replace(b'"version": 1', b'"version": NaN'),
        "cut": manifest[:200],
    }.items():
        yield f"manifest_{name}/manifest.json", data
        yield f"manifest_{name}/{SHARD}", shard
    yield "note_deep/manifest.json", manifest
    yield "note_deep/_writing.json", b"[" * 20_000
    yield f"note_deep/{SHARD}", shard


def _json_tuples(depth: int) -> dict[str, Any]:
    return {"type": "Tuple", "spaces": [_json_tuples(depth - 1)]} if depth else {"type": "Discrete", "n": 2}


def _pickled_item() -> bytes:
    item: bytes = msgpack.packb(state(observations=buffer(node("|O", [3], pickle.dumps(Payload())))))
    return item


# ---- run folders ----


def tensors(header: bytes, data: bytes = b"") -> bytes:
    """A safetensors file that says this of itself."""
    return struct.pack("<Q", len(header)) + header + data


POLICY: dict[str, Any] = {
    "format": "offline-cli-policy",
    "version": 1,
    "observation_space": {"type": "Box", "shape": [1], "dtype": "float32", "low": -1.0, "high": 1.0},
    "action_space": {"type": "Discrete", "n": 2, "start": 0, "dtype": "int64"},
    "action_scale": "env",
    "network": {"name": "mlp", "hidden": [8], "activation": "tanh"},
    "environment": None,
}


def network(**options: Any) -> dict[str, Any]:
    """What differs in the description of a policy with these options of its network."""
    return {"network": {**POLICY["network"], **options}}


def run(name: str, policy: Any = None, weights: bytes = b"", config: bytes = b"updates = 1\n") -> Files:
    yield f"{name}/config.toml", config
    yield f"{name}/policy.json", policy if isinstance(policy, bytes) else as_json(POLICY | (policy or {}))
    yield f"{name}/policy.safetensors", weights or tensors(b"{}")


def runs() -> Files:
    yield from run("no_weights")
    yield from run("policy_nested_deep", b"[" * 20_000)
    yield from run("policy_of_a_pickle", network(activation={"__reduce__": "os.system"}))
    yield from run("policy_of_code", {**network(activation="python:os:system"), "environment": "python:os:system"})
    yield from run("weights_are_a_pickle", weights=pickle.dumps(Payload()))
    yield from run("weights_header_of_exbibytes", weights=struct.pack("<Q", 1 << 62) + b"{}")
    shape = b'{"a": {"dtype": "F32", "shape": [1099511627776, 4], "data_offsets": [0, 4]}}'
    yield from run("weights_of_a_huge_shape", weights=tensors(shape, bytes(4)))
    other = b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
    yield from run("weights_of_another_policy", weights=tensors(other, bytes(4)))
    for name, document in {
        "deep": b"[" * 20_000,
        "code": b'{"update": "python:os:system"}',
    }.items():
        yield from checkpointed(f"checkpoint_{name}", document)
    yield from checkpointed("checkpoint_of_a_pickle", as_json({"update": 1}), pickle.dumps(Payload()))
    yield from piped("pieces_of_code", {"pieces": [{"use": "os:system"}]})
    yield from piped("state_of_a_pickle", FILTER, pickle.dumps(Payload()))
    yield from piped("state_nested_deep", FILTER, b"\x81\xa1a" * 3000 + b"\xc0")
    for name, config in {"config_nested_deep": b"a = " + b"[" * 20_000, "config_not_utf8": b"\xff\xfe"}.items():
        yield f"{name}/config.toml", config
        yield f"{name}/policy.json", as_json(POLICY)  # what tells a run from any folder


FILTER = {"pieces": [{"name": "mean_std_filter"}]}


def _weights() -> bytes:
    """Of `CART_POLE`: zeros."""
    shapes = {
        "network.0.weight": [8, 4],
        "network.0.bias": [8],
        "network.2.weight": [2, 8],
        "network.2.bias": [2],
    }
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return tensors(as_json(header), bytes(end))


WEIGHTS = _weights()
CART_POLE = {"observation_space": {"type": "Box", "shape": [4], "dtype": "float32", "low": "-inf", "high": "inf"}}


def piped(name: str, document: Any, learned: bytes = b"\x80") -> Files:
    """A run with a policy that was trained through pieces, whose weights fit."""
    told = {"document": {"kind": "learner", **document}, "pieces": []}
    yield from run(name, {**CART_POLE, "pipeline": told}, WEIGHTS)
    yield f"{name}/connectors.msgpack", learned


def checkpointed(name: str, document: bytes, weights: bytes = b"") -> Files:
    yield f"{name}/config.toml", b"updates = 2\nbatch_size = 8\nhidden = [8]\n"
    header = as_json({"__metadata__": {"state": document.decode("utf-8", "replace")}})
    yield f"{name}/state.safetensors", weights or tensors(header)
    yield f"{name}/policy.json", as_json(POLICY)


GROUPS: dict[str, Callable[[], Files]] = {
    "recordings": recordings,
    "columns": rllib_columns,
    "lines": lines,
    "tables": tables,
    "datasets": datasets,
    "runs": runs,
}


HARMLESS = frozenset({"configs/good.toml", "configs/batch_of_terabytes.toml", "pipelines/good.toml"})
"""Cases that every command takes without a word: a batch, or a look ahead, beyond the data is as long as the data."""


def make(folder: Path) -> None:
    """Write the corpus below `folder`, but for mappings, configs and pipelines, which are written by hand."""
    for group, files in GROUPS.items():
        for name, data in files():
            path = folder / group / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "corpus")
