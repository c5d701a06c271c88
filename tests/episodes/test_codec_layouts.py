"""Items that are laid out alike are read, and refused, as if each were decoded alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import decode_batch, encode_batch, unpack
from offline_cli.tally import OnError, Rejects, Tally
from offline_cli.testing import assert_same_batch

bounded = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
texts = st.text(max_size=5) | st.sampled_from(("table:17", "é", "x" * 40, "y" * 300))
data = st.sampled_from(({}, {"seed": 3}, {"source_id": None}, {"a": "b", "c": "d"})) | st.builds(dict, source_id=texts)


@st.composite
def alike(draw: st.DrawFn) -> EpisodeBatch:
    """Up to 30 episodes of few lengths."""
    lengths = draw(st.lists(st.sampled_from((0, 1, 2, 15, 16)), min_size=1, max_size=30))
    count, steps = len(lengths), sum(lengths)

    def each(values: st.SearchStrategy[Any]) -> Any:
        found = draw(st.none() | st.lists(values, min_size=count, max_size=count))
        return None if found is None else tuple(found)

    names, clock, t_started = (
        st.none() | texts,
        each(st.floats(0, 1e9) | st.just(float("nan"))),
        each(st.sampled_from((0, 70_000))),
    )
    rng = np.random.default_rng(0)
    return EpisodeBatch(
        ids=tuple(f"{draw(texts)}{e}" for e in range(count)),
        starts=np.cumsum([0, *lengths]),
        obs={"a": rng.normal(size=(steps + count, 3)).astype(np.float32), "b": rng.integers(0, 99, steps + count)},
        actions=rng.integers(0, 2, steps),
        rewards=rng.normal(size=steps),
        terminated=np.array(each(st.booleans()) or [True] * count),
        truncated=np.zeros(count, np.bool_),
        t_started=None if t_started is None else np.array(t_started),
        agent_ids=each(names),
        multi_agent_ids=each(names),
        custom_data=each(data),
        clock=None if clock is None else np.array([clock, clock]).T.copy(),
        infos=each(st.none()) and [{"n": n} if n % 7 == 0 else {} for n in range(steps + count)],
    )


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """What happens to an item: a changed byte, a cut, bytes too many."""
    place, byte = draw(st.integers(0, 1 << 16)), draw(st.integers(0, 255))

    def changed(item: bytes) -> bytes:
        at = place % len(item)
        return item[:at] + bytes([byte]) + item[at + 1 :]

    return draw(st.sampled_from((changed, changed, lambda item: item[: place % len(item)], lambda item: item + b"\x80")))


def read(items: Sequence[Any]) -> tuple[list[EpisodeBatch], list[Any], dict[str, int]]:
    rejects, tally = Rejects(OnError.QUARANTINE), Tally()
    batches = list(decode_batch(items, where=lambda i: f"item {i}", rejects=rejects, tally=tally))
    return batches, [(r.where, r.code, r.reason, r.raw) for r in rejects.kept], dict(tally.assumptions)


@bounded
@given(alike(), st.lists(st.tuples(st.integers(0, 59), damage()), max_size=12))
def test_items_are_read_and_refused_as_if_each_were_decoded_alone(batch: EpisodeBatch, damages: list[Any]) -> None:
    items = encode_batch(batch, where="test", tally=Tally()) * 5
    for index, change in damages:
        items[-1 - index % len(items)] = change(items[-1 - index % len(items)] or b"?")
    got = read(items)
    with patch.object(unpack, "learn_layout", lambda item: None):
        wanted = read(items)
    assert got[1:] == wanted[1:]
    assert len(got[0]) == len(wanted[0])
    for mine, theirs in zip(got[0], wanted[0], strict=True):
        assert_same_batch(mine, theirs)
