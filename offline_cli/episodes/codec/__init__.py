"""Encode episodes as bytes and decode them: msgpack of RLlib's state with msgpack-numpy arrays; bytes never build objects.

RLlib's `SingleAgentEpisode.from_state` reads the output (after `msgpack.unpackb(..., object_hook=msgpack_numpy.decode)`).
Input may come from RLlib 2.40 to 2.60, numpy'ized or not, or from an attacker. `encode` and `decode` handle one episode;
`encode_batch`, `decode_batch` and `BatchDecoder` handle many, much faster.
"""

from __future__ import annotations

from offline_cli.episodes.codec.pack import encode
from offline_cli.episodes.codec.pack_batch import encode_batch
from offline_cli.episodes.codec.unpack import BatchDecoder, decode, decode_batch

__all__ = ["BatchDecoder", "decode", "decode_batch", "encode", "encode_batch"]
