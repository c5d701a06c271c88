"""A policy with memory, and how to build it from spaces; refuses batches without a state or without a time axis.

Batches are (B, T, ...), states (B, layers, size) without a time axis, as the connector pipelines make them: `state_in` is the
state before the first of the T steps, `state_out` the one after the last. Steps of padding (on the right) come after all real
ones, so they change no output that counts; they do change `state_out`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.modules.distributions import ActionHead, build_head
from offline_cli.modules.networks import ACTIVATIONS, ObservationEncoder, mlp
from offline_cli.modules.rl_module import RLModule
from offline_cli.options.cloning import ACTIVATION
from offline_cli.spaces import Space
from offline_cli.trees import leaves, map_leaves

__all__ = ["LSTMPolicy", "build_recurrent_module"]


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
        raise ValueError(f"activation {activation!r} is none of {list(ACTIVATIONS)}")
    head = build_head(action_space, action_scale=action_scale)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LSTMPolicy(
            observation_space,
            action_space,
            head,
            hidden=hidden,
            activation=activation,
            lstm_size=lstm_size,
            lstm_layers=lstm_layers,
            max_seq_len=max_seq_len,
        )
