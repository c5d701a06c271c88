"""ConnectorV2, the base class of every piece between episodes and a module; serialization of its state.

The call contract, the batch layout (`batch_items.py`) and the helpers are RLlib's, so that a piece written for RLlib runs here
after changing its import line. One difference: both spaces are set at once.

`state_to_bytes` and `state_from_bytes` serialize the learned state of a pipeline as msgpack without pickle: plain values, and
arrays of numbers, bools or strings; tuples come back as lists. Equal states give equal bytes.

The options of a piece are the named arguments of its constructor and its base classes' constructors. Other names are rejected,
although every piece takes `**kwargs` for RLlib's sake.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, Final

from offline_cli.connectors.batch_items import Batch, BatchHelpers, Episodes, Items
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec.arrays import pack, unpack
from offline_cli.errors import BadData, BadPiece, SpaceMismatch
from offline_cli.spaces import Space

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


MAX_SHOWN: Final = 300  # characters
NOTE: Final = "in connector piece "  # prefix of the exception note that names the piece

Maker = Callable[..., Any]  # a piece class, or a function that builds pieces

SPACES: Final = ("input_observation_space", "input_action_space")
AS_LEARNER: Final = "as_learner_connector"


def what_it_wants(err: BaseException) -> str:
    """`ValueError: message`, on one line."""
    return f"{type(err).__name__}: {' '.join(str(err).split())}"[:MAX_SHOWN]


def piece_of(err: BaseException) -> str | None:
    """The dotted unique name of the piece that raised, outer pipelines first; None if no piece did."""
    notes = [note.removeprefix(NOTE) for note in getattr(err, "__notes__", ()) if note.startswith(NOTE)]
    return ".".join(reversed(notes)) or None


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of a piece by name."""

    options: Mapping[str, bool]  # True: required
    spaces: tuple[str, ...]  # those of SPACES that its constructor requires
    takes_as_learner: bool  # has `as_learner_connector`: works in learner and in env-to-module pipelines


def signature_of(maker: Maker) -> Signature:
    """The arguments of a piece class: of its constructor, and of its bases' constructors as long as they forward `**kwargs`.
    For a builder function: its keyword-only arguments.
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
    """Messages for unknown and missing options; empty if all are right."""
    mistakes = []
    for name in given:
        if name not in signature.options:
            near = get_close_matches(name, signature.options, n=1)
            known = ", ".join(signature.options) or "none"
            mistakes.append(f"unknown option '{name}'" + (f", did you mean '{near[0]}'?" if near else f" (it has: {known})"))
    missing = [name for name, needed in signature.options.items() if needed and name not in given]
    return mistakes + [f"needs the option '{name}'" for name in missing]


class ConnectorV2(BatchHelpers, ABC):
    """Base class of pieces: a callable that takes a batch and episodes and returns the batch.

    `whole_arrays`: the piece also takes an `EpisodeBatch`, whose arrays it must not change. All pieces of a pipeline get the
    same form: arrays if every piece takes them, else a list of episodes.

    `writes_episodes`: the piece changes episodes: in place in a list; for an `EpisodeBatch`, `on_episode_batch` returns changed
    episodes.

    `per_episode`: the result for an episode depends only on that episode and the piece's state, so `train-bc --streaming` may
    pass some of the episodes at a time. Each class must set it itself; those of this package need not.

    `frozen`: the piece must not learn. A piece that learns has `get_state` and `set_state`, and learns only while
    `not self.frozen` (docs/howto/pipelines.md, "A piece that learns").
    """

    whole_arrays: ClassVar[bool] = False
    writes_episodes: ClassVar[bool] = False
    per_episode: ClassVar[bool] = False
    frozen: bool = False
    aliases: ClassVar[tuple[str, ...]] = ()  # further names of the piece in pipelines
    stacks: ClassVar[bool] = False  # columns are arrays after this piece

    def __init__(
        self, input_observation_space: Space | None = None, input_action_space: Space | None = None, **standard: Any
    ) -> None:
        """`standard`: options that RLlib's builders pass to every piece, used or not.

        Raises BadPiece, which is a TypeError, for any other option.
        """
        if unknown := standard.keys() - {"as_learner_connector", "multi_agent"}:
            mistakes = [one for one in option_mistakes(signature_of(type(self)), unknown) if one.startswith("unknown")]
            fix = "correct the name; your own class must not pass its options on to super().__init__"
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
        """Like `__call__`, for an EpisodeBatch; return the batch and the episodes for later pieces."""
        return self(batch=batch, episodes=episodes, **call), episodes

    def takes_arrays(self) -> bool:
        """Whether the piece takes an `EpisodeBatch`."""
        return self.whole_arrays

    @property
    def looks_back(self) -> int:
        """Number of past steps that the piece needs while playing."""
        return 0

    def to_torch(self) -> Any:
        """The piece as a torch module for ONNX export (`torch_forms.py`); None if it cannot be exported."""
        return None

    def bad(self, what: str, *, fix: str) -> BadPiece:
        """A BadPiece error that names this piece."""
        return BadPiece(what, where=f"piece {type(self).__name__}", fix=fix)

    # ---- spaces ----

    def recompute_output_observation_space(self, input_observation_space: Space, input_action_space: Space) -> Space:
        """The observation space after this piece; override it if the piece changes shapes. Called with positional arguments."""
        space: Space = self.recompute_observation_space_from_input_spaces()
        return space

    def recompute_output_action_space(self, input_observation_space: Space, input_action_space: Space) -> Space:
        """The action space after this piece. Called with positional arguments."""
        space: Space = self.recompute_action_space_from_input_spaces()
        return space

    def recompute_observation_space_from_input_spaces(self) -> Any:
        """RLlib's older hook, which reads `self.input_observation_space` and `self.input_action_space`."""
        return self.input_observation_space

    def recompute_action_space_from_input_spaces(self) -> Any:
        """RLlib's older hook, which reads `self.input_observation_space` and `self.input_action_space`."""
        return self.input_action_space

    def set_input_spaces(self, observations: Space | None, actions: Space | None) -> None:
        """Set both spaces before this piece (None: unknown), and compute those after it.

        Raises what the hooks raise; our own pieces raise SpaceMismatch.
        """
        self._input_observation_space, self._input_action_space = observations, actions
        self._observation_space: Space | None = None
        self._action_space: Space | None = None
        if observations is not None:  # RLlib also calls the hook with one space missing
            self._observation_space = self.recompute_output_observation_space(observations, actions)  # type: ignore[arg-type]
        if actions is not None:
            self._action_space = self.recompute_output_action_space(observations, actions)  # type: ignore[arg-type]

    def misfit(self, got: Any, wanted: str, *, fix: str = "reorder the pieces, or use another one") -> SpaceMismatch:
        """A SpaceMismatch error for spaces that this piece cannot take, for the hooks to raise."""
        name = type(self).__name__
        return SpaceMismatch(f"{name} got {got}, but needs {wanted}", where=f"piece {name}", fix=fix)

    @property
    def input_observation_space(self) -> Space | None:
        """The observation space before this piece; None if unknown."""
        return self._input_observation_space

    @input_observation_space.setter
    def input_observation_space(self, value: Space | None) -> None:
        self.set_input_spaces(value, self._input_action_space)

    @property
    def input_action_space(self) -> Space | None:
        """The action space before this piece; None if unknown."""
        return self._input_action_space

    @input_action_space.setter
    def input_action_space(self, value: Space | None) -> None:
        self.set_input_spaces(self._input_observation_space, value)

    @property
    def observation_space(self) -> Space | None:
        """The observation space after this piece."""
        return self._observation_space

    @property
    def action_space(self) -> Space | None:
        """The action space after this piece."""
        return self._action_space

    # ---- state ----

    def get_state(self) -> dict[str, Any]:
        """Learned state: plain values and arrays by name, saved with the policy."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned. Raises BadPiece for unknown names."""
        if not isinstance(state, Mapping) or state:  # a state may come from a file
            what = f"{type(self).__name__} has no state, but was given {state!r}"[:300]
            raise self.bad(what, fix="use the pipeline that saved the state")

    def reset_state(self) -> None:  # empty: most pieces learn nothing
        """Reset the learned state."""

    def freeze(self) -> None:
        """Stop learning from data; call it before held-out data or an evaluation."""
        self.frozen = True

    def __repr__(self) -> str:
        return type(self).__name__


class TwoSidedPiece(ConnectorV2):
    """A piece that works in learner pipelines (`as_learner_connector`) and in env-to-module pipelines."""

    def __init__(self, *spaces: Space | None, as_learner_connector: bool = False, **kwargs: Any) -> None:
        """`spaces`: observation and action space before the piece."""
        self._as_learner_connector = as_learner_connector
        super().__init__(*spaces, **kwargs)


def learns(piece: ConnectorV2) -> bool:
    """Whether the piece learns from episodes, that is, its class overrides `get_state`."""
    return type(piece).get_state is not ConnectorV2.get_state


def state_to_bytes(state: Mapping[str, Any], *, where: str) -> bytes:
    """Serialize a pipeline's state, keyed by piece name. Raises BadPiece, naming the piece, for unsupported values."""
    for name, part in state.items():
        try:
            pack(part)
        except (TypeError, ValueError, OverflowError) as err:
            fix = "return numbers, strings, lists, dicts and arrays from its get_state"
            raise BadPiece(f"the state of piece {name} cannot be saved: {err}", where=where, fix=fix) from err
    return pack(dict(state))


def state_from_bytes(data: bytes, *, where: str) -> dict[str, Any]:
    """Deserialize a state for the pipeline's `set_state`. Raises BadData; UnsafeData for bytes that would build objects."""
    state = unpack(data, where=where)
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise BadData("not a pipeline state", where=where, fix="write the file again from its source")
    return state
