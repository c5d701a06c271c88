"""Module classes of a user's own as policies: they play, or are refused by what they lack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from rllib_modules import Follows

from offline_cli import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, OfflineCliError

Record = Callable[..., Path]
Read = Callable[[Path], EpisodeBatch]
SEEN, CHOICES = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(3)


def seeded() -> Follows:
    """As recording makes it: weights that nobody loads follow from a fixed seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Follows(SEEN, CHOICES)


@pytest.mark.parametrize("name", ["Follows", "Explores"])
def test_a_class_with_one_forward_plays_by_the_head_that_fits_the_action_space(name: str, recorded: Record, read: Read) -> None:
    batch = read(recorded(policy=f"python:rllib_modules:{name}", episodes=4))
    inputs = seeded().forward_inference({Columns.OBS: torch.from_numpy(batch.acted_obs())})[Columns.ACTION_DIST_INPUTS]
    np.testing.assert_allclose(batch.extra[Columns.ACTION_DIST_INPUTS], inputs.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(batch.actions, inputs.argmax(1))


@pytest.mark.parametrize(
    ("name", "kind", "named"),
    [
        ("Silent", BadConfig, "Silent.*_forward"),
        ("Wordless", BadConfig, "Wordless.*'action_dist_inputs'"),
        ("Wide", BadConfig, "Wide.*'action_dist_inputs'.* 7.* 3"),
    ],
)
def test_a_class_that_cannot_play_is_refused_by_what_it_lacks_before_anything_is_played(
    name: str, kind: type[OfflineCliError], named: str, recorded: Record
) -> None:
    with pytest.raises(kind, match=named):
        recorded(policy=f"python:rllib_modules:{name}", episodes=1)
