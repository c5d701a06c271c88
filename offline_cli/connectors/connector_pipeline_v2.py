"""ConnectorPipelineV2: pieces called one after the other; refuses names that no piece has.

State is keyed by a name that is unique within the pipeline (`ClipRewards`, `ClipRewards_2`), so two pieces of one class keep
two states. The chain of spaces is worked out when the pipeline is built, before any data is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.spaces import Space

__all__ = ["ConnectorPipelineV2"]


class ConnectorPipelineV2(ConnectorV2):
    """Pieces in order; itself a piece."""

    whole_arrays = True  # it takes care itself of pieces that do not

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        connectors: Iterable[ConnectorV2] = (),
    ) -> None:
        self.connectors = list(connectors)
        super().__init__(input_observation_space, input_action_space)

    def __call__(
        self,
        *,
        rl_module: Any = None,
        batch: Batch | None = None,
        episodes: Episodes,
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
        **kwargs: Any,
    ) -> Batch:
        """The batch after the last piece. Raises TypeError, naming the piece, where one gives no batch."""
        batch = {} if batch is None else batch
        shared_data = {} if shared_data is None else shared_data
        for name, piece in self.named():
            if isinstance(episodes, EpisodeBatch) and not piece.whole_arrays:
                episodes = list(episodes)
            batch = piece(
                rl_module=rl_module,
                batch=batch,
                episodes=episodes,
                explore=explore,
                shared_data=shared_data,
                metrics=metrics,
                **kwargs,
            )
            if not isinstance(batch, dict):
                raise TypeError(f"piece {name} gave {type(batch).__name__}, not the batch")
        return batch

    # ---- pieces by name ----

    def named(self) -> Iterator[tuple[str, ConnectorV2]]:
        """Each (unique name, piece): the class name, with _2, _3, ... where a class comes again."""
        seen: dict[str, int] = {}
        for piece in self.connectors:
            kind = type(piece).__name__
            seen[kind] = seen.get(kind, 0) + 1
            yield (kind if seen[kind] == 1 else f"{kind}_{seen[kind]}"), piece

    def index_of(self, name_or_class: str | type[ConnectorV2]) -> int:
        """Where the first piece of that name or class is. Raises ValueError with the names there are."""
        for index, (name, piece) in enumerate(self.named()):
            if name == name_or_class or type(piece) is name_or_class:
                return index
        wanted = name_or_class if isinstance(name_or_class, str) else name_or_class.__name__
        raise ValueError(f"no piece {wanted!r} among {[name for name, _ in self.named()]}")

    def remove(self, name_or_class: str | type[ConnectorV2]) -> ConnectorV2:
        """Take the piece out and give it. Raises ValueError for an unknown name."""
        piece = self.connectors.pop(self.index_of(name_or_class))
        self._recompute()
        return piece

    def insert_before(self, name_or_class: str | type[ConnectorV2], piece: ConnectorV2) -> ConnectorV2:
        """Put `piece` right before the named one. Raises ValueError for an unknown name."""
        return self._insert(self.index_of(name_or_class), piece)

    def insert_after(self, name_or_class: str | type[ConnectorV2], piece: ConnectorV2) -> ConnectorV2:
        """Put `piece` right after the named one. Raises ValueError for an unknown name."""
        return self._insert(self.index_of(name_or_class) + 1, piece)

    def prepend(self, piece: ConnectorV2) -> ConnectorV2:
        """Put `piece` first."""
        return self._insert(0, piece)

    def append(self, piece: ConnectorV2) -> ConnectorV2:
        """Put `piece` last."""
        return self._insert(len(self.connectors), piece)

    def _insert(self, index: int, piece: ConnectorV2) -> ConnectorV2:
        self.connectors.insert(index, piece)
        self._recompute()
        return piece

    def __len__(self) -> int:
        return len(self.connectors)

    def __getitem__(self, which: int | str | type[ConnectorV2]) -> ConnectorV2:
        return self.connectors[which if isinstance(which, int) else self.index_of(which)]

    def __repr__(self) -> str:
        return f"ConnectorPipelineV2({', '.join(name for name, _ in self.named())})"

    # ---- spaces and state ----

    def _recompute(self) -> None:
        observations, actions = self._input_observation_space, self._input_action_space
        for piece in self.connectors:
            piece.input_action_space = actions
            piece.input_observation_space = observations
            observations, actions = piece.observation_space, piece.action_space
        self._observation_space, self._action_space = observations, actions

    def get_state(self) -> dict[str, Any]:
        """The state of each piece that has one, by unique name."""
        states = {name: piece.get_state() for name, piece in self.named()}
        return {name: state for name, state in states.items() if state}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Give each piece its state back. Raises ValueError for a name that no piece has."""
        pieces = dict(self.named())
        for name, part in state.items():
            if name not in pieces:
                raise ValueError(f"state for a piece {name!r}, not among {list(pieces)}")
            pieces[name].set_state(part)

    def reset_state(self) -> None:
        """Every piece forgets what it learned."""
        for piece in self.connectors:
            piece.reset_state()
