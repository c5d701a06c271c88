"""ConnectorPipelineV2: pieces called one after the other, on arrays or on a list of episodes.

State is keyed by a name that is unique within the pipeline (`ClipRewards`, `ClipRewards_2`), so two pieces of one class keep
two states. The chain of spaces is computed whenever pieces change,
before any data is read; the error names the piece that cannot take what precedes it. A name that no piece has raises
UnknownPiece.
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
        """`spaces`: of observations and of actions, before the first piece."""
        self.connectors = [self._checked(piece) for piece in connectors or ()]
        super().__init__(*spaces, **kwargs)

    def _checked(self, piece: Any) -> ConnectorV2:
        if isinstance(piece, ConnectorV2):
            return piece
        fix = "instances of classes that derive from offline_cli.ConnectorV2"
        raise BadPiece(f"{piece!r} is not a ConnectorV2", where=type(self).__name__, fix=fix)

    # ---- calls ----

    def __call__(self, *, episodes: Episodes, batch: Batch | None = None, **call: Any) -> Batch:
        """The batch after the last piece; keywords as of any piece, and all of them optional.

        `metrics` is handed to every piece. Raises BadPiece, naming the piece, where one gives no batch; errors of pieces pass
        through, with a note that names the piece.
        """
        found = {} if batch is None else batch
        for _, after, _left in self.stepwise(batch=found, episodes=episodes, **call):
            found = after
        return found

    def on_episode_batch(self, *, batch: Batch, episodes: EpisodeBatch, **call: Any) -> tuple[Batch, EpisodeBatch]:
        """Run as a nested pipeline: pieces after it see what its pieces changed in the episodes."""
        left: Any = episodes
        for _, after, changed in self.stepwise(batch=batch, episodes=episodes, **call):
            batch, left = after, changed
        return batch, left

    def stepwise(self, *, episodes: Episodes, batch: Batch | None = None, **call: Any) -> Iterator[tuple[str, Batch, Episodes]]:
        """Run piece by piece; yields the piece's unique name, the batch, and the episodes as later pieces see them.

        Both are the ones that the next piece works on: look, and leave them as they are. Raises what a call raises.
        """
        call = {"rl_module": None, "explore": None, "metrics": None, **call}
        call["shared_data"] = {} if call.get("shared_data") is None else call["shared_data"]
        found, left = {} if batch is None else batch, self._prepared(episodes)
        for name, piece in self.named():
            found, left = self._step(name, piece, found, left, call)
            yield name, found, left

    def takes_arrays(self) -> bool:
        """Whether all pieces up to the stacking one take arrays; after it both forms have the same columns."""
        if type(self).__call__ is not ConnectorPipelineV2.__call__:
            return False
        for piece in self.connectors:
            if not piece.takes_arrays() or piece.stacks:
                return piece.takes_arrays()
        return True

    def _prepared(self, episodes: Episodes) -> Episodes:
        """The episodes as the pieces get them."""
        return list(episodes) if isinstance(episodes, EpisodeBatch) and not self.takes_arrays() else episodes

    def _step(self, name: str, piece: ConnectorV2, batch: Any, episodes: Any, call: dict[str, Any]) -> tuple[Batch, Any]:
        """One piece. Its errors stay what they are: they may be the user's own, and debuggers want them whole."""
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
            what = f"piece {name} gave {type(batch).__name__}, not the batch"
            raise BadPiece(what, where=f"{type(self).__name__}, piece {name}", fix="end its __call__ with `return batch`")
        return batch, episodes

    # ---- pieces by name ----

    def named(self) -> Iterator[tuple[str, ConnectorV2]]:
        """Each (unique name, piece): the class name, with _2, _3, ... where a class comes again."""
        seen: dict[str, int] = {}
        for piece in self.connectors:
            kind = type(piece).__name__
            seen[kind] = seen.get(kind, 0) + 1
            yield (kind if seen[kind] == 1 else f"{kind}_{seen[kind]}"), piece

    def pieces(self) -> Iterator[ConnectorV2]:
        """Each piece, those of nested pipelines in their places."""
        for piece in self.connectors:
            yield from piece.pieces() if isinstance(piece, ConnectorPipelineV2) else [piece]

    def index_of(self, name_or_class: NameOrClass) -> int:
        """Where the first piece of that unique name or class is. Raises UnknownPiece with the names there are."""
        for index, (name, piece) in enumerate(self.named()):
            if name == name_or_class or type(piece) is name_or_class or name_or_class in piece.aliases:
                return index
        raise self._unknown("no piece", name_or_class if isinstance(name_or_class, str) else name_or_class.__name__)

    def _unknown(self, what: str, wanted: str) -> UnknownPiece:
        names = [name for name, _ in self.named()]
        near = difflib.get_close_matches(wanted, names, n=2, cutoff=0.5)
        fix = f"did you mean {' or '.join(near)}?" if near else "one of these names"
        return UnknownPiece(f"{what} {wanted!r} among {names}", where=type(self).__name__, fix=fix)

    def remove(self, name_or_class: NameOrClass) -> ConnectorV2:
        """Remove and return a piece. Raises UnknownPiece."""
        index = self.index_of(name_or_class)
        removed = self.connectors[index]
        self._become([*self.connectors[:index], *self.connectors[index + 1 :]])
        return removed

    def insert_before(self, name_or_class: NameOrClass, connector: ConnectorV2) -> ConnectorV2:
        """Insert `connector` before the named piece, and return the latter. Raises UnknownPiece."""
        index = self.index_of(name_or_class)
        self._insert(index, connector)
        return self.connectors[index + 1]

    def insert_after(self, name_or_class: NameOrClass, connector: ConnectorV2) -> ConnectorV2:
        """Insert `connector` after the named piece, and return the latter. Raises UnknownPiece."""
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
        """The piece at an index or of a unique name; a list of them for a slice, or for a class (subclasses included).

        Raises UnknownPiece for names and classes that are not there.
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
        """Chain the spaces through all pieces. Raises SpaceMismatch, naming the first piece that cannot take them."""
        self._input_observation_space, self._input_action_space = observations, actions
        for name, piece in self.named():
            _set_spaces(name, piece, observations, actions)
            observations, actions = piece.observation_space, piece.action_space
        self._observation_space, self._action_space = observations, actions

    def get_state(
        self,
        components: str | Iterable[str] | None = None,
        *,
        not_components: str | Iterable[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The state of each piece that has one, by unique name; of those named alone, or of all but those."""
        wanted, refused = ({one} if isinstance(one, str) else one and set(one) for one in (components, not_components))
        chosen = [
            (name, piece) for name, piece in self.named() if (wanted is None or name in wanted) and name not in (refused or ())
        ]
        return {name: state for name, piece in chosen if (state := piece.get_state(**kwargs))}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Give each piece its state back. Raises UnknownPiece, nothing changed, for a name that no piece has."""
        pieces = self._with_states(state)
        for name, part in state.items():
            pieces[name].set_state(part)

    def _with_states(self, names: Iterable[str]) -> dict[str, ConnectorV2]:
        """Every piece by name. Raises UnknownPiece for one of `names` that no piece has."""
        pieces = dict(self.named())
        for name in names:
            if name not in pieces:
                raise self._unknown("state for a piece", name)
        return pieces

    def reset_state(self) -> None:
        """Every piece forgets what it learned."""
        for piece in self.connectors:
            piece.reset_state()

    def freeze(self) -> None:
        """No piece learns any more."""
        for piece in self.connectors:
            piece.freeze()
            piece.frozen = True  # where its class overrides `freeze`, too


def _set_spaces(name: str, piece: ConnectorV2, observations: Space | None, actions: Space | None) -> None:
    """Set them, and turn whatever a hook raises into an error that names the piece and what it got."""
    place = f"piece {name}"
    try:
        piece.set_input_spaces(observations, actions)
    except OfflineCliError as err:
        err.where = place
        raise
    except Exception as err:  # hooks are the user's code: they assert, or trip over a space they do not know
        what = f"{place} cannot take observations {observations} and actions {actions} ({what_it_wants(err)})"
        raise SpaceMismatch(what, where=place, fix="another order of pieces, or another piece") from err
    for space, given in ((piece.observation_space, observations), (piece.action_space, actions)):
        if given is not None and not isinstance(space, gym.Space):
            what = f"{place} turned {given} into {space!r}, which is not a space"
            raise SpaceMismatch(what, where=place, fix="return a gymnasium space from its recompute_output_... hooks")
