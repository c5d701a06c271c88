"""How fast do RLlib's packed columns become packed episodes? Rival: the script of RLlib's page, in process, row by row."""

from __future__ import annotations

from collections import defaultdict

import pyarrow.parquet as pq

from benchmarks.harness import Row, paired
from benchmarks.recordings import recording
from offline_cli.converting.reading import read_episodes
from offline_cli.episodes.codec.batches import encode_batch
from offline_cli.tally import Tally

FILES = 40  # of the recording's 400: the rival takes seconds for them


def rows() -> list[Row]:
    source = recording("rllib_columns_cartpole_expert")
    if source is None:
        return []
    files = sorted(map(str, source.rglob("*.parquet")))[:FILES]
    count = sum(pq.read_metadata(file).num_rows for file in files)

    def ours() -> int:
        return sum(len(encode_batch(batch, where="benchmark", tally=Tally())) for batch in read_episodes(files))

    return [
        paired(
            f"packed columns to packed episodes, {count} rows in {FILES} files",
            amount=count,
            unit="rows/s",
            ours=ours,
            rival=lambda: documented_script(files),
            rival_name="RLlib's documented script, in process",
            floor="opening the files",
            pairs=3,
        )
    ]


def documented_script(files: list[str]) -> int:
    """What the page "Working with offline data" shows, fed from the same files without Ray Data."""
    import msgpack
    import msgpack_numpy
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.utils.compression import unpack

    packed, obs, actions, rewards, extra = [], [], [], [], defaultdict(list)
    for file in files:
        for row in pq.read_table(file).to_pylist():
            obs.append(unpack(row["obs"]))
            actions.append(row["actions"])
            rewards.append(row["rewards"])
            for name in ("action_dist_inputs", "action_logp"):
                extra[name].append(row[name])
            if row["terminateds"] or row["truncateds"]:
                obs.append(unpack(row["new_obs"]))
                episode = SingleAgentEpisode(
                    id_=row["eps_id"],
                    observations=obs,
                    actions=actions,
                    rewards=rewards,
                    terminated=row["terminateds"],
                    truncated=row["truncateds"],
                    extra_model_outputs=extra,
                    len_lookback_buffer=0,
                )
                packed.append(msgpack.packb(episode.get_state(), default=msgpack_numpy.encode))
                obs, actions, rewards, extra = [], [], [], defaultdict(list)
    return len(packed)
