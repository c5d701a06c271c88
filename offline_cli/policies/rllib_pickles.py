"""Opens the pickles of a checkpoint of RLlib's, whose maker the user trusts, as the versions of Ray since 2.40 wrote them.

Ray 2.40 keeps a module's state in `module_state.pt`, a pickle all the same, which no later version looks for; and several
classes have got other names since then. What is loaded here runs code: nothing is opened unless `trust_pickle` was given.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Final

from offline_cli.episodes.codec.arrays import unpack
from offline_cli.errors import BadData
from offline_cli.storage.local_files import read_plain

__all__ = ["CLASS", "OF_2_40", "module_of_2_40", "state_of_piece", "unpickled"]

CLASS: Final = "class_and_ctor_args.pkl"
OF_2_40: Final = "module_state.pt"
FIX: Final = "save it again with the installed version of RLlib"
ARRAYS: Final = "with Ray 2.40, write its state dict as safetensors, and a module.json beside it (docs/export.md)"
RLLIB: Final = "ray.rllib."
MOVED: Final = {  # (module, class), and where later versions have it
    ("connectors.common.frame_stacking", "_FrameStacking"): ("connectors.common.frame_stacking", "FrameStacking"),  # to 2.48
    ("algorithms.bc.torch.bc_torch_rl_module", "BCTorchRLModule"): (  # this and the following: 2.40
        "algorithms.bc.torch.default_bc_torch_rl_module",
        "DefaultBCTorchRLModule",
    ),
    ("algorithms.marwil.marwil_catalog", "MARWILCatalog"): ("algorithms.ppo.ppo_catalog", "PPOCatalog"),
    ("algorithms.sac.torch.sac_torch_rl_module", "SACTorchRLModule"): (
        "algorithms.sac.torch.default_sac_torch_rl_module",
        "DefaultSACTorchRLModule",
    ),
    ("algorithms.cql.torch.cql_torch_rl_module", "CQLTorchRLModule"): (
        "algorithms.cql.torch.default_cql_torch_rl_module",
        "DefaultCQLTorchRLModule",
    ),
    ("algorithms.dqn.torch.dqn_rainbow_torch_rl_module", "DQNRainbowTorchRLModule"): (
        "algorithms.dqn.torch.default_dqn_torch_rl_module",
        "DefaultDQNTorchRLModule",
    ),
    ("algorithms.dqn.dqn_rainbow_catalog", "DQNRainbowCatalog"): ("algorithms.dqn.dqn_catalog", "DQNCatalog"),
}
RENAMED: Final = {"DefaultBCTorchRLModule": {"encoder.": "_encoder.", "pi.": "_pi_head."}}  # beginnings of weights' names


class _Unpickler(pickle.Unpickler):
    """Looks for a class where it was, and then where the installed version has it."""

    def find_class(self, module: str, name: str, /) -> Any:
        """See pickle."""
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            moved = MOVED.get((module.removeprefix(RLLIB), name))
            if moved is None:
                raise
            return super().find_class(RLLIB + moved[0], moved[1])


def unpickled(file: Path) -> Any:
    """What a file of the checkpoint holds. Raises BadData."""
    try:
        with file.open("rb") as opened:
            return _Unpickler(opened).load()
    except Exception as err:  # the file decides what runs here, and so what is raised
        what = f"a pickle of RLlib's cannot be loaded: {type(err).__name__}: {err}"[:500]
        raise BadData(what, where=str(file), fix=FIX) from err


def state_of_piece(piece: Path) -> Any:
    """What a piece learned: RLlib writes a pickle, or msgpack where it is told to. None: nothing. Raises BadData."""
    if (packed := piece / "state.msgpack").is_file():
        return unpack(read_plain(str(packed), shown=str(packed)), where=str(packed))
    return unpickled(file) if (file := piece / "state.pkl").is_file() else None


def module_of_2_40(place: Path) -> Any:
    """The module for playing, by the installed version's class. Raises BadData where that wants weights that are not there."""
    told, state = unpickled(place / CLASS), unpickled(place / OF_2_40)
    options, named = told["ctor_args_and_kwargs"]
    made = told["class"](*options, **{**named, "inference_only": True})  # critics have changed since then
    renamed = RENAMED.get(type(made).__name__, {})
    for old, new in renamed.items():
        state = {new + name.removeprefix(old) if name.startswith(old) else name: array for name, array in state.items()}
    missing = sorted(made.state_dict().keys() - state.keys())
    if missing:  # RLlib would leave them as they were drawn
        what = f"the state has no {', '.join(missing)[:300]}, which the installed version of RLlib looks for"
        raise BadData(what, where=str(place), fix=ARRAYS)
    made.set_state(state)
    return made
