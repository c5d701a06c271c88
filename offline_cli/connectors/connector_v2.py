"""ConnectorV2, the base class of every piece between episodes and a module, and its state as bytes.

The call contract, the batch layout (`batch_items.py`) and the helpers are RLlib's, so that a piece written for RLlib runs here
after changing its import line. What differs: both spaces are set at once.

`state_to_bytes` and `state_from_bytes` store what the pieces of a pipeline learned as msgpack without pickle: plain values, and
arrays of numbers, bools or strings; tuples come back as lists. The same state gives the same bytes.

Options of a piece are the arguments that the constructors of a piece's class and of its bases name, and no others: every piece
takes `**kwargs`, for RLlib's sake, and would swallow whatever it is given.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, Final

from offline_cli.connectors.batch_items import Batch, BatchHelpers, Episodes, Items
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec.arrays import pack, unpack
from offline_cli.errors import BadData, BadPiece, SpaceMismatch
from offline_cli.spaces import Space, bounds_too_large

__all__ = [
    "AS_LEARNER",
    "NOTE",
    "SPACES",
    "Batch",
    "ConnectorV2",
    "Episodes",
    "Items",
    "Maker",
    "Signature",
    "TwoSidedPiece",
    "learns",
    "option_mistakes",
    "piece_of",
    "signature_of",
    "state_from_bytes",
    "state_to_bytes",
    "what_it_wants",
]


MAX_SHOWN: Final = 300  # letters
NOTE: Final = "in connector piece "  # of the notes by which pipelines say which piece an exception came from

Maker = Callable[..., Any]  # a class of pieces, or a function that makes some

SPACES: Final = ("input_observation_space", "input_action_space")
AS_LEARNER: Final = "as_learner_connector"


def what_it_wants(err: BaseException) -> str:
    """`ValueError: words`, on one line."""
    return f"{type(err).__name__}: {' '.join(str(err).split())}"[:MAX_SHOWN]


def piece_of(err: BaseException) -> str | None:
    """The unique name of the piece that raised, those of pipelines around it before it with dots; None: no piece did."""
    notes = [note.removeprefix(NOTE) for note in getattr(err, "__notes__", ()) if note.startswith(NOTE)]
    return ".".join(reversed(notes)) or None


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of a piece by name."""

    options: Mapping[str, bool]  # whether each must be given
    spaces: tuple[str, ...]  # of SPACES, those it cannot be made without
    takes_as_learner: bool  # whether it works in learner pipelines and in env-to-module ones, and is informed which


def signature_of(maker: Maker) -> Signature:
    """What a class of pieces takes, in its constructor and its bases' as long as they pass arguments on by name; of a builder
    of pieces, its keyword-only arguments.
    """
    named: dict[str, bool] = {}
    kinds = [base for base in inspect.getmro(maker) if "__init__" in vars(base)] if inspect.isclass(maker) else []
    for index, kind in enumerate(kinds):
        parameters = list(inspect.signature(vars(kind)["__init__"]).parameters.values())[1:]
        for p in parameters:
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                named.setdefault(p.name, p.default is p.empty and index == 0)
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    if not kinds:
        named = {p.name: p.default is p.empty for p in inspect.signature(maker).parameters.values() if p.kind is p.KEYWORD_ONLY}
    options = {name: needed for name, needed in named.items() if name not in (*SPACES, AS_LEARNER)}
    return Signature(options, tuple(name for name in SPACES if named.get(name)), AS_LEARNER in named)


def option_mistakes(signature: Signature, given: Collection[str]) -> list[str]:
    """Mistakes in the names of options; empty when there are none."""
    found = []
    for name in given:
        if name not in signature.options:
            near = get_close_matches(name, signature.options, n=1)
            known = ", ".join(signature.options) or "none"
            found.append(f"unknown option '{name}'" + (f", did you mean '{near[0]}'?" if near else f" (it has: {known})"))
    missing = [name for name, needed in signature.options.items() if needed and name not in given]
    return found + [f"needs the option '{name}'" for name in missing]


class ConnectorV2(BatchHelpers, ABC):
    """Base class of pieces: a callable that takes a batch and episodes and returns the batch.

    `whole_arrays`: the piece has a second form, for an `EpisodeBatch`: it reads the arrays, and never writes into them. All
    pieces of a pipeline get the same form: arrays where each of them has that form, else the same list of episodes.

    `writes_episodes`: the piece changes the episodes it is given. With lists it does so in place; with an `EpisodeBatch`
    `on_episode_batch` gives the changed ones.

    `per_episode`: what becomes of an episode follows from that episode, and from the piece's state, alone; so `train-bc
    --streaming` may hand it a part of the episodes at a time. Each class says it for itself; those of this package need not.

    `frozen`: the piece must not learn from what it is called with. A piece that learns keeps what it learned in `get_state` and
    `set_state`, and learns only while `not self.frozen` (docs/connectors.md, "A piece that learns").
    """

    whole_arrays: ClassVar[bool] = False
    writes_episodes: ClassVar[bool] = False
    per_episode: ClassVar[bool] = False
    frozen: bool = False
    aliases: ClassVar[tuple[str, ...]] = ()  # further names that pipelines find the piece by
    stacks: ClassVar[bool] = False  # pieces after this one find columns of arrays

    def __init__(
        self, input_observation_space: Space | None = None, input_action_space: Space | None = None, **standard: Any
    ) -> None:
        """`standard`: options that RLlib's builders give to any piece, whether it has a use for them or not.

        Raises BadPiece, which is a TypeError, for others: no constructor before this one has taken them.
        """
        if unknown := standard.keys() - {"as_learner_connector", "multi_agent"}:
            mistakes = [one for one in option_mistakes(signature_of(type(self)), unknown) if one.startswith("unknown")]
            fix = "correct the name; a class of your own takes its options out of what it passes on to super().__init__"
            raise self.bad(f"{type(self).__name__}: {'; '.join(mistakes)}", fix=fix)
        self.set_input_spaces(input_observation_space, input_action_space)

    @abstractmethod
    def __call__(
        self,
        *,
        rl_module: Any,
        batch: Batch,
        episodes: Episodes,
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
        **kwargs: Any,
    ) -> Batch:
        """The batch, changed in place or new."""

    def on_episode_batch(self, *, batch: Batch, episodes: EpisodeBatch, **call: Any) -> tuple[Batch, EpisodeBatch]:
        """As `__call__`, for arrays of an EpisodeBatch; returns the batch and the episodes for later pieces."""
        return self(batch=batch, episodes=episodes, **call), episodes

    def takes_arrays(self) -> bool:
        """Whether the piece has the form for an `EpisodeBatch`."""
        return self.whole_arrays

    @property
    def looks_back(self) -> int:
        """How many past steps the piece needs when it plays."""
        return 0

    def to_torch(self) -> Any:
        """The piece as a torch module for ONNX export (`torch_forms.py`); None: the piece cannot be exported."""
        return None

    def bad(self, what: str, *, fix: str) -> BadPiece:
        """The error for a piece that gets or has something it should not."""
        return BadPiece(what, where=f"piece {type(self).__name__}", fix=fix)

    # ---- spaces ----

    def recompute_output_observation_space(self, input_observation_space: Space, input_action_space: Space) -> Space:
        """The space of observations after this piece; a piece that changes shapes overrides this. Called by position."""
        space: Space = self.recompute_observation_space_from_input_spaces()
        return space

    def recompute_output_action_space(self, input_observation_space: Space, input_action_space: Space) -> Space:
        """The space of actions after this piece. Called by position."""
        space: Space = self.recompute_action_space_from_input_spaces()
        return space

    def recompute_observation_space_from_input_spaces(self) -> Any:
        """RLlib's older spelling, which looks at `self.input_observation_space` and `self.input_action_space`."""
        return self.input_observation_space

    def recompute_action_space_from_input_spaces(self) -> Any:
        """RLlib's older spelling, which looks at `self.input_observation_space` and `self.input_action_space`."""
        return self.input_action_space

    def set_input_spaces(self, observations: Space | None, actions: Space | None) -> None:
        """Set both spaces before this piece (None: not known yet), and work out those after it.

        Raises what the hooks raise: SpaceMismatch from our own pieces.
        """
        self._input_observation_space, self._input_action_space = observations, actions
        self._observation_space: Space | None = None
        self._action_space: Space | None = None
        if observations is not None:  # RLlib calls the hook with one space missing, too
            self._observation_space = self.recompute_output_observation_space(observations, actions)  # type: ignore[arg-type]
        if actions is not None:
            self._action_space = self.recompute_output_action_space(observations, actions)  # type: ignore[arg-type]

    def misfit(self, got: Any, wanted: str, *, fix: str = "another order of pieces, or another piece") -> SpaceMismatch:
        """The error for spaces that this piece cannot take, to be raised by the hooks."""
        name = type(self).__name__
        return SpaceMismatch(f"{name} got {got}, and wants {wanted}", where=f"piece {name}", fix=fix)

    def check_size(self, shape: Sequence[int], *, itemsize: int = 4) -> None:
        """Raise SpaceMismatch where the bounds of observations of `shape` would take over 64 MiB, before any are made.

        For the hooks: options come from files, and `num_frames = 2000000000` would take all memory there is.
        """
        if bounds_too_large(shape, itemsize):
            got = f"observations to make of shape {list(shape)}"[:200]
            raise self.misfit(got, "at most 64 MiB of bounds", fix="smaller options")

    @property
    def input_observation_space(self) -> Space | None:
        """The space of observations before this piece; None: not known yet."""
        return self._input_observation_space

    @input_observation_space.setter
    def input_observation_space(self, value: Space | None) -> None:
        self.set_input_spaces(value, self._input_action_space)

    @property
    def input_action_space(self) -> Space | None:
        """The space of actions before this piece; None: not known yet."""
        return self._input_action_space

    @input_action_space.setter
    def input_action_space(self, value: Space | None) -> None:
        self.set_input_spaces(self._input_observation_space, value)

    @property
    def observation_space(self) -> Space | None:
        """The space of observations after this piece."""
        return self._observation_space

    @property
    def action_space(self) -> Space | None:
        """The space of actions after this piece."""
        return self._action_space

    # ---- state ----

    def get_state(self, components: Any = None, *, not_components: Any = None, **_: Any) -> dict[str, Any]:
        """State learned from data: plain values and arrays by name, saved with the policy.

        `components` and `not_components` choose pieces of a pipeline by name; a single piece has none.
        """
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned. Raises BadPiece for unknown names."""
        if not isinstance(state, Mapping) or state:  # a state may come from a file
            what = f"{type(self).__name__} has no state, yet was given {state!r}"[:300]
            raise self.bad(what, fix="the pipeline that the state was saved from")

    def reset_state(self) -> None:  # most pieces learn nothing, so most have nothing to forget
        """Forget what was learned from data."""

    def freeze(self) -> None:
        """Stop learning from data; call it before held-out data or an evaluation."""
        self.frozen = True

    def __repr__(self) -> str:
        return type(self).__name__


class TwoSidedPiece(ConnectorV2):
    """A piece that works in learner pipelines (`as_learner_connector`) and beside an environment."""

    def __init__(self, *spaces: Space | None, as_learner_connector: bool = False, **kwargs: Any) -> None:
        """`spaces`: of observations and of actions, before the piece."""
        self._as_learner_connector = as_learner_connector
        super().__init__(*spaces, **kwargs)


def learns(piece: ConnectorV2) -> bool:
    """Whether the piece learns from the episodes it sees: its class has a state."""
    return type(piece).get_state is not ConnectorV2.get_state


def state_to_bytes(state: Mapping[str, Any], *, where: str) -> bytes:
    """A pipeline's state, by unique name of piece. Raises BadPiece, naming the piece, for what has no form in bytes."""
    for name, part in state.items():
        try:
            pack(part)
        except (TypeError, ValueError, OverflowError) as err:
            fix = "give numbers, text, lists, dicts and arrays in its get_state"
            raise BadPiece(f"the state of piece {name} cannot be saved: {err}", where=where, fix=fix) from err
    return pack(dict(state))


def state_from_bytes(data: bytes, *, where: str) -> dict[str, Any]:
    """The state in `data`, for `set_state` of the pipeline. Raises BadData, UnsafeData for bytes that would build objects."""
    state = unpack(data, where=where)
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise BadData("no state of a pipeline", where=where, fix="write the file again from its source")
    return state
