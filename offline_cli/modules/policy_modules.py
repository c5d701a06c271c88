"""Policies for behaviour cloning: feed-forward and recurrent (LSTM, GRU), built from spaces.

Recurrent batches are (B, T, ...) and states (B, layers, size), as connector pipelines make them: `state_in` is the state before
the first of the T steps, `state_out` the state after the last. Both the state and the time axis are required. Padding comes
after the real steps, so it changes `state_out` but no output of a real step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from offline_cli.choices import ACTIVATION, HIDDEN
from offline_cli.columns import Columns
from offline_cli.modules.distributions import CLONING, ActionHead, GaussianForm, build_head
from offline_cli.modules.encoders import ACTIVATIONS, NATURE, ObservationEncoder, after_layer, mlp
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import Space
from offline_cli.trees import leaves, map_leaves

__all__ = ["FeedForwardPolicy", "RecurrentPolicy", "build_module", "build_recurrent_module"]

MEMORIES: Final[dict[str, tuple[type[nn.LSTM | nn.GRU], tuple[str, ...]]]] = {
    "lstm": (nn.LSTM, ("h", "c")),  # Hochreiter and Schmidhuber 1997
    "gru": (nn.GRU, ("h",)),  # Cho et al. 2014
}
"""Recurrent cells and the names of their states."""


class FeedForwardPolicy(RLModule):
    """Encoder, hidden layers, and a linear layer to the action head's inputs."""

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        head: ActionHead,
        *,
        hidden: Sequence[int],
        encoder: str = NATURE,
        **between: Any,
    ) -> None:
        """`between`: activation, dropout and layer norm, as for `mlp`."""
        super().__init__(observation_space, action_space, head)
        self.encoder = ObservationEncoder(observation_space, encoder=encoder)
        self.network = mlp([self.encoder.size, *hidden, head.size], **between)

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        outputs: Tensor = self.network(self.encoder(batch[Columns.OBS]))
        return {Columns.ACTION_DIST_INPUTS: outputs.float()}


class RecurrentPolicy(RLModule):
    """Encoder, hidden layers, recurrent cells, and a linear layer to the action head's inputs."""

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        head: ActionHead,
        *,
        hidden: Sequence[int],
        memory: str,
        memory_size: int,
        memory_layers: int,
        max_seq_len: int,
        encoder: str = NATURE,
        **between: Any,
    ) -> None:
        """`memory`: a key of MEMORIES; `between`: activation, dropout and layer norm, as for `mlp`."""
        super().__init__(observation_space, action_space, head, {"max_seq_len": max_seq_len})
        self.encoder = ObservationEncoder(observation_space, encoder=encoder)
        sizes = [self.encoder.size, *hidden]
        self.tokens = nn.Sequential(mlp(sizes, **between), after_layer(sizes[-1], **between))
        kind, self._states = MEMORIES[memory]
        self.memory = kind(sizes[-1], memory_size, memory_layers, batch_first=True)
        self.output = nn.Linear(memory_size, head.size)

    def get_initial_state(self) -> dict[str, Tensor]:
        """Zeros, (layers, size) each."""
        return {name: torch.zeros(self.memory.num_layers, self.memory.hidden_size) for name in self._states}

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """ACTION_DIST_INPUTS (B, T, head.size) and STATE_OUT, leaves (B, layers, size). Raises ValueError without a state."""
        if Columns.STATE_IN not in batch:
            raise ValueError(f"{Columns.STATE_IN} is not in the batch: AddStatesFromEpisodesToBatch adds it")
        observations, state = batch[Columns.OBS], batch[Columns.STATE_IN]
        rows, steps = leaves(observations)[0].shape[:2]
        tokens = self.tokens(self.encoder(map_leaves(lambda leaf: leaf.flatten(0, 1), observations)))
        before = tuple(state[name].transpose(0, 1).contiguous() for name in self._states)  # (layers, B, size)
        one = len(before) == 1  # a GRU's state is no tuple
        outputs, after = self.memory(tokens.unflatten(0, (rows, steps)), before[0] if one else before)
        states = zip(self._states, [after] if one else after, strict=True)
        return {
            Columns.ACTION_DIST_INPUTS: self.output(outputs).float(),
            Columns.STATE_OUT: {name: part.transpose(0, 1) for name, part in states},
        }


def build_module(
    observation_space: Space,
    action_space: Space,
    *,
    hidden: Sequence[int] = HIDDEN,
    activation: str = ACTIVATION,
    dropout: float = 0.0,
    layer_norm: bool = False,
    encoder: str = NATURE,
    action_scale: str = "unknown",
    gaussian: GaussianForm = CLONING,
    seed: int | None = 0,
    **memory: Any,
) -> RLModule:
    """Build a policy on the CPU whose initial weights depend on `seed` only (None: on torch's random generator).

    `activation`: a key of `encoders.ACTIVATIONS`. `memory`: the recurrent options of `build_recurrent_module`. Raises
    UnsupportedSpace, ValueError for unknown names, and BadConfig for Box actions of unknown scale.
    """
    if activation not in ACTIVATIONS or memory.get("memory", "lstm") not in MEMORIES:
        raise ValueError(f"{activation!r} or {memory.get('memory')!r} is none of {[*ACTIVATIONS, *MEMORIES]}")
    head = build_head(action_space, action_scale=action_scale, form=gaussian)
    layers: dict[str, Any] = {"hidden": hidden, "activation": activation, "dropout": dropout, "layer_norm": layer_norm}
    kind: Any = RecurrentPolicy if memory else FeedForwardPolicy
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        made: RLModule = kind(observation_space, action_space, head, encoder=encoder, **layers, **memory)
    return made


def build_recurrent_module(
    observation_space: Space,
    action_space: Space,
    *,
    memory: str = "lstm",
    memory_size: int = 256,
    memory_layers: int = 1,
    max_seq_len: int = 20,
    hidden: Sequence[int] = (256,),
    **form: Any,
) -> RLModule:
    """Build a recurrent policy; `memory` is `lstm` or `gru`; `form`: see `build_module`.

    `max_seq_len`: timesteps per row of a train batch.
    """
    form |= {"memory": memory, "memory_size": memory_size, "memory_layers": memory_layers}
    return build_module(observation_space, action_space, hidden=hidden, max_seq_len=max_seq_len, **form)
