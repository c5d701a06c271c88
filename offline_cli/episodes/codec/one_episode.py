"""One episode to bytes and back, exact and in no hurry; refuses what `states` refuses, and unsupported spaces.

The way for single episodes and the measure for the bulk way, which must give the same bytes and the same values.
"""

from __future__ import annotations

from offline_cli.episodes.codec.states import pack_state, unpack_state
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import OfflineCliError
from offline_cli.tally import Tally

__all__ = ["decode", "encode"]


def encode(episode: SingleAgentEpisode, *, where: str = "encode", tally: Tally | None = None) -> bytes:
    """`episode` as bytes, numpy'ized (the episode itself is left as it is), lookback buffer included.

    Infos and custom data are made plain: keys that are no strings become strings, sets and tuples lists, dates and times ISO
    text, each counted in `tally`. Raises BadData naming episode, step and key for anything else that is not plain.
    """
    counts = tally if tally is not None else Tally()
    numpyized = episode if episode.is_numpy else SingleAgentEpisode.from_state(episode.get_state()).to_numpy()
    return pack_state(numpyized.get_state(), where=where, tally=counts)


def decode(data: bytes, *, where: str) -> SingleAgentEpisode:
    """The episode in `data`; arrays that came from bytes copy on write.

    Raises BadEpisode for cut or malformed bytes and lengths that disagree, UnsafeData for bytes that would build objects or
    need memory out of proportion, UnsupportedSpace for spaces that episodes cannot have. `where` names file and row.
    """
    state = unpack_state(data, where=where)
    try:
        return SingleAgentEpisode.from_state(state)
    except OfflineCliError as err:  # a state does not know where it was read
        raise type(err)(err.what, where=f"{where}, {err.where}", fix=err.fix, details=err.details) from err
