#!/bin/sh
# Offline RL from end to end, and the example of RLlib's documents: record 500 episodes of an expert, clone it, reach 450.
#
#     demo.sh [FOLDER]        (default: out/demo; needs offline-cli[sb3]; `make demo` installs and runs it)
#
# Every step is one command. What it prints under --json is kept in FOLDER/STEP.json, and the table at the end is made of that.
# A step that fails, or a gate that is not met (`--expect`, `--until-return`, `--min-return`), ends the script with its exit code.
set -eu
export LC_ALL=C # numbers with a point
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-out/demo}
mkdir -p "$out"
rm -rf "$out/recording" "$out/columns" "$out/from-rllib" "$out/run"

echo "1. record: the expert plays 500 episodes, 64 at a time"
offline-cli record CartPole-v1 --policy "sb3:$here/experts/cartpole.zip" --episodes 500 --num-envs 64 \
    --out "$out/recording" --json > "$out/record.json"

echo "2. inspect, validate: the recording holds what was asked for, and nothing is wrong with it"
offline-cli inspect "$out/recording" --expect episodes=500 --json > "$out/inspect.json"
offline-cli validate "$out/recording" --deep --json > "$out/validate.json"

echo "3. convert: to a row per step, for any Parquet tool; and a recording by RLlib itself, the same way"
offline-cli convert "$out/recording" --to columns --out "$out/columns" --json > "$out/convert.json"
offline-cli convert "$here/rllib_cartpole_expert" --env CartPole-v1 --out "$out/from-rllib" --json > "$out/from-rllib.json"

echo "4. train-bc: clone the expert until 100 fresh episodes confirm a return of 450"
offline-cli train-bc "$out/columns" --env CartPole-v1 --until-return 450 --out "$out/run" --json > "$out/train-bc.json"

echo "5. evaluate: the clone plays 100 other episodes; the gate is a mean return of 450"
offline-cli evaluate "$out/run" --env CartPole-v1 --episodes 100 --min-return 450 --json > "$out/evaluate.json"

value() { # FORMAT STEP KEY: a number that the step told
    printf "$1" "$(sed -n "s/.*\"$3\": \([-0-9.e+]*\).*/\1/p" "$out/$2.json")"
}
row() { printf '%-10s %10s %10s %10s\n' "$@"; }
echo
row "" episodes return seconds
row recorded "$(value %.0f record episodes)" "$(value %.1f record return_mean)" "$(value %.1f record seconds)"
row converted "$(value %.0f convert episodes)" "" "$(value %.1f convert seconds)"
row trained "$(value %.0f train-bc episodes)" "$(value %.1f train-bc eval_return_mean)" "$(value %.1f train-bc seconds)"
row evaluated "$(value %.0f evaluate episodes)" "$(value %.1f evaluate return_mean)" ""
echo
echo "learning curve: $out/run/curve.png"
echo
echo "What next, after \`source .venv/bin/activate\`:"
echo "  offline-cli evaluate $out/run --env CartPole-v1    plays the clone again"
echo "  offline-cli inspect $out/recording --head 5        shows the expert's episodes"
echo "  docs/tutorial.md                                   leads from a log of your own to a policy"
