"""Policies made from neural networks: RLModules (of a `train-bc` run, for one) and models of stable-baselines3.

* `ModulePolicy`: an RLModule as a policy to record. It carries no state from step to step: modules with a state, or with pieces
  around them, need `piped_policy.py`. Extra model outputs follow RLlib: `action_dist_inputs`, and `action_logp`, which is 0 for
  greedy actions, because they are certain. Box actions are recorded as RLlib's are, with the scale `normalized`: the module's
  own outputs, which may lie beyond [-1, 1], before they are stretched to the bounds and clipped. Integer boxes are recorded as
  the environment takes them; their `action_logp` is of the action before it was rounded.
* `ModelPolicy`, `load_model`: models with `predict(observations, deterministic=...)`, above all those of stable-baselines3. Its
  files hold pickled Python objects, and loading one can run any code that its maker put in. One is loaded because the user
  named the file, and for no other reason: no dataset, manifest or run folder can bring one in.
* `ForwardPass`: a module's forward pass, which plays nothing; `block_rows` tries it with invented observations, and invented
  states where the module carries one, to find how many rows it may see at once.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import zipfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.connectors.common.batch_columns import NumpyToTensor
from offline_cli.connectors.pipeline_player import PolicyInput
from offline_cli.errors import BadConfig, BadData, MissingPackage
from offline_cli.modules.devices import seed_generators
from offline_cli.modules.distributions import ActionHead
from offline_cli.modules.drawing import chance_size, drawn_actions, straight_forward
from offline_cli.modules.rl_module import RLModule, initial_state
from offline_cli.policies.policy import Acted, rows_of
from offline_cli.policies.run_policy import ENVIRONMENTS, GIVEN_SPACE, LoadedPolicy
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.storage.local_files import not_found
from offline_cli.trees import Tree, flatten, leaves, map_leaves, unflatten_like

__all__ = ["ForwardPass", "ModelPolicy", "ModulePolicy", "fingerprint_of", "is_of_floats", "load_model"]

MAKERS: Final = {  # by the module of the policy's class: what loads and plays it; A2C's policies are PPO's, DDPG's are TD3's
    "stable_baselines3.common.policies": ("stable_baselines3", "PPO"),
    "stable_baselines3.ppo.policies": ("stable_baselines3", "PPO"),
    "stable_baselines3.a2c.policies": ("stable_baselines3", "A2C"),
    "stable_baselines3.dqn.policies": ("stable_baselines3", "DQN"),
    "stable_baselines3.sac.policies": ("stable_baselines3", "SAC"),
    "stable_baselines3.td3.policies": ("stable_baselines3", "TD3"),
}
SEED_BITS = 53  # of a uniform number
SMALL: Final = {"buffer_size": 1}  # a replay buffer of the size used in training takes gigabytes, and is not used here


class ForwardPass:
    """See Policy: all that the module puts out is in `extras`, and the actions are nothing."""

    fingerprint = ""
    action_scale = "env"
    chance_size = 0
    rows_alike = False
    shows_numbers = True

    def __init__(self, module: RLModule, observation_space: Space, *, explore: bool, device: torch.device) -> None:
        """`observation_space`: of the output of the env-to-module pipeline."""
        self._forward = module.forward_exploration if explore else module.forward_inference
        self._stateful = module.is_stateful()
        self._to_tensor, self._input = NumpyToTensor(device=device), PolicyInput(module)
        parts = {Columns.OBS: observation_space}
        if self._stateful:
            parts[Columns.STATE_IN] = _space_of(initial_state(module))
        self.observation_space: Space = spaces.Dict(parts)

    def act(self, observations: Tree, chance: NDArray[np.float64]) -> Acted:
        """See Policy. Observations: of `observation_space`, leaves (B, ...), the state in them."""
        batch: dict[str, Any] = dict(observations)
        if self._stateful:
            batch[Columns.OBS] = map_leaves(lambda leaf: leaf[:, None], batch[Columns.OBS])  # an axis of one step
        with torch.inference_mode():
            outputs = self._forward(self._input(self._to_tensor(batch=batch)))
        none = np.zeros(len(chance))
        return Acted(none, none, {name: map_leaves(lambda leaf: leaf.cpu().numpy(), tree) for name, tree in outputs.items()})


def _space_of(state: Tree) -> Space:
    """A space whose values look like the state."""
    if isinstance(state, dict):
        return spaces.Dict({name: _space_of(part) for name, part in state.items()})
    if isinstance(state, (tuple, list)):
        return spaces.Tuple([_space_of(part) for part in state])
    return spaces.Box(-np.inf, np.inf, state.shape, state.dtype)


class ModulePolicy:
    """An RLModule in evaluation mode."""

    rows_alike = False
    shows_numbers = True

    def __init__(self, module: RLModule, *, explore: bool, device: torch.device, fingerprint: str) -> None:
        """For environments with the module's own action space; see `play_in`."""
        assert not module.is_stateful(), "a module with a state is played through pipelines"
        self.fingerprint = fingerprint
        self._module = module.to(device).eval()
        self._head: ActionHead = module.action_head
        self._device, self._on_cpu, self._explore = device, device.type == "cpu", explore
        self._straight = straight_forward(self._module)
        self.chance_size = chance_size(self._head) if explore else 0
        self._certain = np.zeros(0, np.float32)
        self.play_in(module.action_space)

    def play_in(self, action_space: Space) -> None:
        """Play in an environment with this action space, which the policy fits, from now on."""
        self._head.play_in(action_space)
        self._raw = {path: np.dtype(leaf.dtype) for path, leaf in leaf_spaces(action_space).items() if is_of_floats(leaf)}
        self.action_scale = "normalized" if self._raw else "env"

    def act(self, observations: Tree, chance: NDArray[np.float64]) -> Acted:
        """See Policy."""
        if self._straight is not None:  # nothing in it keeps gradients
            return self._acted(self._straight(self._tensors(observations)), chance)
        with torch.inference_mode():
            forward = self._module.forward_exploration if self._explore else self._module.forward_inference
            return self._acted(forward({Columns.OBS: self._tensors(observations)})[Columns.ACTION_DIST_INPUTS], chance)

    def _acted(self, inputs: Tensor, chance: NDArray[np.float64]) -> Acted:
        return self._explored(inputs, chance) if self._explore else self._greedy(inputs)

    def _tensors(self, tree: Tree) -> Tree:
        if isinstance(tree, np.ndarray) and self._on_cpu:  # the usual case
            return torch.from_numpy(tree)
        return map_leaves(lambda leaf: torch.as_tensor(leaf, device=self._device), tree)

    def _greedy(self, inputs: Tensor) -> Acted:
        recorded, for_env = self._both(self._head.greedy(inputs))
        found = _array(inputs)
        if len(self._certain) != len(found):
            self._certain = np.zeros(len(found), np.float32)
        return Acted(recorded, for_env, {Columns.ACTION_DIST_INPUTS: found, Columns.ACTION_LOGP: self._certain})

    def _explored(self, inputs: Tensor, chance: NDArray[np.float64]) -> Acted:
        numbers = torch.as_tensor(chance, dtype=inputs.dtype, device=inputs.device)
        drawn = drawn_actions(self._head, inputs, numbers)
        logp = self._head.logp(inputs, drawn)
        return Acted(*self._both(drawn), {Columns.ACTION_DIST_INPUTS: _array(inputs), Columns.ACTION_LOGP: _array(logp)})

    def _both(self, actions: Tree) -> tuple[Tree, Tree]:
        """Actions as they are recorded, and as the environment takes them."""
        arrays = _array(actions) if isinstance(actions, Tensor) else map_leaves(_array, actions)
        for_env = self._head.for_env(arrays)
        if not self._raw:
            return for_env, for_env
        pairs = zip(flatten(arrays), leaves(for_env), strict=True)
        typed = [raw.astype(self._raw[path], copy=False) if path in self._raw else whole for (path, raw), whole in pairs]
        return unflatten_like(arrays, typed), for_env


def fingerprint_of(loaded: LoadedPolicy) -> str:
    """Of a run's policy: weights, and description with the pieces it was trained through and a hash of what they learned.

    What the description says of environments does not count: ids of recorded episodes follow from the fingerprint.
    """
    played = {name: value for name, value in loaded.description.items() if name not in (ENVIRONMENTS, GIVEN_SPACE)}
    digest = hashlib.sha256(json.dumps(played, sort_keys=True).encode())
    for name, tensor in sorted(loaded.module.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def _array(tensor: Tensor) -> NDArray[Any]:
    found: NDArray[Any] = (tensor.cpu() if tensor.is_cuda else tensor).numpy()
    return found


def is_of_floats(space: Space) -> bool:
    """Whether its actions have a scale: not so where they are whole numbers."""
    return isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f"


class ModelPolicy:
    """A model that predicts actions in the environment's units."""

    rows_alike = False
    shows_numbers = False
    action_scale = "env"

    def __init__(self, model: Any, action_space: Space, *, explore: bool, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._model, self._explore = model, explore
        self._dtypes = {path: np.dtype(leaf.dtype) for path, leaf in leaf_spaces(action_space).items()}
        self.chance_size = int(explore)

    def act(self, observations: Tree, chance: NDArray[np.float64]) -> Acted:
        """See Policy. With exploration a row at a time: the model draws from torch's generator, seeded for each row."""
        actions = self._drawn(observations, chance) if self._explore else self._predicted(observations)
        typed = [np.asarray(leaf).astype(self._dtypes[path], copy=False) for path, leaf in flatten(actions)]
        actions = unflatten_like(actions, typed)
        return Acted(actions, actions)

    def _predicted(self, observations: Tree) -> Tree:
        return self._model.predict(observations, deterministic=not self._explore)[0]

    def _drawn(self, observations: Tree, chance: NDArray[np.float64]) -> Tree:
        rows = []
        with torch.random.fork_rng():
            for row in range(len(chance)):
                seed_generators(int(chance[row, 0] * 2.0**SEED_BITS))
                rows.append(self._predicted(rows_of(observations, slice(row, row + 1))))
        return map_leaves(lambda *parts: np.concatenate(parts), *rows)


def load_model(file: str, *, device: str) -> tuple[Any, str]:
    """The model in a file that `model.save` of stable-baselines3 wrote, and its fingerprint.

    Runs what code is pickled in the file. Raises StorageNotFound, MissingPackage, BadConfig for algorithms that are not known,
    BadData for other files.
    """
    path = Path(file) if Path(file).is_file() else Path(f"{file}.zip")  # `save` adds the ending itself
    if not path.is_file():
        raise not_found(file, f"{file} does not exist", where=f"--policy sb3:{file}", fix="check the path")
    described = _described(path)
    module, name = _maker(described, path)
    try:
        maker = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as err:
        fix = "pip install 'offline-cli[sb3]'"
        raise MissingPackage(f"the package {err.name} is missing", where=f"--policy sb3:{file}", fix=fix) from err
    try:
        return maker.load(str(path), device=device, custom_objects=SMALL), hashlib.sha256(path.read_bytes()).hexdigest()
    except Exception as err:  # the file decides what runs here, and so what is raised
        fix = "save it again with the installed version of stable-baselines3"
        raise BadData(f"the model cannot be loaded: {err!r}", where=str(path), fix=fix) from err


def _described(path: Path) -> dict[str, Any]:
    fix = "name a file that model.save of stable-baselines3 wrote"
    try:
        with zipfile.ZipFile(path) as archive:
            described: dict[str, Any] = json.loads(archive.read("data"))
            return described
    except (zipfile.BadZipFile, KeyError, ValueError) as err:
        raise BadData(f"not a model of stable-baselines3: {err}", where=str(path), fix=fix) from err


def _maker(described: dict[str, Any], path: Path) -> tuple[str, str]:
    """Module and class that load it, by what the file says of its policy in plain JSON."""
    policy = described.get("policy_class")
    home = str(policy.get("__module__", "")) if isinstance(policy, dict) else ""
    if home not in MAKERS:
        what = f"a policy of {home or 'an unknown class'}, which is not one of {', '.join(sorted(MAKERS))}"
        raise BadConfig(what, where=str(path), fix="load it in Python, and name it with python:package.module:attribute")
    return MAKERS[home]


def is_transposed_image(model: Space, environment: Space) -> bool:
    """Whether the model saw the environment's images with channels first, as stable-baselines3 turns them by itself."""
    if not (isinstance(model, spaces.Box) and isinstance(environment, spaces.Box)) or len(environment.shape) != 3:
        return False
    height, width, channels = environment.shape
    return model.shape == (channels, height, width) and model.dtype == environment.dtype == np.uint8
