"""RLlib's default module rebuilt from arrays, without RLlib and without a pickle.

    FOLDER/module.json                             spaces, and the model config that differs from RLlib's
    FOLDER/module_state.msgpack, or .safetensors   arrays by RLlib's names

`export --to rllib` writes both. What a folder has by these names is checked like a run folder's: layers are made of the arrays
that are there, whose shapes must follow from each other and from the spaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from safetensors import SafetensorError
from safetensors.numpy import load
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.episodes.codec.arrays import unpack
from offline_cli.errors import BadConfig, BadData, UnsupportedSpace
from offline_cli.json_documents import from_json
from offline_cli.modules.encoders import ACTIVATIONS
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import Space, space_from_json
from offline_cli.storage.local_files import read_plain

__all__ = ["DESCRIPTION", "ArraysModule", "is_of_arrays", "module_of_arrays"]

DESCRIPTION: Final = "module.json"
STATES: Final = ("module_state.safetensors", "module_state.msgpack")
KEYS: Final = {"observation_space", "action_space", "model_config"}
ENCODERS: Final = ("encoder.encoder", "encoder.actor_encoder")  # shared with the value function, or not
FIX: Final = "export it again: offline-cli export RUN --to rllib --out FOLDER"
Arrays = Mapping[str, np.ndarray[Any, Any]]


def is_of_arrays(folder: Path) -> bool:
    """Whether the folder describes its module without a pickle."""
    return (folder / DESCRIPTION).is_file() and any((folder / name).is_file() for name in STATES)


def module_of_arrays(folder: Path, where: str) -> ArraysModule:
    """The module. Raises BadData, UnsafeData; BadConfig for options of RLlib's that have no form here."""
    try:
        told = from_json(read_plain(str(folder / DESCRIPTION), shown=where))
        if not isinstance(told, dict) or told.keys() < KEYS or not isinstance(told["model_config"], dict):
            raise ValueError(f"{DESCRIPTION} has not {', '.join(sorted(KEYS))}")
        observations, actions = (space_from_json(told[name], where=where) for name in ("observation_space", "action_space"))
        file = next(folder / name for name in STATES if (folder / name).is_file())
        content = read_plain(str(file), shown=str(file))
        state = load(content) if file.suffix == ".safetensors" else unpack(content, where=str(file))
        if not isinstance(state, dict) or not all(
            isinstance(one, np.ndarray) and one.dtype.kind == "f" for one in state.values()
        ):
            raise ValueError(f"{file.name} holds something else than arrays of floats by name")
        return ArraysModule(observations, actions, told["model_config"], state)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, SafetensorError, UnsupportedSpace) as err:
        if isinstance(err, BadData):
            raise
        raise BadData(f"a module that cannot be read: {err}", where=where, fix=FIX) from err


class ArraysModule(RLModule):
    """MLP, CNN or LSTM encoder and a policy head, as RLlib's catalog makes them."""

    def __init__(self, observations: Space, actions: Space, config: Mapping[str, Any], state: Arrays) -> None:
        """Raises KeyError, ValueError for arrays that are missing, or do not fit each other; BadConfig."""
        self._stateful = bool(config.get("use_lstm"))
        self._size = int(config.get("lstm_cell_size", 256))
        super().__init__(observations, actions, model_config={"max_seq_len": int(config.get("max_seq_len", 20))})
        if config.get("free_log_std") or any(config.get(f"{part}_use_layernorm") for part in ("fcnet", "head_fcnet")):
            what = "a free log standard deviation, or layer norm, in RLlib's model config"
            raise BadConfig(what, where="model_config", fix="--trust-pickle, with RLlib's own checkpoint")
        encoder = next((name for name in ENCODERS if any(key.startswith(f"{name}.") for key in state)), ENCODERS[0])
        active = str(config.get("fcnet_activation", "tanh"))
        self.convolutions = _convolutions(f"{encoder}.net.0.cnn", config, state)
        tokens = f"{encoder}.tokenizer.net.mlp" if self._stateful else f"{encoder}.net.mlp"
        self.tokens = nn.Identity() if self.convolutions else _mlp(tokens, active, state, ends=True)
        self.lstm = _lstm(f"{encoder}.lstm", self._size, state) if self._stateful else None
        self.pi = _mlp("pi.net.mlp", str(config.get("head_fcnet_activation", "relu")), state, ends=False)
        widest = float(state["pi.log_std_clip_param_const"][0]) if isinstance(actions, spaces.Box) else None
        self._widest = widest
        self.eval()
        self._check(observations)

    def _check(self, observations: Space) -> None:
        """Raise ValueError unless what comes in gives what the action head takes."""
        seen = torch.zeros(1, *([1] if self._stateful else []), *(observations.shape or ()))
        batch: dict[str, Any] = {Columns.OBS: seen}
        if self._stateful:
            batch[Columns.STATE_IN] = {name: part[None] for name, part in self.get_initial_state().items()}
        with torch.inference_mode():
            found = self._forward(batch)[Columns.ACTION_DIST_INPUTS]
        if found.shape[-1] != self.action_head.size:
            raise ValueError(f"{found.shape[-1]} outputs, where actions take {self.action_head.size}")

    def get_initial_state(self) -> dict[str, Any]:
        """See RLModule."""
        return {name: torch.zeros(1, self._size) for name in ("h", "c")} if self._stateful else {}

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        features = batch[Columns.OBS].float()
        if self.convolutions:
            features = self.convolutions(features.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).flatten(1)
        features, found = self.tokens(features), dict[str, Any]()
        if self.lstm is not None:
            h, c = (batch[Columns.STATE_IN][name].transpose(0, 1).contiguous() for name in ("h", "c"))
            features, (h, c) = self.lstm(features, (h, c))
            found[Columns.STATE_OUT] = {"h": h.transpose(0, 1), "c": c.transpose(0, 1)}
        outputs: Tensor = self.pi(features)
        if self._widest is not None:
            mean, log_std = outputs.chunk(2, -1)
            outputs = torch.cat([mean, log_std.clamp(-self._widest, self._widest)], -1)
        return {**found, Columns.ACTION_DIST_INPUTS: outputs}


def _tensor(name: str, state: Arrays) -> Tensor:
    return torch.from_numpy(np.array(state[name], np.float32))


def _numbers(prefix: str, state: Arrays) -> list[int]:
    """Of the layers with weights, in order."""
    parts = [key.removeprefix(f"{prefix}.").removesuffix(".weight") for key in state if key.startswith(f"{prefix}.")]
    return sorted(int(part) for part in parts if part.isascii() and part.isdigit())


def _mlp(prefix: str, activation: str, state: Arrays, *, ends: bool) -> nn.Sequential:
    """Linear layers with the activation between them; `ends`: after the last one too."""
    kind = ACTIVATIONS[activation.lower()]
    layers: list[nn.Module] = []
    for number in _numbers(prefix, state):
        weight, bias = (_tensor(f"{prefix}.{number}.{name}", state) for name in ("weight", "bias"))
        outward, inward = weight.shape
        layer = nn.Linear(inward, outward, device="meta").to_empty(device="cpu")
        layer.load_state_dict({"weight": weight, "bias": bias})
        layers += [layer, kind()]
    if not layers:
        raise ValueError(f"no layers {prefix}")
    return nn.Sequential(*(layers if ends else layers[:-1]))


def _convolutions(prefix: str, config: Mapping[str, Any], state: Arrays) -> nn.Sequential:
    """Without padding; an empty one where there are none. Raises BadConfig for padding."""
    filters = config.get("conv_filters") or []
    if any(len(one) != 4 or one[3] != "valid" for one in filters):
        fix = "--trust-pickle, with RLlib's own checkpoint"
        raise BadConfig("convolutions with padding", where="model_config", fix=fix)
    kind = ACTIVATIONS[str(config.get("conv_activation", "relu")).lower()]
    layers: list[nn.Module] = []
    for number, (_, _, stride, _) in zip(_numbers(prefix, state), filters, strict=True):
        weight, bias = (_tensor(f"{prefix}.{number}.{name}", state) for name in ("weight", "bias"))
        outward, inward, *size = weight.shape
        layer = nn.Conv2d(inward, outward, (size[0], size[1]), int(stride), device="meta").to_empty(device="cpu")
        layer.load_state_dict({"weight": weight, "bias": bias})
        layers += [layer, kind()]
    return nn.Sequential(*layers)


def _lstm(prefix: str, size: int, state: Arrays) -> nn.LSTM:
    own = {key.removeprefix(f"{prefix}."): _tensor(key, state) for key in state if key.startswith(f"{prefix}.")}
    inward = own["weight_ih_l0"].shape[1]
    if own["weight_hh_l0"].shape != (4 * size, size):
        raise ValueError(f"an LSTM of {tuple(own['weight_hh_l0'].shape)} for lstm_cell_size {size}")
    with torch.random.fork_rng(devices=[]):  # its fresh weights are drawn, and replaced
        made = nn.LSTM(inward, size, batch_first=True)
    made.load_state_dict(own)
    return made
