"""ConnectorPipelineV2: a sequence of pieces, called on arrays or on a list of episodes.

Each piece has a unique name in the pipeline (`ClipRewards`, `ClipRewards_2`), which keys its state. The chain of spaces is
computed whenever pieces change, before any data is read; errors name the piece that cannot take the spaces before it.
UnknownPiece is raised for a name that no piece has.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, overload

import gymnasium as gym

from offline_cli.connectors.connector_v2 import NOTE, Batch, ConnectorV2, Episodes, what_it_wants
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadPiece, OfflineCliError, SpaceMismatch, UnknownPiece
from offline_cli.spaces import Space

__all__ = ["ConnectorPipelineV2"]

NameOrClass = str | type[ConnectorV2]


class ConnectorPipelineV2(ConnectorV2):
    """Pieces in order; itself a piece, so pipelines nest."""

    def __init__(self, *spaces: Space | None, connectors: Iterable[ConnectorV2] | None = None, **kwargs: Any) -> None:
        """`spaces`: observation and action space before the first piece."""
        self.connectors = [self._checked(piece) for piece in connectors or ()]
        super().__init__(*spaces, **kwargs)

    def _checked(self, piece: Any) -> ConnectorV2:
        if isinstance(piece, ConnectorV2):
            return piece
        fix = "pass instances of subclasses of offline_cli.ConnectorV2"
        raise BadPiece(f"{piece!r} is not a ConnectorV2", where=type(self).__name__, fix=fix)

    # ---- calls ----

    def __call__(self, *, episodes: Episodes, batch: Batch | None = None, **call: Any) -> Batch:
        """The batch after the last piece. The keywords are those of a piece, all optional.

        Every piece gets `metrics`. Raises BadPiece, naming the piece, if one returns no batch; exceptions from pieces pass
        through with a note that names the piece.
        """
        current = {} if batch is None else batch
        for _, after, _left in self.stepwise(batch=current, episodes=episodes, **call):
            current = after
        return current

    def on_episode_batch(self, *, batch: Batch, episodes: EpisodeBatch, **call: Any) -> tuple[Batch, EpisodeBatch]:
        """Run as a nested pipeline: later pieces get the episodes as its pieces changed them."""
        left: Any = episodes
        for _, after, changed in self.stepwise(batch=batch, episodes=episodes, **call):
            batch, left = after, changed
        return batch, left

    def stepwise(self, *, episodes: Episodes, batch: Batch | None = None, **call: Any) -> Iterator[tuple[str, Batch, Episodes]]:
        """Run piece by piece; yield the piece's unique name, the batch, and the episodes that later pieces see.

        The next piece works on the same objects: do not change them. Raises like `__call__`.
        """
        call = {"rl_module": None, "explore": None, "metrics": None, **call}
        call["shared_data"] = {} if call.get("shared_data") is None else call["shared_data"]
        found, left = {} if batch is None else batch, self._prepared(episodes)
        for name, piece in self.named():
            found, left = self._step(name, piece, found, left, call)
            yield name, found, left

    def takes_arrays(self) -> bool:
        """Whether all pieces up to the stacking piece take arrays; from there on columns are arrays either way."""
        if type(self).__call__ is not ConnectorPipelineV2.__call__:
            return False
        for piece in self.connectors:
            if not piece.takes_arrays() or piece.stacks:
                return piece.takes_arrays()
        return True

    def _prepared(self, episodes: Episodes) -> Episodes:
        """The episodes as an EpisodeBatch if the pieces take arrays, else as a list."""
        return list(episodes) if isinstance(episodes, EpisodeBatch) and not self.takes_arrays() else episodes

    def _step(self, name: str, piece: ConnectorV2, batch: Any, episodes: Any, call: dict[str, Any]) -> tuple[Batch, Any]:
        """Run one piece. Its exceptions get a note but are not wrapped, so that users can catch and debug their own."""
        try:
            if isinstance(episodes, EpisodeBatch) and piece.takes_arrays():
                batch, episodes = piece.on_episode_batch(batch=batch, episodes=episodes, **call)
            else:
                episodes = list(episodes) if isinstance(episodes, EpisodeBatch) else episodes
                batch = piece(batch=batch, episodes=episodes, **call)
        except Exception as err:
            err.add_note(f"{NOTE}{name}")
            raise
        if not isinstance(batch, dict):
            what = f"piece {name} returned {type(batch).__name__}, not the batch"
            raise BadPiece(what, where=f"{type(self).__name__}, piece {name}", fix="end its __call__ with `return batch`")
        return batch, episodes

    # ---- pieces by name ----

    def named(self) -> Iterator[tuple[str, ConnectorV2]]:
        """Each (unique name, piece): the class name, followed by _2, _3, ... if the class repeats."""
        seen: dict[str, int] = {}
        for piece in self.connectors:
            kind = type(piece).__name__
            seen[kind] = seen.get(kind, 0) + 1
            yield (kind if seen[kind] == 1 else f"{kind}_{seen[kind]}"), piece

    def pieces(self) -> Iterator[ConnectorV2]:
        """Each piece, including those of nested pipelines, in order."""
        for piece in self.connectors:
            yield from piece.pieces() if isinstance(piece, ConnectorPipelineV2) else [piece]

    def index_of(self, name_or_class: NameOrClass) -> int:
        """Index of the first piece with that unique name or class. Raises UnknownPiece, listing the names."""
        for index, (name, piece) in enumerate(self.named()):
            if name == name_or_class or type(piece) is name_or_class or name_or_class in piece.aliases:
                return index
        raise self._unknown("no piece", name_or_class if isinstance(name_or_class, str) else name_or_class.__name__)

    def _unknown(self, what: str, wanted: str) -> UnknownPiece:
        names = [name for name, _ in self.named()]
        near = difflib.get_close_matches(wanted, names, n=2, cutoff=0.5)
        fix = f"did you mean {' or '.join(near)}?" if near else "use one of these names"
        return UnknownPiece(f"{what} {wanted!r} among {names}", where=type(self).__name__, fix=fix)

    def remove(self, name_or_class: NameOrClass) -> ConnectorV2:
        """Remove and return a piece. Raises UnknownPiece."""
        index = self.index_of(name_or_class)
        removed = self.connectors[index]
        self._become([*self.connectors[:index], *self.connectors[index + 1 :]])
        return removed

    def insert_before(self, name_or_class: NameOrClass, connector: ConnectorV2) -> ConnectorV2:
        """Insert `connector` before the named piece; return the named piece. Raises UnknownPiece."""
        index = self.index_of(name_or_class)
        self._insert(index, connector)
        return self.connectors[index + 1]

    def insert_after(self, name_or_class: NameOrClass, connector: ConnectorV2) -> ConnectorV2:
        """Insert `connector` after the named piece; return the named piece. Raises UnknownPiece."""
        index = self.index_of(name_or_class)
        self._insert(index + 1, connector)
        return self.connectors[index]

    def prepend(self, connector: ConnectorV2) -> None:
        """Insert `connector` at the start."""
        self._insert(0, connector)

    def append(self, connector: ConnectorV2) -> None:
        """Append `connector`."""
        self._insert(len(self.connectors), connector)

    def _insert(self, index: int, connector: ConnectorV2) -> None:
        self._become([*self.connectors[:index], self._checked(connector), *self.connectors[index:]])

    def _become(self, connectors: list[ConnectorV2]) -> None:
        self.connectors = connectors
        self.set_input_spaces(self._input_observation_space, self._input_action_space)

    def __len__(self) -> int:
        return len(self.connectors)

    @overload
    def __getitem__(self, key: int | str) -> ConnectorV2: ...
    @overload
    def __getitem__(self, key: slice | type[ConnectorV2]) -> list[ConnectorV2]: ...
    def __getitem__(self, key: int | str | slice | type[ConnectorV2]) -> ConnectorV2 | list[ConnectorV2]:
        """The piece at an index or with a unique name; a list for a slice, or for a class (subclasses included).

        Raises UnknownPiece for names and classes that no piece has.
        """
        if isinstance(key, (int, slice)):
            return self.connectors[key]
        if isinstance(key, str):
            return self.connectors[self.index_of(key)]
        found = [piece for piece in self.connectors if isinstance(piece, key)]
        if not found:
            raise self._unknown("no piece", key.__name__)
        return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(name for name, _ in self.named())})"

    # ---- spaces and state ----

    def set_input_spaces(self, observations: Space | None, actions: Space | None) -> None:
        """Pass the spaces through all pieces. Raises SpaceMismatch, naming the first piece that cannot take them."""
        self._input_observation_space, self._input_action_space = observations, actions
        for name, piece in self.named():
            _set_spaces(name, piece, observations, actions)
            observations, actions = piece.observation_space, piece.action_space
        self._observation_space, self._action_space = observations, actions

    def get_state(self) -> dict[str, Any]:
        """The non-empty states by unique name."""
        return {name: state for name, piece in self.named() if (state := piece.get_state())}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of each piece. Raises UnknownPiece for a name that no piece has, before changing anything."""
        pieces = self._with_states(state)
        for name, part in state.items():
            pieces[name].set_state(part)

    def _with_states(self, names: Iterable[str]) -> dict[str, ConnectorV2]:
        """All pieces by name. Raises UnknownPiece if no piece has one of `names`."""
        pieces = dict(self.named())
        for name in names:
            if name not in pieces:
                raise self._unknown("state for a piece", name)
        return pieces

    def reset_state(self) -> None:
        """Reset the learned state of every piece."""
        for piece in self.connectors:
            piece.reset_state()

    def freeze(self) -> None:
        """Freeze every piece: none learns any more."""
        for piece in self.connectors:
            piece.freeze()
            piece.frozen = True  # its class may override `freeze`


def _set_spaces(name: str, piece: ConnectorV2, observations: Space | None, actions: Space | None) -> None:
    """Set a piece's spaces; turn any exception of its hooks into an error that names the piece and its input."""
    place = f"piece {name}"
    try:
        piece.set_input_spaces(observations, actions)
    except OfflineCliError as err:
        err.where = place
        raise
    except MemoryError:
        raise
    except Exception as err:  # hooks are user code and may raise anything
        what = f"{place} cannot take observations {observations} and actions {actions} ({what_it_wants(err)})"
        raise SpaceMismatch(what, where=place, fix="reorder the pieces, or use another one") from err
    for space, given in ((piece.observation_space, observations), (piece.action_space, actions)):
        if given is not None and not isinstance(space, gym.Space):
            what = f"{place} turned {given} into {space!r}, which is not a space"
            raise SpaceMismatch(what, where=place, fix="return a gymnasium space from its recompute_output_... hooks")
