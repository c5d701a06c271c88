"""Episodes as bytes and back: msgpack of RLlib's state, arrays in msgpack-numpy's encoding; bytes never build objects.

What is written, RLlib's `SingleAgentEpisode.from_state` reads (after `msgpack.unpackb(..., object_hook=msgpack_numpy.decode)`).
What is read may come from RLlib 2.40 to 2.60, numpy'ized or not, or from an attacker. `encode` and `decode` are for one
episode, `encode_batch`, `decode_batch` and `BatchDecoder` for many, and much faster.
"""

from __future__ import annotations

from offline_cli.episodes.codec.pack import encode
from offline_cli.episodes.codec.pack_batch import encode_batch
from offline_cli.episodes.codec.unpack import BatchDecoder, decode, decode_batch

__all__ = ["BatchDecoder", "decode", "decode_batch", "encode", "encode_batch"]
