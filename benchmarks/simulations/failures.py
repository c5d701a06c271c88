"""`python -m benchmarks.simulations.failures`: what failing nodes cost a conversion by shards, and training by checkpoints.

Nodes fail at random, one as likely at any moment as at another. A conversion loses the shard that the node had in hand, which
another one makes again. Training is one step of all nodes: a failure ends it, and it goes on from the last checkpoint.

The rate is that of Grattafiori et al. 2024, "The Llama 3 Herd of Models", 3.3.4: 419 unexpected interruptions in 54 days on
16,384 GPUs, 8 a node: a node fails once in 264 days.
"""

from __future__ import annotations

import argparse
import heapq
import json
from typing import Any, Final

import numpy as np

__all__ = ["NODE_DAYS", "conversion", "main", "training"]

NODE_DAYS: Final = 54 * (16_384 / 8) / 419  # between two failures of a node
DAY: Final = 86_400.0


def conversion(nodes: int, shards: int, seconds: float, *, node_days: float = NODE_DAYS, seed: int = 0) -> dict[str, float]:
    """A job of `shards`, each `seconds` on one of `nodes`; a node that fails is back after ten minutes.

    Gives failures, the share of all work that was lost, and how much longer the job took than without failures.
    """
    chance, away = np.random.default_rng(seed), 600.0
    free = [(0.0, node) for node in range(nodes)]
    fails = chance.exponential(node_days * DAY, nodes)
    left, failures, lost, end = shards, 0, 0.0, 0.0
    while left:
        now, node = heapq.heappop(free)
        done = now + seconds
        if fails[node] < done:
            failures, lost = failures + 1, lost + max(0.0, fails[node] - now)
            back = max(now, fails[node]) + away
            fails[node] = back + chance.exponential(node_days * DAY)
            heapq.heappush(free, (back, node))
            continue
        left, end = left - 1, max(end, done)
        heapq.heappush(free, (done, node))
    ideal = -(-shards // nodes) * seconds
    return {"failures": failures, "lost_share": lost / (shards * seconds), "longer": end / ideal - 1, "hours": end / 3600}


def training(
    nodes: int, days: float, checkpoint: float, restart: float, *, node_days: float = NODE_DAYS, seed: int = 0
) -> dict[str, float]:
    """`days` of updates of all `nodes`, saved every `checkpoint` seconds, with `restart` seconds after a failure.

    Gives failures a day, and the share of the time that made updates which stayed.
    """
    chance, rate = np.random.default_rng(seed), nodes / (node_days * DAY)
    wanted, kept, clock, failures = days * DAY, 0.0, 0.0, 0
    while kept < wanted:
        until = chance.exponential(1 / rate)
        if kept + until >= wanted:
            clock, kept = clock + wanted - kept, wanted
            break
        kept += until // checkpoint * checkpoint
        clock, failures = clock + until + restart, failures + 1
    return {"failures_a_day": failures / (clock / DAY), "kept_share": wanted / clock}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Print what docs/scaling.md has, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--shards", type=int, default=372_530)
    parser.add_argument("--seconds-per-shard", type=float, default=60.0)
    given = parser.parse_args(argv)
    found: dict[str, Any] = {"nodes": given.nodes, "node_days": NODE_DAYS}
    found["conversion"] = conversion(given.nodes, given.shards, given.seconds_per_shard)
    found["training"] = {
        f"checkpoint {checkpoint} s, restart {restart} s": training(given.nodes, 30, checkpoint, restart)
        for checkpoint in (60, 600, 3600)
        for restart in (60, 600)
    }
    print(json.dumps(found))
    return found


if __name__ == "__main__":
    main()
