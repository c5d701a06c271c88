"""The extra model outputs that behaviour cloning may use: the rest is left out before sources are compared.

Without a learner pipeline of the user's it learns from observations and actions, and from no row that `loss_mask` marks as
False. Pieces of a user's pipeline may use any output, and do not say which: they get those that all sources share, and where
one asks for another, the error names the source without it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from offline_cli.columns import Columns
from offline_cli.converting.extra_outputs import ExtraOutputs
from offline_cli.formats.source import Source
from offline_cli.training.given_pipelines import GivenPipeline

__all__ = ["UsedExtras"]

USED: Final = (Columns.LOSS_MASK,)

_log = logging.getLogger(__name__)


class UsedExtras:
    """Called with the opened sources of a run it gives what is `kept` of them; decided once, however often they are read."""

    def __init__(self, given: GivenPipeline) -> None:
        self._default = given.is_default
        self.kept: ExtraOutputs | None = None  # None, once called: all

    def __call__(self, sources: Sequence[Source]) -> ExtraOutputs | None:
        """Raises what reading the first episodes of each source raises."""
        if self._default:
            self.kept = ExtraOutputs(USED)
        elif self.kept is None and len(sources) > 1:
            self.kept = ExtraOutputs.shared(sources, needed=USED)
            if self.kept.left_out:
                forms = "; ".join(f"{name}: {text}" for name, text in self.kept.left_out.items())
                _log.warning("note: pieces do not see extra model outputs that the sources do not share: %s", forms)
        return self.kept
