"""The policies of behaviour cloning, feed-forward and with memory (LSTM), and how to build them from spaces.

Batches of the LSTM are (B, T, ...), states (B, layers, size) without a time axis, as the connector pipelines make them:
`state_in` is the state before the first of the T steps, `state_out` the one after the last; both the state and the time axis
are required. Steps of padding (on the right) come after all real ones, so they change no output that counts; they do change
`state_out`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.errors import BadConfig
from offline_cli.modules.distributions import CLONING, ActionHead, GaussianForm, build_head
from offline_cli.modules.encoders import ACTIVATIONS, BY_BOUNDS, ObservationEncoder, is_image, mlp
from offline_cli.modules.rl_module import RLModule
from offline_cli.options.training import ACTIVATION, HIDDEN
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import leaves, map_leaves

__all__ = ["FeedForwardPolicy", "LSTMPolicy", "build_module", "build_recurrent_module", "fewest_numbers"]

MAX_LAYERS = 1000
MAX_NUMBERS = 1 << 30  # 4 GiB of float32, and three times that while Adam trains them


class FeedForwardPolicy(RLModule):
    """Encoder, hidden layers, one linear layer to the action head's inputs."""

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        head: ActionHead,
        *,
        hidden: Sequence[int],
        activation: str,
        uint8_scaling: str = BY_BOUNDS,
        dropout: float = 0.0,
        layer_norm: bool = False,
    ) -> None:
        super().__init__(observation_space, action_space, head)
        self.encoder = ObservationEncoder(observation_space, uint8_scaling=uint8_scaling)
        sizes = [self.encoder.size, *hidden, head.size]
        self.network = mlp(sizes, activation, dropout=dropout, layer_norm=layer_norm)

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        outputs: Tensor = self.network(self.encoder(batch[Columns.OBS]))
        return {Columns.ACTION_DIST_INPUTS: outputs.float()}


def fewest_numbers(observation_space: Space, action_space: Space, hidden: Sequence[int]) -> int:
    """The fewest weights that such a policy can have: counted before anything is made: a space may declare any size."""
    first, last = (hidden[0], hidden[-1]) if hidden else (1, 1)
    inner = sum(wide * next_wide + next_wide for wide, next_wide in itertools.pairwise(hidden))
    seen = sum(_width(leaf) for leaf in leaf_spaces(observation_space).values() if not is_image(leaf))
    chosen = sum(_width(leaf) for leaf in leaf_spaces(action_space).values())
    return first * seen + inner + last * chosen


def _width(leaf: Space) -> int:
    """Columns that a leaf has in a network: one for each choice, or each number."""
    if isinstance(leaf, spaces.Discrete):
        return int(leaf.n)
    if isinstance(leaf, spaces.MultiDiscrete):
        return sum(map(int, leaf.nvec.ravel()))
    return math.prod(leaf.shape or ())


def build_module(
    observation_space: Space,
    action_space: Space,
    *,
    hidden: Sequence[int] = HIDDEN.default,
    activation: str = ACTIVATION.default,
    action_scale: str = "unknown",
    uint8_scaling: str = BY_BOUNDS,
    gaussian: GaussianForm = CLONING,
    dropout: float = 0.0,
    layer_norm: bool = False,
    seed: int | None = 0,
) -> RLModule:
    """A policy with fresh weights that follow from `seed` alone (None: from torch's random generator), on the CPU.

    `activation` is a key of `networks.ACTIVATIONS`, `uint8_scaling` BY_BOUNDS or BY_255, else ValueError. Raises
    UnsupportedSpace, and BadConfig for Box actions of unknown scale, and for a network that no machine holds.
    """
    numbers = fewest_numbers(observation_space, action_space, hidden)
    if len(hidden) > MAX_LAYERS:
        raise BadConfig(f"{len(hidden)} hidden layers", where="hidden layers", fix=f"at most {MAX_LAYERS}")
    if numbers > MAX_NUMBERS:
        fix = "check the spaces (`offline-cli inspect`) and the widths of the hidden layers"
        raise BadConfig(f"a network of {numbers} weights", where="observation space, hidden layers, action space", fix=fix)
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is not one of {list(ACTIVATIONS)}")
    head = build_head(action_space, action_scale=action_scale, form=gaussian)
    form: dict[str, Any] = {"hidden": hidden, "activation": activation, "uint8_scaling": uint8_scaling}
    form |= {"dropout": dropout, "layer_norm": layer_norm}
    with nullcontext() if seed is None else torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        return FeedForwardPolicy(observation_space, action_space, head, **form)


class LSTMPolicy(RLModule):
    """Encoder, hidden layers, LSTM, one linear layer to the action head's inputs."""

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        head: ActionHead,
        *,
        hidden: Sequence[int],
        activation: str,
        lstm_size: int,
        lstm_layers: int,
        max_seq_len: int,
    ) -> None:
        super().__init__(observation_space, action_space, head, {"max_seq_len": max_seq_len})
        self.encoder = ObservationEncoder(observation_space)
        self.tokens = nn.Sequential(mlp([self.encoder.size, *hidden], activation), ACTIVATIONS[activation]())
        self.lstm = nn.LSTM(hidden[-1] if hidden else self.encoder.size, lstm_size, lstm_layers, batch_first=True)
        self.output = nn.Linear(lstm_size, head.size)

    def get_initial_state(self) -> dict[str, Tensor]:
        """Zeros: `h` and `c`, (layers, size) each."""
        return {name: torch.zeros(self.lstm.num_layers, self.lstm.hidden_size) for name in ("h", "c")}

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """ACTION_DIST_INPUTS (B, T, head.size) and STATE_OUT, leaves (B, layers, size). Raises ValueError without a state."""
        if Columns.STATE_IN not in batch:
            raise ValueError(f"{Columns.STATE_IN} is not in the batch: AddStatesFromEpisodesToBatch puts it there")
        observations, state = batch[Columns.OBS], batch[Columns.STATE_IN]
        rows, steps = leaves(observations)[0].shape[:2]
        tokens = self.tokens(self.encoder(map_leaves(lambda leaf: leaf.flatten(0, 1), observations)))
        layers_first = tuple(state[name].transpose(0, 1).contiguous() for name in ("h", "c"))
        outputs, (h, c) = self.lstm(tokens.unflatten(0, (rows, steps)), layers_first)
        return {
            Columns.ACTION_DIST_INPUTS: self.output(outputs).float(),
            Columns.STATE_OUT: {"h": h.transpose(0, 1), "c": c.transpose(0, 1)},
        }


def build_recurrent_module(
    observation_space: Space,
    action_space: Space,
    *,
    hidden: Sequence[int] = (256,),
    activation: str = ACTIVATION.default,
    lstm_size: int = 256,
    lstm_layers: int = 1,
    max_seq_len: int = 20,
    action_scale: str = "unknown",
    seed: int = 0,
) -> LSTMPolicy:
    """A policy with memory and fresh weights that follow from `seed` alone, on the CPU.

    `max_seq_len`: timesteps per row of a train batch. `activation` is a key of `networks.ACTIVATIONS`, else ValueError. Raises
    UnsupportedSpace, and BadConfig for Box actions of unknown scale.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is not one of {list(ACTIVATIONS)}")
    head = build_head(action_space, action_scale=action_scale)
    form: dict[str, Any] = {"hidden": hidden, "activation": activation, "max_seq_len": max_seq_len}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LSTMPolicy(observation_space, action_space, head, lstm_size=lstm_size, lstm_layers=lstm_layers, **form)
