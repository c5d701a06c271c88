"""A source without the leaves that `--drop` names: parts of observations and actions, extra model outputs, infos."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gymnasium import spaces

from offline_cli.columns import Columns
from offline_cli.errors import UsageError
from offline_cli.formats.source import Fragments, ReadOptions, SourceInfo, WrappedSource
from offline_cli.spaces import Space
from offline_cli.tally import Rejects, Tally
from offline_cli.trees import Tree, paths

LEFT_OUT: Final = "left out by --drop"
WHOLE: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)


@dataclass(slots=True)
class DroppedLeaves(WrappedSource):
    """`source` without the leaves at some dotted paths, such as `obs.mission`; a `Source`."""

    names: frozenset[str]

    def __post_init__(self) -> None:
        """Raises UsageError for what every episode needs."""
        needed = sorted(self.names.intersection(WHOLE))
        if needed:
            fix = "name a part of it: --drop obs.PART"
            raise UsageError(f"{needed[0]} is part of every episode", where="--drop", fix=fix)

    @property
    def info(self) -> SourceInfo:
        """See `Source`."""
        info = self.source.info
        return replace(
            info,
            observation_space=_space(info.observation_space, Columns.OBS, self.names),
            action_space=_space(info.action_space, Columns.ACTIONS, self.names),
        )

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`. Spaces of an environment have the leaves, and are not for a reader of the others."""
        pair = options.spaces
        if pair is not None:
            pair = _space(pair[0], Columns.OBS, self.names), _space(pair[1], Columns.ACTIONS, self.names)
        self.source.prepare(replace(options, spaces=pair))

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`. Raises UsageError, once the first fragments are read, for a leaf that is not there."""
        is_known = False
        for fragments in self.source.fragments(tally, rejects):
            batch = fragments.batch
            there = [*paths(batch.obs, Columns.OBS), *paths(batch.actions, Columns.ACTIONS), *batch.extra]
            there += [Columns.INFOS] * (batch.infos is not None)
            found = [name for name in sorted(self.names) if any(f"{one}.".startswith(f"{name}.") for one in there)]
            for name in found:
                tally.drop_column(name, LEFT_OUT)
            unknown = self.names.difference(found, tally.dropped_columns)
            if unknown and not is_known:
                what = f"there is no {' and no '.join(sorted(unknown))}"
                raise UsageError(what, where="--drop", fix=f"what can be left out: {', '.join(there)[:1000]}")
            is_known = True
            kept = replace(
                batch,
                obs=_tree(batch.obs, Columns.OBS, self.names),
                actions=_tree(batch.actions, Columns.ACTIONS, self.names),
                extra={name: tree for name, tree in batch.extra.items() if name not in self.names},
                infos=None if Columns.INFOS in self.names else batch.infos,
                observation_space=_space(batch.observation_space, Columns.OBS, self.names),
                action_space=_space(batch.action_space, Columns.ACTIONS, self.names),
            )
            yield Fragments(kept, fragments.origins)


def _tree(tree: Tree, path: str, names: frozenset[str]) -> Tree:
    if not isinstance(tree, dict):
        return tree
    return {key: _tree(part, f"{path}.{key}", names) for key, part in _kept(tree, path, names).items()}


def _space(space: Space | None, path: str, names: frozenset[str]) -> Any:
    if not isinstance(space, spaces.Dict):
        return space
    return spaces.Dict([(key, _space(part, f"{path}.{key}", names)) for key, part in _kept(space.spaces, path, names).items()])


def _kept(parts: Mapping[str, Any], path: str, names: frozenset[str]) -> Mapping[str, Any]:
    """Raises UsageError where nothing is left."""
    kept = {key: part for key, part in parts.items() if f"{path}.{key}" not in names}
    if parts and not kept:
        raise UsageError(f"nothing of {path} would be left", where="--drop", fix="leave one of them in")
    return kept
