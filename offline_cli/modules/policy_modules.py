"""The policies of behaviour cloning, feed-forward and with memory (LSTM, GRU), and how to build them from spaces.

Batches of those with memory are (B, T, ...), states (B, layers, size) without a time axis, as connector pipelines make them:
`state_in` is the state before the first of the T steps, `state_out` the one after the last; both the state and the time axis
are required. Steps of padding (on the right) come after all real ones, so they change no output that counts; they do change
`state_out`.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.choices import ACTIVATION, HIDDEN
from offline_cli.columns import Columns
from offline_cli.errors import BadConfig
from offline_cli.modules.distributions import CLONING, ActionHead, GaussianForm, build_head
from offline_cli.modules.encoders import ACTIVATIONS, ObservationEncoder, after_layer, mlp
from offline_cli.modules.images import BY_SHAPE, ImageForm
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import leaves, map_leaves

__all__ = [
    "FeedForwardPolicy",
    "GRUPolicy",
    "LSTMPolicy",
    "RecurrentPolicy",
    "build_module",
    "build_recurrent_module",
    "fewest_numbers",
    "fewest_remembering",
]

MEMORY_SIZE: Final = 256
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
        images: ImageForm = BY_SHAPE,
        dropout: float = 0.0,
        layer_norm: bool = False,
    ) -> None:
        super().__init__(observation_space, action_space, head)
        self.encoder = ObservationEncoder(observation_space, images=images)
        sizes = [self.encoder.size, *hidden, head.size]
        self.network = mlp(sizes, activation, dropout=dropout, layer_norm=layer_norm)

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        outputs: Tensor = self.network(self.encoder(batch[Columns.OBS]))
        return {Columns.ACTION_DIST_INPUTS: outputs.float()}


def fewest_numbers(observation_space: Space, action_space: Space, hidden: Sequence[int], images: ImageForm = BY_SHAPE) -> int:
    """The fewest weights that such a policy can have: counted before anything is made: a space may declare any size."""
    first, last = (hidden[0], hidden[-1]) if hidden else (1, 1)
    inner = sum(wide * next_wide + next_wide for wide, next_wide in itertools.pairwise(hidden))
    seen = sum(_width(leaf) for leaf in leaf_spaces(observation_space).values() if images.axes(leaf) is None)
    chosen = sum(_width(leaf) for leaf in leaf_spaces(action_space).values())
    return first * seen + inner + last * chosen


def fewest_remembering(options: Mapping[str, Any]) -> int:
    """The fewest weights of a memory with the options of `build_recurrent_module`; 0 without one."""
    if "memory" not in options:
        return 0
    return 3 * int(options.get("memory_layers", 1)) * int(options.get("memory_size", MEMORY_SIZE)) ** 2


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
    hidden: Sequence[int] = HIDDEN,
    activation: str = ACTIVATION,
    action_scale: str = "unknown",
    images: ImageForm = BY_SHAPE,
    gaussian: GaussianForm = CLONING,
    dropout: float = 0.0,
    layer_norm: bool = False,
    seed: int | None = 0,
) -> RLModule:
    """A policy with fresh weights that follow from `seed` alone (None: from torch's random generator), on the CPU.

    `activation` is a key of `networks.ACTIVATIONS`, else ValueError. Raises UnsupportedSpace, and
    BadConfig for Box actions of unknown scale, and for a network that no machine holds.
    """
    _check_size(observation_space, action_space, hidden, activation, images)
    head = build_head(action_space, action_scale=action_scale, form=gaussian)
    form: dict[str, Any] = {"hidden": hidden, "activation": activation}
    form |= {"images": images, "dropout": dropout, "layer_norm": layer_norm}
    with _seeded(seed):
        return FeedForwardPolicy(observation_space, action_space, head, **form)


class RecurrentPolicy(RLModule):
    """Encoder, hidden layers, cells that remember, one linear layer to the action head's inputs."""

    cells: ClassVar[str]  # the attribute that has them
    states: ClassVar[tuple[str, ...]]  # by name, what they remember

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        head: ActionHead,
        *,
        hidden: Sequence[int],
        activation: str,
        size: int,
        layers: int,
        max_seq_len: int,
        burn_in: int = 0,
        images: ImageForm = BY_SHAPE,
        dropout: float = 0.0,
        layer_norm: bool = False,
    ) -> None:
        super().__init__(observation_space, action_space, head, {"max_seq_len": max_seq_len, "burn_in": burn_in})
        self.encoder = ObservationEncoder(observation_space, images=images)
        sizes, between = [self.encoder.size, *hidden], dict[str, Any](dropout=dropout, layer_norm=layer_norm)
        self.tokens = nn.Sequential(mlp(sizes, activation, **between), after_layer(sizes[-1], activation, **between))
        made = getattr(nn, self.cells.upper())(sizes[-1], size, layers, batch_first=True)
        setattr(self, self.cells, made)
        self.output = nn.Linear(size, head.size)

    def get_initial_state(self) -> dict[str, Tensor]:
        """Zeros, (layers, size) each."""
        cells = getattr(self, self.cells)
        return {name: torch.zeros(cells.num_layers, cells.hidden_size) for name in self.states}

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """ACTION_DIST_INPUTS (B, T, head.size) and STATE_OUT, leaves (B, layers, size). Raises ValueError without a state."""
        if Columns.STATE_IN not in batch:
            raise ValueError(f"{Columns.STATE_IN} is not in the batch: AddStatesFromEpisodesToBatch puts it there")
        observations, state = batch[Columns.OBS], batch[Columns.STATE_IN]
        rows, steps = leaves(observations)[0].shape[:2]
        tokens = self.tokens(self.encoder(map_leaves(lambda leaf: leaf.flatten(0, 1), observations)))
        layers_first = [state[name].transpose(0, 1).contiguous() for name in self.states]
        outputs, after = self._remembered(tokens.unflatten(0, (rows, steps)), layers_first)
        return {
            Columns.ACTION_DIST_INPUTS: self.output(outputs).float(),
            Columns.STATE_OUT: {name: part.transpose(0, 1) for name, part in zip(self.states, after, strict=True)},
        }

    @abstractmethod
    def _remembered(self, tokens: Tensor, states: list[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        """Outputs (B, T, size), and the states after the last step, of `tokens` (B, T, ...) and states (layers, B, size)."""


class LSTMPolicy(RecurrentPolicy):
    """With long short-term memory (Hochreiter and Schmidhuber 1997): states `h` and `c`."""

    cells = "lstm"
    states = ("h", "c")
    lstm: nn.LSTM

    def _remembered(self, tokens: Tensor, states: list[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        outputs, after = self.lstm(tokens, (states[0], states[1]))
        return outputs, after


class GRUPolicy(RecurrentPolicy):
    """With gated recurrent units (Cho et al. 2014): state `h`."""

    cells = "gru"
    states = ("h",)
    gru: nn.GRU

    def _remembered(self, tokens: Tensor, states: list[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        outputs, after = self.gru(tokens, states[0])
        return outputs, [after]


MEMORIES: Final[dict[str, type[RecurrentPolicy]]] = {"lstm": LSTMPolicy, "gru": GRUPolicy}


def build_recurrent_module(
    observation_space: Space,
    action_space: Space,
    *,
    hidden: Sequence[int] = (256,),
    activation: str = ACTIVATION,
    memory: str = "lstm",
    memory_size: int = MEMORY_SIZE,
    memory_layers: int = 1,
    max_seq_len: int = 20,
    burn_in: int = 0,
    action_scale: str = "unknown",
    images: ImageForm = BY_SHAPE,
    gaussian: GaussianForm = CLONING,
    dropout: float = 0.0,
    layer_norm: bool = False,
    seed: int | None = 0,
    lstm_size: int | None = None,
    lstm_layers: int | None = None,
) -> RecurrentPolicy:
    """A policy with memory and fresh weights that follow from `seed` alone (None: from torch's random generator), on the CPU.

    `memory`: a key of `MEMORIES`, `activation` one of `encoders.ACTIVATIONS`, else ValueError. `max_seq_len`: timesteps per row
    of a train batch, and `burn_in` those before them that lead in. `lstm_size`, `lstm_layers`: other names of `memory_size`,
    `memory_layers`. Raises UnsupportedSpace, and BadConfig for Box actions of unknown scale, and for a network that no machine
    holds.
    """
    size, layers = lstm_size or memory_size, lstm_layers or memory_layers
    _check_size(observation_space, action_space, hidden, activation, images)
    if memory not in MEMORIES:
        raise ValueError(f"memory {memory!r} is not one of {list(MEMORIES)}")
    if (
        fewest_remembering({"memory": memory, "memory_layers": layers, "memory_size": size}) > MAX_NUMBERS
        or layers > MAX_LAYERS
    ):
        raise BadConfig(f"a memory of {layers} layers of {size}", where="memory", fix="a smaller memory_size")
    head = build_head(action_space, action_scale=action_scale, form=gaussian)
    form: dict[str, Any] = {"hidden": hidden, "activation": activation}
    form |= {"size": size, "layers": layers, "max_seq_len": max_seq_len, "burn_in": burn_in}
    form |= {"images": images, "dropout": dropout, "layer_norm": layer_norm}
    with _seeded(seed):
        return MEMORIES[memory](observation_space, action_space, head, **form)


@contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Within it torch's random generator is that of `seed`; None: it is as it was."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _check_size(
    observation_space: Space, action_space: Space, hidden: Sequence[int], activation: str, images: ImageForm
) -> None:
    numbers = fewest_numbers(observation_space, action_space, hidden, images)
    if len(hidden) > MAX_LAYERS:
        raise BadConfig(f"{len(hidden)} hidden layers", where="hidden layers", fix=f"at most {MAX_LAYERS}")
    if numbers > MAX_NUMBERS:
        fix = "check the spaces (`offline-cli inspect`) and the widths of the hidden layers"
        raise BadConfig(f"a network of {numbers} weights", where="observation space, hidden layers, action space", fix=fix)
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is not one of {list(ACTIVATIONS)}")
