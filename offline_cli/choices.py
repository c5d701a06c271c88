"""Choices, defaults and limits shared by commands and library functions; parsing of sizes in bytes (`256MiB`, `1.5GB`)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from annotated_types import Ge, Gt, Le, Lt

from offline_cli.errors import UsageError

ActionScale = Literal["env", "normalized"]
Activation = Literal["relu", "tanh", "silu", "gelu", "linear"]
BatchFormat = Literal["columns", "safetensors"]
Behaviour = Literal["recorded", "fit", "uniform"]
Compression = Literal["zstd", "snappy", "gzip", "brotli", "lz4", "none"]
Device = Literal["auto", "cpu", "cuda"]
EngineName = Literal["local", "processes", "ray"]
EpisodeEnds = Literal["flags", "t", "chain"]
Estimator = Literal["is", "wis", "pdis", "wpdis", "dm", "dr", "wdr"]
ExportFormat = Literal["onnx", "rllib"]
Extras = Literal["union", "common", "drop"]
OnBadRow = Literal["fail", "skip", "quarantine"]
Infos = Literal["plain", "all", "none"]
Precision = Literal["auto", "fp32", "bf16"]
RowFormat = Literal["episodes", "columns"]
Schedule = Literal["constant", "linear", "cosine"]
Tracker = Literal["tensorboard", "wandb", "mlflow", "trackio"]
Vectorize = Literal["sync", "async"]

Count = Annotated[int, Ge(1)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
OpenShare = Annotated[float, Gt(0), Lt(1)]
DropShare = Annotated[float, Ge(0), Lt(1)]
Whole = Annotated[int, Ge(0)]
Share = Annotated[float, Gt(0), Le(1)]

ACTIVATION: Final = "relu"
COMPRESSION: Final = "zstd"
EXTRAS: Final = "union"
HIDDEN: Final = (256, 256)  # hidden layer widths of the network mlp
MAX_BYTES_PER_FILE: Final = 128 << 20  # of a shard, before compression
TABLE_MEMORY_LIMIT: Final = "1GiB"  # for tables, and for one episode
ROW_FORMAT: Final = "episodes"
SOURCE_FORMAT: Final = "auto"
STEPS_PER_BATCH: Final = 1 << 16
WORKERS: Final = 4  # files read in parallel

ENV_FORMS: Final = "a gymnasium id, module:EnvId or python:package.module:make_env"


def byte_size(size: int | str, *, option: str, minimum: int = 0) -> int:
    """Parse `256MiB`, `1.5GB`, `1g` or a plain number as bytes. Raises UsageError if it is no size, or less than `minimum`."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        count = int(TypeAdapter(ByteSize).validate_python(size))
    except ValidationError:
        count = -1
    if count < minimum:
        raise UsageError(f"{size!r} is no size, or too small", where=option, fix="write a number and a unit: 256MiB, 1GiB")
    return count
