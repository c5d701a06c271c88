#!/bin/sh
# The main job on embedded data: RLlib's own recording -> our dataset -> a cloned policy -> 100 episodes played with it.
# Usage: demo.sh [FOLDER]   (FOLDER is made anew; the results stay there)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-out/demo}
rm -rf "$out" && mkdir -p "$out"
echo "1. convert: a recording by RLlib to a dataset of episodes"
offline-cli convert "$here/rllib_cartpole_expert" --env CartPole-v1 --out "$out/dataset"
echo "2. train-bc: clone the expert until 100 fresh episodes confirm a return of 450"
offline-cli train-bc "$out/dataset" --env CartPole-v1 --until-return 450 --out "$out/run"
echo "3. evaluate: play the cloned policy in 100 other episodes; the gate is a mean return of 450"
offline-cli evaluate "$out/run" --env CartPole-v1 --episodes 100 --min-return 450
echo "learning curve: $out/run/curve.png"
