"""What data holds, in figures: from the manifest of a dataset, else by reading it all; unmet expectations raise.

`inspect` answers for every source that the readers know. A foreign source is read as `convert` would read it, so that the
figures are those of the dataset it would become: fragments joined, duplicates dropped, and each of these counted.

For a dataset on this machine the manifest is all that is read, and readers, storage clients and pyarrow, which take 0.5 s to
import, stay away: they are imported where they are needed.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Unpack

from offline_cli.columns import ElementNames, mappings_in
from offline_cli.datasets.file_names import MANIFEST, WRITING
from offline_cli.datasets.manifest import Manifest
from offline_cli.errors import OfflineCliError, TargetNotMet, UsageError
from offline_cli.files.local_files import SIGNS, read_plain
from offline_cli.options.data_commands import InspectOptions
from offline_cli.options.keywords import check_values, takes
from offline_cli.options.option import declared_in
from offline_cli.progress import OnProgress, no_progress
from offline_cli.spaces import Space, describe, space_to_json

if TYPE_CHECKING:
    from offline_cli.converting.reading import EpisodeStream
    from offline_cli.files.locations import Sources

ABOUT_READING: Final = declared_in(InspectOptions).keys() - {"expect", "on_error"}  # what a manifest alone does not answer

__all__ = ["Inspection", "inspect"]


@dataclass(frozen=True, slots=True)
class Inspection:
    """Figures of one or more sources taken together.

    `truncated` counts the flag as it is stored in a dataset. `unfinished` counts episodes that have it only because their
    recording broke off: they are among the truncated ones. A dataset has the same figures as the source it was made from.
    """

    format: str  # of the source: episodes, columns, rllib-episodes, rllib-columns, sample-batch; joined by ", "
    sources: tuple[str, ...]
    episodes: int
    steps: int
    terminated: int  # episodes that their task ended
    truncated: int
    unfinished: int
    observation_space: Space | None
    action_space: Space | None
    spaces_inferred: bool
    action_scale: str  # "env" | "normalized" | "unknown"
    environment: str | None
    returns: Mapping[str, Any]  # mean, std, min, max, quantiles by percent; undiscounted sums of rewards
    length: Mapping[str, Any]  # the same, in steps
    columns: Mapping[str, Any]  # the same without quantiles, by column
    elements: Mapping[str, Sequence[str]]  # of vectors that were columns of a table: their names, by column
    duplicates_dropped: int
    rows_quarantined: int
    episodes_lost: int | None  # that were in the source and are not among these; None: not in the manifest
    assumptions: Mapping[str, int]
    dropped_columns: tuple[str, ...]  # columns left out, by name; unknown of a dataset
    dropped_reasons: Mapping[str, str]  # by the same names
    modules: Mapping[str, int] | None  # episodes by module id, where they have one; None: not in the manifest
    complete: bool  # whether all that was asked for is in it; False: its writer was stopped, and committed what was whole
    from_manifest: bool  # False: every episode has been read

    def as_dict(self) -> dict[str, Any]:
        """Plain values, by the keys of `--json`; spaces as JSON, and as one line of text beside it."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "returns"}
        return {
            **plain,
            "sources": list(self.sources),
            "observation_space": self.observation_space and space_to_json(self.observation_space),
            "action_space": self.action_space and space_to_json(self.action_space),
            "observation_space_text": describe(self.observation_space),
            "action_space_text": describe(self.action_space),
            "return": dict(self.returns),
            "length": dict(self.length),
            "columns": dict(self.columns),
            "elements": {path: list(names) for path, names in self.elements.items()},
            "assumptions": dict(sorted(self.assumptions.items())),
        }


@takes(InspectOptions)
def inspect(sources: Sources, *, on_progress: OnProgress = no_progress, **options: Unpack[InspectOptions]) -> Inspection:
    """Figures of `sources`, taken together.

    `expect` names values by the keys of `as_dict`, with dots for what is nested (`return.mean`). Raises TargetNotMet, naming
    all that differ, UsageError for an unknown key, and what `read_episodes` raises.
    """
    check_values(InspectOptions, options, command="offline-cli inspect")
    found = _of_local_dataset(sources, options) or _of_sources(sources, options, on_progress)
    if options["expect"]:
        _check(found, options["expect"])
    return found


def _of_local_dataset(sources: Sources, options: InspectOptions) -> Inspection | None:
    """Figures of one committed dataset in a folder of this machine, of which nothing else is said; None for all other sources,
    damaged manifests among them: opening them says what is wrong.
    """
    listed = [sources] if isinstance(sources, str | os.PathLike) else sources
    if not isinstance(listed, list | tuple) or len(listed) != 1 or not isinstance(listed[0], str | os.PathLike):
        return None
    folder, declared = os.fspath(listed[0]), declared_in(InspectOptions)
    if not folder or folder.startswith("~") or any(sign in folder for sign in SIGNS):
        return None
    if any(options.get(name) != declared[name].option.default for name in ABOUT_READING):
        return None
    place = f"{folder.rstrip('/')}/{MANIFEST}"
    try:
        if os.path.exists(os.path.join(folder, WRITING)):
            return None
        return _from_manifest(folder, Manifest.from_bytes(read_plain(place, shown=place), where=place))
    except (OSError, ValueError, OfflineCliError):  # ValueError: of a path with what no path can hold
        return None


def _of_sources(sources: Sources, options: InspectOptions, on_progress: OnProgress) -> Inspection:
    """Figures of any sources: of one dataset from its manifest, else by reading them."""
    from offline_cli.converting.reading import read_opened
    from offline_cli.formats.opening import open_sources
    from offline_cli.formats.tables import TableOptions

    tables = TableOptions.of(options)
    opened = open_sources(sources, from_=options["from_"], tables=tables, storage_options=options["storage_options"])
    info = opened[0].info
    if len(opened) == 1 and info.manifest is not None:
        return _from_manifest(info.location, info.manifest)
    with read_opened(opened, on_error=options["on_error"], memory_limit=tables.memory_limit, on_progress=on_progress) as stream:
        return _by_reading(stream)


def _from_manifest(location: str, manifest: Manifest) -> Inspection:
    counts, statistics = manifest.counts, manifest.statistics
    return Inspection(
        format=manifest.format,
        sources=(location,),
        episodes=counts.episodes,
        steps=counts.steps,
        terminated=counts.terminated,
        truncated=counts.truncated,
        unfinished=counts.unfinished,
        observation_space=manifest.observation_space,
        action_space=manifest.action_space,
        spaces_inferred=manifest.spaces_inferred,
        action_scale=manifest.action_scale,
        environment=manifest.environment.id if manifest.environment else None,
        returns=statistics["return"],
        length=statistics["length"],
        columns=statistics["columns"],
        elements=ElementNames.of(mappings_in(manifest.provenance)).by_path,
        duplicates_dropped=0,
        rows_quarantined=0,
        episodes_lost=manifest.episodes_lost,
        assumptions=manifest.assumptions,
        dropped_columns=(),
        dropped_reasons={},
        modules=None,
        complete=manifest.complete,
        from_manifest=True,
    )


def _by_reading(stream: EpisodeStream) -> Inspection:
    from offline_cli.datasets.statistics import StatisticsBuilder

    builder = StatisticsBuilder()
    modules: Counter[str] = Counter()
    for batch in stream:
        builder.add(batch)
        modules.update(id_ for id_ in batch.module_ids or () if id_ is not None)
    statistics = builder.as_json()
    return Inspection(
        format=", ".join(dict.fromkeys(stream.formats)),
        sources=tuple(stream.locations),
        episodes=builder.episodes,
        steps=builder.steps,
        terminated=builder.terminated,
        truncated=builder.truncated,
        unfinished=builder.unfinished_with(stream.tally.assumptions),
        observation_space=stream.observation_space,
        action_space=stream.action_space,
        spaces_inferred=stream.spaces_inferred,
        action_scale=stream.action_scale,
        environment=stream.environment_id,
        returns=statistics["return"],
        length=statistics["length"],
        columns=statistics["columns"],
        elements=stream.elements.by_path,
        duplicates_dropped=stream.tally.duplicates_dropped,
        rows_quarantined=stream.rejects.count,
        episodes_lost=stream.episodes_lost,
        assumptions={**stream.tally.assumptions, **stream.lost_by_reason},
        dropped_columns=tuple(stream.tally.dropped_columns),
        dropped_reasons=dict(stream.tally.dropped_columns),
        modules=dict(modules),
        complete=stream.complete,
        from_manifest=False,
    )


def _check(found: Inspection, expect: Mapping[str, Any]) -> None:
    have = {key: _value_at(found, key) for key in expect}
    wrong = {key: (have[key], want) for key, want in expect.items() if not _same(have[key], want)}
    if wrong:
        raise TargetNotMet(
            "; ".join(f"{key} is {is_}, expected {want}" for key, (is_, want) in wrong.items()),
            where=", ".join(found.sources),
            fix="check the data with inspect, or correct the expectation",
            details={"differences": {key: {"is": is_, "expected": want} for key, (is_, want) in wrong.items()}},
        )


def _value_at(found: Inspection, key: str) -> Any:
    value: Any = found.as_dict()
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            keys = ", ".join(value) if isinstance(value, Mapping) else "nothing below it"
            raise UsageError(f"nothing is called {key!r}", where="--expect", fix=f"there is {keys}")
        value = value[part]
    return value


def _same(value: Any, want: Any) -> bool:
    """Numbers may come as text, as from a command line, and agree to 9 digits."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return math.isclose(float(want), value, rel_tol=1e-9)
        except (TypeError, ValueError):
            return False
    return bool(value == want) or str(value).lower() == str(want).lower()
