"""Lines of SampleBatch JSON that are alike become rows as one, and give what each gives by itself, whatever is between them."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode
from offline_cli.formats.rllib import sample_batch as module
from offline_cli.formats.rllib.sample_batch import SampleBatchSource
from offline_cli.storage.locations import open_location
from offline_cli.tally import OnError, Rejects, Tally

Columns = dict[str, Any]


def steps(number: int, rows: int = 3) -> Columns:
    """Steps of an episode that begins in every fourth line and goes on in the next three."""
    start = rows * (number % 4)
    obs = [[0.5 * (start + row), 0.25] for row in range(rows)]
    actions = [(number + row) % 2 for row in range(rows)]
    return {
        "obs": obs,
        "new_obs": [*obs[1:], [0.5 * (start + rows), 0.25]],
        "actions": actions,
        "prev_actions": [0 if start == 0 else 1, *actions[:-1]],
        "rewards": [1.0] * rows,
        "terminateds": [False] * (rows - 1) + [number % 4 == 3],
        "truncateds": [False] * rows,
        "infos": [{}] * rows,
        "eps_id": [10 + number // 4] * rows,
        "agent_index": [0] * rows,
        "unroll_id": [number] * rows,
        "t": list(range(start, start + rows)),
        "vf_preds": [0.5] * rows,
    }


def packed(value: Any) -> str:
    return base64.b64encode(lz4.frame.compress(pickle.dumps(value))).decode()


def without(*names: str) -> Callable[[Columns], Columns]:
    return lambda columns: {name: value for name, value in columns.items() if name not in names}


def changed(**changes: Callable[[Columns], Any]) -> Callable[[Columns], Columns]:
    return lambda columns: columns | {name: change(columns) for name, change in changes.items()}


DIALECTS: dict[str, Callable[[Columns], Columns]] = {
    "plain": dict,
    "no eps_id": without("eps_id"),
    "no t": without("t"),
    "no eps_id and no t": without("eps_id", "t"),
    "no rewards and no flags": without("rewards", "terminateds", "truncateds"),
    "no infos": without("infos"),
    "infos": changed(infos=lambda columns: [{"t": t} for t in columns["t"]]),
    "infos that are no dicts": changed(infos=lambda columns: [1.5] * len(columns["t"])),
    "packed": changed(obs=lambda columns: packed(np.array(columns["obs"], np.float32))),
    "doubles": changed(vf_preds=lambda columns: [0.1] * len(columns["t"])),
    "integers": changed(rewards=lambda columns: [1] * len(columns["t"])),
    "a null": changed(rewards=lambda columns: [None, *columns["rewards"][1:]]),
    "nulls": changed(vf_preds=lambda columns: [None] * len(columns["t"])),
    "a null column": changed(vf_preds=lambda columns: None),
    "text ids": changed(eps_id=lambda columns: [f"e{name}" for name in columns["eps_id"]]),
    "ids beyond 64 bits": changed(eps_id=lambda columns: [2**63 + name for name in columns["eps_id"]]),
    "agents in turns": changed(agent_index=lambda columns: [t % 2 for t in columns["t"]]),
    "nested": changed(
        obs=lambda columns: {"a": columns["obs"], "b": columns["t"]},
        new_obs=lambda columns: {"a": columns["new_obs"], "b": [t + 1 for t in columns["t"]]},
    ),
    "previous actions of their own": changed(prev_actions=lambda columns: [7] * len(columns["t"])),
    "seq_lens": changed(seq_lens=lambda columns: [1, len(columns["t"]) - 1], state_in_0=lambda columns: [[0.5], [0.5]]),
    "padding": changed(seq_lens=lambda columns: [len(columns["t"]) - 1]),
    "another column": changed(extra=lambda columns: columns["t"]),
    "texts": changed(note=lambda columns: ["a"] * len(columns["t"])),
    "another shape": changed(vf_preds=lambda columns: [[0.5]] * len(columns["t"])),
    "no step": lambda columns: {name: [] for name in columns},
    "too few": changed(actions=lambda columns: columns["actions"][:-1]),
    "too few of one kind": changed(new_obs=lambda columns: columns["new_obs"][:-1]),
}
FORMS: dict[str, Callable[[Columns], Any]] = {
    "SampleBatch": lambda columns: {"type": "SampleBatch", **columns},
    "MultiAgentBatch": lambda columns: {"type": "MultiAgentBatch", "count": 3, "policy_batches": {"p": columns}},
    "two policies": lambda columns: {"type": "MultiAgentBatch", "policy_batches": {"p": columns, "q": columns}},
    "wrapped": lambda columns: {"value": {"type": "SampleBatch", **columns}},
    "wrapped text": lambda columns: {"value": json.dumps({"type": "SampleBatch", **columns})},
    "no type": dict,
}


def texts(dialects: list[str], form: str) -> list[str]:
    return [json.dumps(FORMS[form](DIALECTS[name](steps(number)))) for number, name in enumerate(dialects)]


def read(folder: Path, lines: list[str]) -> Any:
    """All that reading tells: batches, places, counts and rejects."""
    file = folder / "lines.json"
    file.write_text("\n".join(lines) + "\n")
    tally, rejects = Tally(), Rejects(OnError.QUARANTINE)
    source = SampleBatchSource([open_location(file)], "test")
    found = []
    for one in source.fragments(tally, rejects):
        assert one.origins is not None
        found.append((said(one.batch), [one.origins[entry] for entry in range(len(one.batch))]))
    return found, tally, rejects


def said(batch: EpisodeBatch) -> Any:
    digests = [batch.digest(episode) for episode in range(len(batch))]
    return batch.ids, str(batch), digests, batch.infos, batch.agent_ids, batch.module_ids, batch.multi_agent_ids


def assert_same_together_and_alone(folder: Path, lines: list[str]) -> None:
    together = read(folder, lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TOGETHER_BYTES", 1)
        assert together == read(folder, lines)


@given(st.lists(st.sampled_from(sorted(DIALECTS)), min_size=2, max_size=8), st.sampled_from(sorted(FORMS)), st.data())
@settings(max_examples=25, deadline=None)
def test_any_lines_give_together_what_they_give_alone(
    tmp_path_factory: pytest.TempPathFactory, dialects: list[str], form: str, data: st.DataObject
) -> None:
    lines = texts(dialects, form)
    for number in data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=2)):
        lines[number] = data.draw(st.sampled_from([lines[number][:-9], "[1]", lines[number].replace("0.25", "NaN")]))
    assert_same_together_and_alone(tmp_path_factory.getbasetemp(), lines)


@pytest.mark.parametrize(
    ("dialect", "place"),
    [("too few", "line 6, policy 'p', column actions"), ("too few of one kind", "line 6, policy 'p', column new_obs")],
)
def test_an_error_among_lines_that_look_alike_names_its_own_line(tmp_path: Path, dialect: str, place: str) -> None:
    file = tmp_path / "lines.json"
    file.write_text("\n".join(texts(["plain"] * 5 + [dialect] + ["plain"] * 6, "MultiAgentBatch")))
    with pytest.raises(BadEpisode) as caught:
        list(SampleBatchSource([open_location(file)], "test").fragments(Tally(), Rejects()))
    assert caught.value.where == f"{file} {place}"
