"""Where the work on data of one command runs: in this process, in worker processes of this machine, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from offline_cli.engines.processes import ProcessEngine
from offline_cli.engines.ray_engine import RayEngine
from offline_cli.engines.window import Engine
from offline_cli.errors import UsageError

__all__ = ["PROCESSES", "Engine", "EngineSpec"]

LOCAL: Final = "local"
PROCESSES: Final = "processes"
RAY: Final = "ray"


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine as a caller names it; nothing is started for it."""

    name: str = LOCAL
    workers: int = 1
    address: str | None = None  # of a Ray cluster; None: one is started on this machine

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> EngineSpec:
        """From the options `engine`, `engine_address` and `workers`.

        Raises UsageError for an address that no engine takes, MissingPackage without Ray.
        """
        spec = cls(options["engine"], options["workers"], options["engine_address"])
        if spec.address is not None and spec.name != RAY:
            fix = f"add --engine {RAY}, or leave out --engine-address"
            raise UsageError(f"--engine {spec.name} has no address", where="--engine-address", fix=fix)
        spec.engine()  # raises now what it would raise after reading has begun
        return spec

    def engine(self) -> Engine:
        """The engine, to be entered. Raises UsageError for an address of Ray Client, MissingPackage."""
        if self.name == RAY:
            return RayEngine(self.address, self.workers)
        return ProcessEngine(self.workers) if self.name == PROCESSES else Engine()
