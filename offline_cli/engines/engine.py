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

PROCESSES: Final = "processes"


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine as a caller names it; nothing is started for it."""

    name: str = "local"
    workers: int = 1
    address: str | None = None  # of a Ray cluster; None: one is started on this machine

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> EngineSpec:
        """From the options `engine`, `engine_address` and `workers`; raises now what `engine` raises."""
        spec = cls(options["engine"], options["workers"], options["engine_address"])
        spec.engine()
        return spec

    def engine(self) -> Engine:
        """The engine, to be entered. Raises UsageError for an address that it does not take, MissingPackage without Ray."""
        if self.name == "ray":
            return RayEngine(self.address, self.workers)
        if self.address is not None:
            fix = "add --engine ray, or leave out --engine-address"
            raise UsageError(f"--engine {self.name} has no address", where="--engine-address", fix=fix)
        return ProcessEngine(self.workers) if self.name == PROCESSES else Engine()
