"""Make sample_data/rllib_cartpole_expert again: some files of a recording by RLlib, unchanged; refuses to alter bytes.

    python sample_data/copy_recording.py [RECORDING]

RECORDING is a folder that RLlib 2.60's OfflineSingleAgentEnvRunner wrote with output_write_episodes=True: a PPO expert on
CartPole-v1, one episode per Parquet file. The first 20 files in sorted order are taken.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
EPISODES = 20


def main(recording: Path, target: Path = HERE / "rllib_cartpole_expert") -> None:
    files = sorted(recording.rglob("*.parquet"))[:EPISODES]
    if len(files) < EPISODES:
        sys.exit(f"error: {len(files)} Parquet files in {recording}, {EPISODES} wanted")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for number, file in enumerate(files):
        shutil.copyfile(file, target / f"{number:06}.parquet")
    print(f"{target}: {len(files)} files, {sum(f.stat().st_size for f in target.iterdir())} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parents[1] / "shared/real_data/rllib_episodes_cartpole_expert")
