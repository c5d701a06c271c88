"""Lines of SampleBatch JSON that are read together give what each gives by itself: batches, places, counts, rejects, errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.formats.sample_batch import SampleBatchSource
from offline_cli.spaces import Space
from offline_cli.storage.locations import open_location
from offline_cli.tally import OnError, Rejects, Tally


def batch(start: int, **changes: Any) -> dict[str, Any]:
    """Two steps of episode 7."""
    columns = {
        "obs": [[start, 0.1], [start + 1.0, 0.1]],
        "new_obs": [[start + 1.0, 0.1], [start + 2.0, 0.1]],
        "actions": [1, 0],
        "prev_actions": [0, 1],
        "rewards": [1.0, 0.5],
        "terminateds": [False, False],
        "t": [start, start + 1],
        "eps_id": [7, 7],
        "vf_preds": [0.5, 0.25],
        "unroll_id": [0, 0],
        "infos": [{}, {"a": 1}],
    }
    return {name: value for name, value in {**columns, **changes}.items() if value is not ...}


def seen(batch_: EpisodeBatch) -> tuple[Any, ...]:
    return batch_.ids, str(batch_), [batch_.digest(episode) for episode in range(len(batch_))], batch_.infos, batch_.agent_ids


def read(files: list[Path], *, action_space: Space | None = None) -> Any:
    tally, rejects = Tally(), Rejects(OnError.QUARANTINE)
    source = SampleBatchSource([open_location(file) for file in files], "test")
    source.info = replace(source.info, action_space=action_space)
    found = []
    for one in source.fragments(tally, rejects):
        assert one.origins is not None
        found.append((seen(one.batch), [one.origins[entry] for entry in range(len(one.batch))]))
    return found, tally, rejects


def test_infos_that_are_numbers_stay_what_they_are(tmp_path: Path) -> None:
    file = tmp_path / "lines.json"
    file.write_text(json.dumps(batch(0, infos=[1.5, 2], terminateds=[False, True])) + "\n")
    tally = Tally()
    found = next(SampleBatchSource([open_location(file)], "test").fragments(tally, Rejects())).batch
    assert tally.assumptions["info-not-a-dict"] == 2
    assert found.infos is not None
    assert [info["info"] for info in found.infos if info] == [1.5, 2]
