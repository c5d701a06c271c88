"""Writes a policy as a checkpoint of the RLModule that RLlib's PPO has by default, without RLlib.

    F/class_and_ctor_args.pkl   the class by name, spaces and model config: a pickle, as RLlib reads nothing else there
    F/module_state.msgpack      arrays by RLlib's names
    F/metadata.json             written last

Layers are renamed, and stay as they are but for images: RLlib's convolutions neither scale bytes nor flatten in our order, so
that the first convolution's weights take up the scale, and the columns of the layer after the last one are reordered. A network
that has no such form is BadConfig, with every reason. The value function is new: it gives 0 everywhere.

Pieces are no part of an RLModule. One that learned something cannot be exported; others are named, to be put before the module.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

import offline_cli
from offline_cli.connectors.common.flattening import FlattenObservations
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.episodes.codec.arrays import pack
from offline_cli.errors import BadConfig
from offline_cli.exporting.model_card import Exported
from offline_cli.modules.distributions.gaussian import GaussianForm
from offline_cli.modules.encoders import ImageEncoder
from offline_cli.modules.images import AS_ONE_READS, HWC
from offline_cli.modules.policy_modules import FeedForwardPolicy, LSTMPolicy
from offline_cli.modules.rl_module import RLModule
from offline_cli.policies.run_policy import LoadedPolicy
from offline_cli.spaces import Space, describe, space_from_json, space_to_json

__all__ = ["METADATA", "rllib_export"]

METADATA: Final = "metadata.json"
LAYOUT: Final = {  # of RLlib 2.60, which 2.41 and later read
    "class_and_ctor_args_file": "class_and_ctor_args.pkl",
    "state_file": "module_state",
    "ray_version": "2.60.0",
    "ray_commit": "",
    "checkpoint_version": "2.1",
}
ACTIVATIONS: Final = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.SiLU: "silu", nn.GELU: "GELU", nn.Identity: "linear"}
CONVOLUTIONS: Final = ([32, 8, 4, "valid"], [64, 4, 2, "valid"], [64, 3, 1, "valid"])
CONNECTORS: Final[dict[type[ConnectorV2], str]] = {FlattenObservations: "FlattenObservations()"}
WIDEST: Final = 20.0  # RLlib's limit of log standard deviations, where there is none
Arrays = dict[str, NDArray[np.float32]]


def rllib_export(
    loaded: LoadedPolicy, pieces: Sequence[tuple[str, ConnectorV2]], observations: Space, *, where: str
) -> Exported:
    """The files. `observations`: what the environment gives. Raises BadConfig, naming everything that has no form in RLlib."""
    module = loaded.module
    problems = [*_misfits(module), *_bad_pieces(pieces)]
    if problems:
        fix = "--to onnx, which takes any policy; or train one of RLlib's shape (docs/export.md)"
        raise BadConfig.of(problems, where=where, fix=fix)
    config, state = _shaped(module)
    notes = _notes(module, pieces)
    head = {"pi.log_std_clip_param_const": config["log_std_clip_param"], "vf.log_std_clip_param_const": WIDEST}
    state |= {name: np.array([value], np.float32) for name, value in head.items()}
    written = f"offline-cli {offline_cli.__version__}"
    files = {
        str(LAYOUT["class_and_ctor_args_file"]): _class_and_arguments(module, config),
        f"{LAYOUT['state_file']}.msgpack": pack(dict(sorted(state.items()))),
        METADATA: (json.dumps({"written_by": written, **LAYOUT}) + "\n").encode(),
    }
    seen = f"{module.observation_space.dtype} {_rows(module.observation_space)}"
    inputs = {"obs": seen}
    if module.is_stateful():
        inputs |= {f"state_in/{name}": f"float32 (B, {part.shape[1]})" for name, part in module.get_initial_state().items()}
    outputs = {"action_dist_inputs": f"float32 (B, {module.action_head.size})"}
    return Exported(files, inputs, outputs, _how(config, pieces, observations), notes=notes)


def _rows(space: Space) -> str:
    return f"({', '.join(map(str, ('B', *(space.shape or ()))))})"


# ---- what has a form in RLlib ----


def _misfits(module: RLModule) -> list[str]:
    """Every reason why RLlib's default module does not have the shape of this one."""
    if type(module) not in (FeedForwardPolicy, LSTMPolicy):
        return [f"{type(module).__name__} is no network of RLlib's default module: an MLP, a CNN or an LSTM"]
    assert isinstance(module, (FeedForwardPolicy, LSTMPolicy)), "just looked at"
    observed, problems = module.observation_space, _of_actions(module)
    images = _image_encoders(module)
    if not isinstance(observed, spaces.Box) or not (len(observed.shape) == 1 or images):
        what = f"observations are {describe(observed)}; RLlib's default module takes a vector or an image"
        return [*problems, what + _of_one_number(observed, "obs")]
    for encoder in images:
        problems += _of_images(encoder, observed)
    if isinstance(module, LSTMPolicy):
        layers = _linears(module.tokens)
        problems += [f"the LSTM has {module.lstm.num_layers} layers; RLlib's has one"] if module.lstm.num_layers > 1 else []
        problems += ["an LSTM behind convolutions"] if images else []
    else:
        layers = _linears(module.network)[:-1]
    if not layers and not images:
        problems.append("there is no hidden layer; RLlib's encoder has at least one")
    if any(isinstance(part, nn.LayerNorm) for part in module.modules()):
        problems.append("layer norm comes after the activation; RLlib's comes before")
    return problems


def _image_encoders(module: RLModule) -> list[ImageEncoder]:
    assert isinstance(module, (FeedForwardPolicy, LSTMPolicy)), "checked"
    return [part for part in module.encoder.parts if isinstance(part, ImageEncoder)]


def _of_images(encoder: ImageEncoder, observed: Space) -> list[str]:
    problems = []
    if encoder.layout != HWC:
        problems.append(f"images are {AS_ONE_READS[encoder.layout]}; RLlib's convolutions take (height, width, channels)")
    if not hasattr(encoder, "convolutions"):
        problems.append(
            f"the encoder of images is {type(encoder.network).__name__}; RLlib's has the convolutions of `nature` alone"
        )
    if encoder.bounded is not None:
        problems.append(f"images are {describe(observed)}, and not bytes from 0 to 255")
    return problems


def _of_actions(module: RLModule) -> list[str]:
    space, forms = module.action_space, module.action_head.forms()
    match space:
        case spaces.Box() if np.dtype(space.dtype).kind == "f" and len(space.shape) == 1:
            form: GaussianForm = forms[0]
            found = [f"the mean of actions goes through {form.mean}"] if form.mean != "linear" else []
            low, high = form.log_std
            return found + ([f"log standard deviations in [{low}, {high}]"] if not 0 < max(-low, high) == -low else [])
        case spaces.Discrete() if space.start == 0:
            return []
        case spaces.MultiDiscrete() if len(space.nvec.shape) == 1 and not np.any(space.start):
            return []
    what = f"actions are {describe(space)}; RLlib takes Discrete and MultiDiscrete from 0 on, and vectors of floats"
    return [what + _of_one_number(space, "actions")]


def _of_one_number(space: Space, role: str) -> str:
    """What makes a vector of single floats, which tables have where one column is named."""
    is_one = isinstance(space, spaces.Box) and not space.shape
    return f' (of a table, {role} = ["name"] in the mapping makes a vector of one)' if is_one else ""


def _bad_pieces(pieces: Sequence[tuple[str, ConnectorV2]]) -> list[str]:
    return [
        f"piece {name} ({type(piece).__name__}) would have to go with the module, and an RLModule has no pieces"
        for name, piece in pieces
        if type(piece) not in CONNECTORS or getattr(piece, "keys_to_remove", None)
    ]


def _notes(module: RLModule, pieces: Sequence[tuple[str, ConnectorV2]]) -> tuple[str, ...]:
    notes = [f"piece {name} is not in the checkpoint: put {_connector(piece)} before the module" for name, piece in pieces]
    form = next(iter(module.action_head.forms()), None)
    if form is not None and form.log_std[1] < -form.log_std[0]:
        low, high = form.log_std
        notes.append(f"log standard deviations are limited to [{low:g}, {-low:g}], and here to [{low:g}, {high:g}]")
    if any(encoder.scale != 1.0 for encoder in _image_encoders(module)):
        notes.append("images go to the module as float32 from 0 to 255: RLlib's convolutions take no bytes")
    return tuple(notes)


def _connector(piece: ConnectorV2) -> str:
    return CONNECTORS[type(piece)]


# ---- layers ----


def _linears(network: nn.Module) -> list[nn.Linear]:
    return [part for part in network.modules() if isinstance(part, nn.Linear)]


def _activation(network: nn.Module) -> str:
    return next((ACTIVATIONS[type(part)] for part in network.modules() if type(part) in ACTIVATIONS), "relu")


def _shaped(module: RLModule) -> tuple[dict[str, Any], Arrays]:
    """The model config in which RLlib's module has this one's shape, and its arrays."""
    assert isinstance(module, (FeedForwardPolicy, LSTMPolicy)), "checked"
    log_std = [form.log_std for form in module.action_head.forms()]
    config: dict[str, Any] = {**DEFAULTS, "log_std_clip_param": -float(log_std[0][0]) if log_std else WIDEST}
    if isinstance(module, LSTMPolicy):
        hidden, last, activation = _linears(module.tokens), module.output, _activation(module.tokens)
        config |= {"use_lstm": True, "lstm_cell_size": module.lstm.hidden_size}
        config |= {"max_seq_len": int(module.model_config["max_seq_len"])}
        arrays = _mlp("encoder.encoder.tokenizer.net.mlp", hidden, activation)
        arrays |= {f"encoder.encoder.lstm.{name}": _array(value) for name, value in module.lstm.named_parameters()}
    else:
        *hidden, last = _linears(module.network)
        activation = _activation(module.network)
        encoder = module.encoder.parts[0]
        if isinstance(encoder, ImageEncoder):
            config |= {"conv_filters": [list(one) for one in CONVOLUTIONS], "conv_activation": "relu"}
            config |= {"head_fcnet_hiddens": [layer.out_features for layer in hidden], "head_fcnet_activation": activation}
            return config, _convolutional(encoder, [*hidden, last], activation)
        arrays = _mlp("encoder.encoder.net.mlp", hidden, activation)
    config |= {"fcnet_hiddens": [layer.out_features for layer in hidden], "fcnet_activation": activation}
    arrays |= _mlp("pi.net.mlp", [last], activation)
    return config, arrays | _no_value("vf.net.mlp.0", last.in_features)


def _mlp(prefix: str, layers: Sequence[nn.Linear], activation: str) -> Arrays:
    """Layers as RLlib's MLP numbers them: activations count, and `linear` is none."""
    found: Arrays = {}
    for index, layer in enumerate(layers):
        name = f"{prefix}.{_number(index, activation)}"
        found |= {f"{name}.weight": _array(layer.weight), f"{name}.bias": _array(layer.bias)}
    return found


def _number(layer: int, activation: str) -> int:
    return layer if activation == "linear" else 2 * layer


def _no_value(layer: str, width: int) -> Arrays:
    """A last layer that gives 0."""
    return {f"{layer}.weight": np.zeros((1, width), np.float32), f"{layer}.bias": np.zeros(1, np.float32)}


def _convolutional(encoder: ImageEncoder, layers: Sequence[nn.Linear], activation: str) -> Arrays:
    """Convolutions with the scale of bytes inside, and heads whose first layer takes features in RLlib's order."""
    convolutions = [part for part in encoder.convolutions if isinstance(part, nn.Conv2d)]
    found: Arrays = {}
    for index, part in enumerate(convolutions):
        weight, bias = _array(part.weight).astype(np.float64), _array(part.bias).astype(np.float64)
        if index == 0:
            weight = weight * encoder.scale
        found[f"encoder.encoder.net.0.cnn.{2 * index}.weight"] = weight.astype(np.float32)
        found[f"encoder.encoder.net.0.cnn.{2 * index}.bias"] = bias.astype(np.float32)
    first, *rest = layers
    channels = convolutions[-1].out_channels
    columns = np.arange(first.in_features).reshape(channels, -1).T.ravel()  # ours are (C, H, W), RLlib's (H, W, C)
    heads = _mlp("net.mlp", layers, activation)
    heads["net.mlp.0.weight"] = np.ascontiguousarray(heads["net.mlp.0.weight"][:, columns])
    found |= {f"pi.{name}": array for name, array in heads.items()}
    last = f"net.mlp.{_number(len(rest), activation)}"
    hidden = {f"vf.{name}": array for name, array in heads.items() if not name.startswith(f"{last}.")}
    return found | hidden | _no_value(f"vf.{last}", layers[-1].in_features)


def _array(tensor: Any) -> NDArray[np.float32]:
    found: NDArray[np.float32] = tensor.detach().cpu().float().numpy().copy()
    return found


# ---- the pickle ----


class _Named:
    """A class of a package that need not be installed."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class _Pickler(pickle._Pickler):  # the one in Python can be told how to write an object; types know half of it
    def save(self, obj: Any, save_persistent_id: bool = True) -> Any:
        whole: Any = super()
        if not isinstance(obj, _Named):
            return whole.save(obj, save_persistent_id)
        whole.save(obj.module)
        whole.save(obj.name)
        return vars(self)["write"](pickle.STACK_GLOBAL)


PPO: Final = "ray.rllib.algorithms.ppo"
MODULE: Final = (f"{PPO}.torch.default_ppo_torch_rl_module", "DefaultPPOTorchRLModule")
CATALOG: Final = (f"{PPO}.ppo_catalog", "PPOCatalog")


def _class_and_arguments(module: RLModule, config: Mapping[str, Any]) -> bytes:
    """What RLlib makes the module from: names of its classes, gymnasium's spaces, plain values."""
    arguments = {
        "observation_space": _fresh(module.observation_space),
        "action_space": _fresh(module.action_space),
        "inference_only": False,
        "learner_only": False,
        "model_config": dict(config),
        "catalog_class": _Named(*CATALOG),
    }
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=4).dump({"class": _Named(*MODULE), "ctor_args_and_kwargs": ((), arguments)})
    return buffer.getvalue()


def _fresh(space: Space) -> Space:
    """The space without the random numbers that it may have drawn."""
    return space_from_json(space_to_json(space), where="the run's spaces")


DEFAULTS: Final[Mapping[str, Any]] = {  # DefaultModelConfig of RLlib 2.60
    "vf_share_layers": True,
    "fcnet_hiddens": [256, 256],
    "fcnet_activation": "tanh",
    "fcnet_use_layernorm": False,
    "conv_filters": None,
    "conv_activation": "relu",
    "head_fcnet_hiddens": [],
    "head_fcnet_activation": "relu",
    "head_fcnet_use_layernorm": False,
    "free_log_std": False,
    "log_std_clip_param": WIDEST,
    "use_lstm": False,
    "max_seq_len": 20,
    "lstm_cell_size": 256,
    "lstm_use_prev_action": False,
    "lstm_use_prev_reward": False,
    **{
        f"{part}_{of}_initializer{kwargs}": None
        for part in ("fcnet", "conv", "head_fcnet", "lstm")
        for of in ("kernel", "bias")
        for kwargs in ("", "_kwargs")
    },
}


# ---- how to go on ----


def _how(config: Mapping[str, Any], pieces: Sequence[tuple[str, ConnectorV2]], observations: Space) -> str:
    """Python that loads it alone, and into PPO."""
    told = ", ".join(
        f"{name}={value!r}" for name, value in config.items() if value != DEFAULTS[name] or name.startswith("fcnet_h")
    )
    connectors = ", ".join(_connector(piece) for _, piece in pieces)
    imported = (
        "from ray.rllib.connectors.env_to_module import FlattenObservations\n" if "FlattenObservations" in connectors else ""
    )
    runners = f"\n    .env_runners(env_to_module_connector=lambda env, spaces, device: [{connectors}])" if pieces else ""
    return f"""
```python
from ray.rllib.core.rl_module.rl_module import RLModule

module = RLModule.from_checkpoint("/absolute/path/to/this/folder")
```

PPO goes on from it with the same model config:

```python
from ray.rllib.algorithms.ppo import PPOConfig
{imported}from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

config = (
    PPOConfig()
    .environment("ENVIRONMENT"){runners}
    .rl_module(model_config=DefaultModelConfig({told}))
)
algorithm = config.build_algo()
algorithm.restore_from_path(
    "/absolute/path/to/this/folder", component="learner_group/learner/rl_module/default_policy"
)
```

`offline-cli evaluate rllib:FOLDER --env ENVIRONMENT` plays it, from `module.json` and `module_state.msgpack` alone. Its value
function gives 0 until it is trained. `class_and_ctor_args.pkl` is a pickle that names classes of RLlib and gymnasium.
"""
