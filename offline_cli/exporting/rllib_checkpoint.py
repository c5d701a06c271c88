"""Export a policy as a checkpoint of the default RLModule of RLlib's PPO, built and saved by RLlib.

Layers are copied in order; the value function is new and returns 0. Then the outputs of both modules are compared. BadConfig is
raised for a network that RLlib's module cannot represent, or whose outputs differ, and for images, because RLlib's convolutions
take no uint8.

An RLModule contains no pieces. FlattenObservations has a counterpart in RLlib, which the user puts before the module; any other
piece raises BadConfig.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from offline_cli.columns import Columns
from offline_cli.connectors.common.flattening import FlattenObservations
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.pipeline_spec import added_pieces
from offline_cli.errors import BadConfig, MissingPackage
from offline_cli.exporting.card import Made, form
from offline_cli.modules.rl_module import RLModule, evaluating
from offline_cli.policies.policy import sampled
from offline_cli.spaces import Space, describe

__all__ = ["rllib_export"]

ACTIVATIONS: Final = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.SiLU: "silu", nn.GELU: "GELU", nn.Identity: "linear"}
ROWS: Final = 64  # batch size of the comparison
CLOSE: Final = 1e-4
WEIGHTED: Final = (nn.Linear, nn.Conv2d, nn.LSTM)
HOW: Final = """
RLlib loads it with `RLModule.from_checkpoint("/absolute/path/to/this/folder")`. PPO continues from it with the model config
`DefaultModelConfig({config})`, see "Export a policy" in the documentation of offline-cli.
`offline-cli evaluate rllib:FOLDER --env ENV --trust-pickle` plays it.
Its value function returns 0 until it is trained. Its files are pickles, like all RLlib checkpoints.
"""


def rllib_export(
    module: RLModule, pipeline: ConnectorPipelineV2, observations: Space, facts: Mapping[str, Any], *, name: str, where: str
) -> Made:
    """Build RLlib's default module with the weights of `module`, and save it. Raises MissingPackage, and BadConfig, naming the
    pieces, for a policy that RLlib's default module cannot represent.
    """
    try:
        from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
        from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
        from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    except ImportError as err:
        fix = "pip install 'offline-cli[ray]'"
        raise MissingPackage(f"the package {err.name} is missing", where="--to rllib", fix=fix) from err
    kind: Any = DefaultPPOTorchRLModule
    pieces, seen = added_pieces(pipeline), module.observation_space
    try:
        if others := [name for name, piece in pieces if type(piece) is not FlattenObservations or piece.keys_to_remove]:
            raise ValueError(f"an RLModule has no pieces, but the policy plays through {', '.join(others)}")
        config = _config(module)
        theirs = kind(
            observation_space=seen,
            action_space=module.action_space,
            inference_only=False,
            model_config=vars(DefaultModelConfig(**config)),
            catalog_class=PPOCatalog,
        )
        _copy(module, theirs)
        difference = _difference(module, theirs)
        if not difference <= CLOSE:
            raise ValueError(f"its outputs differ by up to {difference:g}")
    except Exception as err:  # RLlib may raise anything; layers may not fit
        reason = f"{type(err).__name__}: {str(err).strip().partition(chr(10))[0]}"[:300]
        fix = "use --to onnx, or train a network of RLlib's shapes"
        raise BadConfig(f"RLlib's default module cannot represent this policy: {reason}", where=where, fix=fix) from err
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_to_path(str(Path(folder).resolve()))
        saved = sorted(
            Path(folder).iterdir(), key=lambda file: file.name == "metadata.json"
        )  # written last: it marks a checkpoint
        files = {file.name: file.read_bytes() for file in saved}
    notes = [f"piece {name} is not in the checkpoint: put FlattenObservations() before the module" for name, _ in pieces]
    for low, high in (one.log_std for one in module.action_head.forms()):
        if high < -low:
            notes.append(f"RLlib limits log standard deviations to [{low:g}, {-low:g}], this policy to [{low:g}, {high:g}]")
    inputs = {"obs": form(seen.dtype, seen.shape or ())}
    inputs |= {f"state_in/{name}": form("float32", tuple(part.shape[1:])) for name, part in module.get_initial_state().items()}
    outputs = {"action_dist_inputs": form("float32", (module.action_head.size,))}
    how = HOW.format(config=", ".join(f"{option}={value!r}" for option, value in config.items()))
    return Made(files, inputs, outputs, how, difference, tuple(notes))


def _config(module: RLModule) -> dict[str, Any]:
    """The model config for a module of the same shape. Raises ValueError if there is none."""
    seen, acted = module.observation_space, module.action_space
    is_vector = isinstance(acted, spaces.Box) and np.dtype(acted.dtype).kind == "f" and len(acted.shape) == 1
    is_choice = isinstance(acted, spaces.Discrete) or (isinstance(acted, spaces.MultiDiscrete) and acted.nvec.ndim == 1)
    if (
        not isinstance(seen, spaces.Box)
        or len(seen.shape) != 1
        or not (is_vector or is_choice)
        or np.any(getattr(acted, "start", 0))
    ):
        raise ValueError(f"observations are {describe(seen)}, actions {describe(acted)}")
    config: dict[str, Any] = {}
    for one in module.action_head.forms():
        config["log_std_clip_param"] = -float(one.log_std[0])
        if one.mean != "linear" or not 0 < max(-one.log_std[0], one.log_std[1]) == -one.log_std[0]:
            raise ValueError(f"the mean is {one.mean}, log standard deviations are in {list(one.log_std)}")
    for memory in (part for part in module.modules() if isinstance(part, nn.LSTM)):
        config |= {
            "use_lstm": True,
            "lstm_cell_size": memory.hidden_size,
            "max_seq_len": int(module.model_config["max_seq_len"]),
        }
    layers = [part.out_features for part in module.modules() if isinstance(part, nn.Linear)]
    activation = next((ACTIVATIONS[type(part)] for part in module.modules() if type(part) in ACTIVATIONS), "relu")
    return config | {"fcnet_hiddens": layers[:-1], "fcnet_activation": activation}


def _weighted(module: nn.Module) -> list[Any]:
    return [part for part in module.modules() if isinstance(part, WEIGHTED)]


@torch.no_grad()
def _copy(module: RLModule, theirs: Any) -> None:
    """Copy all weights. Raises ValueError, RuntimeError if layers do not fit."""
    for own, target in zip(_weighted(module), [*_weighted(theirs.encoder), *_weighted(theirs.pi)], strict=True):
        target.load_state_dict(own.state_dict())
    *hidden, last = _weighted(theirs.vf)
    for target, own in zip(hidden, _weighted(theirs.pi), strict=False):
        target.load_state_dict(own.state_dict())
    for parameter in last.parameters():
        parameter.zero_()


def _difference(module: RLModule, theirs: Any) -> float:
    """Maximum difference of both modules' outputs for made-up observations, within the limits of the policy's action head."""
    batch: dict[str, Any] = {
        Columns.OBS: torch.from_numpy(np.ascontiguousarray(sampled(module.observation_space, ROWS))).float()
    }
    if module.is_stateful():
        state = {name: first.expand(ROWS, *first.shape) for name, first in module.get_initial_state().items()}
        batch = {Columns.OBS: batch[Columns.OBS][:, None], Columns.STATE_IN: state}
    with evaluating(module), torch.inference_mode():
        wanted, found = (one.forward_inference(dict(batch))[Columns.ACTION_DIST_INPUTS] for one in (module, theirs))
        if found.shape != wanted.shape:
            raise ValueError(f"its outputs have shape {tuple(found.shape[1:])}, the policy's {tuple(wanted.shape[1:])}")
        return float((module.action_head.limited(found) - wanted).abs().max())
