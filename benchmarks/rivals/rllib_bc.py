"""RLlib: behaviour cloning on recorded episodes as the page "Working with offline data" sets it up, until it plays well.

A program of its own, not a server: what counts is its time from start to end. It gives up after `limit` seconds.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version

from ray.rllib.algorithms.bc import BCConfig

START = time.perf_counter()


def main(source: str, wanted: float, limit: float) -> None:
    config = (
        BCConfig()
        .environment("CartPole-v1")
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=1024)
        .offline_data(
            input_=[source],
            input_read_episodes=True,
            input_read_batch_size=512,
            map_batches_kwargs={"concurrency": 2, "num_cpus": 1},
            iter_batches_kwargs={"prefetch_batches": 2, "local_shuffle_buffer_size": None},
            dataset_num_iters_per_learner=1,
        )
        .evaluation(
            evaluation_interval=3,
            evaluation_num_env_runners=1,
            evaluation_duration=5,
            evaluation_parallel_to_training=True,
        )
    )
    algorithm = config.build_algo()
    iteration, reached = 0, float("-inf")
    while reached < wanted and time.perf_counter() - START < limit:
        iteration += 1
        played = algorithm.train().get("evaluation", {}).get("env_runners", {})
        reached = played.get("episode_return_mean", float("-inf"))
    algorithm.stop()
    print(json.dumps({"reached": reached >= wanted, "iterations": iteration, "versions": f"ray {version('ray')}"}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
