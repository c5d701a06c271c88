"""`python -m benchmarks.frozen write|check FILE`: hashes of what no change of structure may change, kept and compared.

* `data/` of every recording, converted to both formats;
* the train batches of the learner pipelines below (those that tests compare with RLlib's, and more);
* every loss, and the weights, of seeded runs of behaviour cloning: in memory, streaming, Box, nested, through pieces, resumed;
* episodes recorded in every way of stepping, with and without pieces, and what `evaluate` says of the same policies.

Equal on one machine only: the last digits of a network's results differ between processors. Recordings that are not on this
machine are left out, and said to be.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from safetensors.numpy import load_file

from benchmarks.harness import Missing
from benchmarks.recordings import REPOSITORY, recording
from offline_cli import apply, convert, evaluate, record, train_bc
from offline_cli.errors import OfflineCliError

__all__ = ["frozen", "main"]

RECORDINGS: Final = (
    "rllib_columns_cartpole_expert",
    "rllib_columns_cartpole_plain",
    "rllib_columns_dict_flattened",
    "rllib_columns_pendulum_plain",
    "rllib_episodes_cartpole_expert",
    "rllib_episodes_cartpole_lstm",
    "rllib_episodes_dict_flattened",
    "rllib_episodes_frozenlake",
    "rllib_episodes_pendulum",
    "sample_batch_cartpole_lz4",
    "sample_batch_cartpole_plain",
    "sample_batch_pendulum_lz4",
    "sample_batch_pendulum_trunc",
    "minari/cartpole/heuristic-v0",
    "minari/cartpole/heuristic-arrow-v0",
    "minari/pendulum/random-v0",
)
PIPELINES: Final = {
    "default": "",
    "stack": '[[pieces]]\nname = "frame_stacking"\nnum_frames = 4\n',
    "filter": '[[pieces]]\nname = "mean_std_filter"\n',
    "returns": '[[pieces]]\nname = "compute_returns_to_go"\ngamma = 0.99\n[[pieces]]\n'
    'name = "add_next_observations_from_episodes_to_train_batch"\n',
}
APPLIED_TO: Final = ("rllib_episodes_cartpole_expert", "rllib_episodes_pendulum", "rllib_episodes_dict_flattened")
NEWER = frozenset({"run", "policy", "seconds", "env_kwargs", "wrappers", "observations_not_finite", "pieces"})
"""What an evaluation reports besides figures: places, times, and keys that came later."""
EXPERT: Final = "sb3:" + str(REPOSITORY / "sample_data" / "experts" / "cartpole.zip")
STACKED: Final = 'kind = "env_to_module"\ndefaults = true\n[[pieces]]\nname = "mean_std_filter"\n'


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _folder(data: Path) -> dict[str, str]:
    """The hash of each file, by name."""
    return {path.name: _sha(path.read_bytes()) for path in sorted(data.iterdir())}


def _tensors(file: Path) -> str:
    """Of names and numbers, not of the file's head."""
    digest = hashlib.sha256()
    for name, array in sorted(load_file(file).items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _losses(run: Path) -> list[Any]:
    """Every row of metrics without what depends on the clock."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in row.items() if "second" not in name} for row in rows]


def _datasets(temp: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in RECORDINGS:
        for to in ("episodes", "columns"):
            out = temp / "datasets" / name / to
            found[f"{name}, {to}"] = _told(_converted, name, out, to)
    return found


def _converted(name: str, out: Path, to: Literal["episodes", "columns"]) -> dict[str, Any]:
    told = convert(str(recording(name)), str(out), to=to, on_error="skip").as_dict()
    kept = ("episodes", "steps", "rows_in", "duplicates_dropped", "fragments_stitched", "assumptions", "action_scale")
    return {"files": _folder(out / "data"), **{key: told[key] for key in kept}}


def _told(call: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """What it gives, or how it fails."""
    try:
        return call(*given, **options)
    except Missing as err:
        return f"missing: {err}"
    except OfflineCliError as err:
        return f"{type(err).__name__}: {err.what}"


def _batches(temp: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in APPLIED_TO:
        for pipeline, text in PIPELINES.items():
            file = temp / f"{pipeline}.toml"
            file.write_text(f'kind = "learner"\ndefaults = true\n{text}', encoding="utf-8")
            source, out = _converted_to(temp, name), temp / "batches" / name / pipeline
            found[f"{name}, {pipeline}"] = _told(_applied, source, file, out)
    return found


def _converted_to(temp: Path, name: str) -> str:
    return str(temp / "datasets" / name / "episodes")


def _applied(source: str, pipeline: Path, out: Path) -> dict[str, Any]:
    apply(source, str(out), pipeline=str(pipeline), format="safetensors", action_scale="normalized")  # as RLlib records
    return {path.name: _tensors(path) for path in sorted(out.rglob("*.safetensors"))}


def _runs(temp: Path) -> dict[str, Any]:
    stack = temp / "train.toml"
    stack.write_text(f'kind = "learner"\ndefaults = true\n{PIPELINES["filter"]}{PIPELINES["stack"]}', encoding="utf-8")
    small: dict[str, Any] = {"seed": 7, "device": "cpu", "batch_size": 256, "updates": 300, "val_fraction": 0.2}
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "cartpole": ("rllib_episodes_cartpole_expert", {"env": "CartPole-v1", "eval_every": 150, "eval_episodes": 4}),
        "pendulum": ("rllib_episodes_pendulum", {"action_scale": "normalized"}),
        "nested": ("rllib_episodes_dict_flattened", {}),
        "streaming": ("rllib_episodes_cartpole_expert", {"streaming": True, "memory_limit": "1GiB"}),
        "pieces": ("rllib_episodes_cartpole_expert", {"pipeline": str(stack), "env": "CartPole-v1", "eval_episodes": 3}),
        "choices": ("rllib_episodes_frozenlake", {"epochs": 3, "updates": None}),
    }
    return {key: _told(_trained, temp, key, name, small | more) for key, (name, more) in asked.items()}


def _trained(temp: Path, key: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    run, source = temp / "runs" / key, _converted_to(temp, name)
    train_bc(source, str(run), **options)
    first = {"metrics": _losses(run), "weights": _tensors(run / "policy.safetensors")}
    if options["updates"] is None:
        return first
    more = {**options, "updates": 400, "resume": True}
    train_bc(source, str(run), **more)
    return first | {"resumed": _losses(run), "resumed_weights": _tensors(run / "policy.safetensors")}


def _plays(temp: Path) -> dict[str, Any]:
    filtered = temp / "play.toml"
    filtered.write_text(STACKED, encoding="utf-8")
    cart, run, piped = "CartPole-v1", str(temp / "runs" / "cartpole"), str(temp / "runs" / "pieces")
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "random, own class": (cart, {"policy": "random", "num_envs": 8}),
        "run, sync": (cart, {"policy": run, "vectorize": "sync", "num_envs": 4, "explore": True}),
        "run, own class": (cart, {"policy": run, "num_envs": 8, "explore": True}),
        "run, processes": (cart, {"policy": run, "vectorize": "sync", "num_env_runners": 2, "num_envs": 3}),
        "run, async": (cart, {"policy": run, "vectorize": "async", "num_envs": 2}),
        "run, env-to-module": (cart, {"policy": run, "vectorize": "sync", "num_envs": 4, "env_to_module": str(filtered)}),
        "pieces, sync": (cart, {"policy": piped, "vectorize": "sync", "num_envs": 4, "explore": True}),
        "expert": (cart, {"policy": EXPERT, "vectorize": "sync"}),
        "pendulum": ("Pendulum-v1", {"policy": str(temp / "runs" / "pendulum"), "explore": True, "num_envs": 3}),
    }
    found = {f"record {k}": _told(_recorded, temp, k, env, more) for k, (env, more) in asked.items()}
    for name, env in (("cartpole", cart), ("pieces", cart), ("pendulum", "Pendulum-v1")):
        for explore in (False, True):
            key = f"evaluate {name}{', explore' if explore else ''}"
            found[key] = _told(_evaluated, temp, name, env, explore=explore)
    return found


def _recorded(temp: Path, key: str, env: str, options: Mapping[str, Any]) -> dict[str, Any]:
    out = temp / "recorded" / key.replace(" ", "-")
    told = record(env, str(out), episodes=12, seed=5, **options).as_dict()
    return {"files": _folder(out / "data"), "steps": told["steps"], "return_mean": told["return_mean"]}


def _evaluated(temp: Path, name: str, env: str, *, explore: bool) -> dict[str, Any]:
    told = evaluate(str(temp / "runs" / name), env=env, episodes=20, seed=3, explore=explore).as_dict()
    return {key: value for key, value in told.items() if key not in NEWER}


def frozen() -> dict[str, dict[str, Any]]:
    """Everything, by kind and name."""
    with tempfile.TemporaryDirectory() as folder:
        temp = Path(folder)
        found: dict[str, dict[str, Any]] = {}
        for kind, of in (("datasets", _datasets), ("batches", _batches), ("runs", _runs), ("plays", _plays)):
            print(f"{kind} ...", file=sys.stderr, flush=True)
            found[kind] = of(temp)
    plain: dict[str, dict[str, Any]] = json.loads(json.dumps(found))
    return plain


def main(arguments: list[str]) -> int:
    """0: written, or equal; 1: something differs, and is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frozen", description=__doc__)
    parser.add_argument("do", choices=["write", "check"])
    parser.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    now = frozen()
    if options.do == "write":
        options.file.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    before = json.loads(options.file.read_text(encoding="utf-8"))
    names = [(kind, name) for kind in before for name in before[kind]]
    differing = [(kind, name) for kind, name in names if now[kind].get(name) != before[kind][name]]
    for kind, name in differing:
        print(f"{kind}, {name}: differs")
    print(f"{len(names) - len(differing)} of {len(names)} equal")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
