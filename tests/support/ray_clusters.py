"""Ray clusters of several nodes on this machine, whose workers and nodes tests kill."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class LocalCluster:
    """A head without processors, and nodes with one each."""

    def __init__(self, nodes: int) -> None:
        from ray.cluster_utils import Cluster

        self.cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.nodes = [self.cluster.add_node(num_cpus=1) for _ in range(nodes)]
        self.agents: set[int] = set()  # of nodes that were killed

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def kill_worker(self, chance: random.Random) -> bool:
        """Kill one that is at work; False: none is."""
        found = self.workers()
        if found:
            os.kill(chance.choice(found), signal.SIGKILL)
        return bool(found)

    def workers(self) -> list[int]:
        """The processes of its workers that are at work; other tests' clusters may run beside it."""
        nodes = (self.cluster.head_node, *self.nodes)
        mine = set().union(*map(agents_of, nodes))
        return [pid for pid, title in titles() if pid in mine and title.startswith(b"ray::_task")]

    def kill_node(self, chance: random.Random) -> None:
        """Kill one, with its workers and objects, and start another."""
        node = self.nodes.pop(chance.randrange(len(self.nodes)))
        self.agents |= agents_of(node)
        self.cluster.remove_node(node, allow_graceful=False)
        self.nodes.append(self.cluster.add_node(num_cpus=1))


@contextmanager
def local_cluster(nodes: int) -> Iterator[LocalCluster]:
    before = ray_processes()
    cluster = LocalCluster(nodes)
    try:
        yield cluster
    finally:
        mine = {pid for node in (cluster.cluster.head_node, *cluster.nodes) for pid in agents_of(node)} | cluster.agents
        cluster.cluster.shutdown()
        for pid in gone(mine - before, 3):  # agents of nodes that were killed outlive them
            os.kill(pid, signal.SIGKILL)


def agents_of(node: Any) -> set[int]:
    """The processes that a node's raylet has started, as far as it still runs."""
    raylets = {process.process.pid for process in node.all_processes.get("raylet", ())}
    return {pid for pid in ray_processes() if parent_of(pid) in raylets}


def parent_of(pid: int) -> int:
    """0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0


def ray_processes() -> set[int]:
    """Everything of Ray that runs on this machine, as far as it is a process of its own."""
    words = (b"raylet", b"gcs_server", b"ray::", b"default_worker.py")
    return {pid for pid, title in titles() if any(word in title for word in words)}


def titles() -> Iterator[tuple[int, bytes]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                yield int(folder.name), (folder / "cmdline").read_bytes()
            except OSError:
                continue


def gone(processes: set[int], seconds: float) -> set[int]:
    """Which of them still run after so many seconds, or as soon as none does."""
    until = time.monotonic() + seconds
    while (left := processes & ray_processes()) and time.monotonic() < until:
        time.sleep(0.1)
    return left
