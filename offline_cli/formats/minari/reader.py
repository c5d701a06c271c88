"""Minari's datasets as sources: episodes of T+1 observations by the spaces of their metadata.

Ids are Minari's own numbers, unless the episode names another (`eps_id`, which our sink writes). Infos are kept as infos; other
attributes of an episode (`seed`, `options/...`) are its custom data, without the statistics of rewards, which follow from
them. HDF5 is read here; Arrow and Parquet in `arrow_storage.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from gymnasium import spaces

from offline_cli.errors import BadData, BadEpisode, NoData
from offline_cli.formats.dropped_leaves import LEFT_OUT
from offline_cli.formats.hdf5.episodes import Column, EpisodeDatasets, batches, numbered, read_episodes
from offline_cli.formats.hdf5.safe import FRAMES, TEXT, Hdf5File, Node
from offline_cli.formats.left_out import why_no_column
from offline_cli.formats.minari.arrow_storage import ArrowEpisodes
from offline_cli.formats.minari.fields import EXTRA, IDS, STATISTICS, ends_of, nested_rows
from offline_cli.formats.minari.metadata import FORMAT, HDF5, MAIN, METADATA, Metadata, is_image
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.source import ENV_SCALE, FileSource, Fragments, SourceInfo
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import Lost, Rejects, Tally
from offline_cli.trees import Tree

__all__ = ["MinariSource", "open_minari"]

PREFIX: Final = "episode_"
FLAGS: Final = ("rewards", "terminations", "truncations")
FIX: Final = "write the episode again with Minari, or leave it out with --on-error skip"


def open_minari(files: Sequence[Location], context: OpenContext) -> MinariSource:
    """The dataset among the files. Raises BadData where there are several, or its metadata are not Minari's."""
    found = [file for file in files if file.name == METADATA and b'"data_format"' in file.start(1 << 16)[0]]
    old = [] if found else [file for file in files if file.name.endswith(".hdf5")]
    if len(found or old) != 1:
        what = f"{len(found or old)} Minari datasets are here: {', '.join(file.url for file in (found or old)[:3])}"
        raise BadData(what, where=context.location, fix="name the folder of one, or several folders")
    if found:
        metadata, below = Metadata.read(found[0], context.drop), found[0].url.removesuffix(METADATA)
        data = [file for file in files if file.url.startswith(below) and file is not found[0]]
    else:
        metadata, below, data = _of_old_file(old[0], context), old[0].url.rpartition("/")[0] + "/", old
    info = SourceInfo(
        format=FORMAT,
        location=context.location,
        observation_space=metadata.spaces[0],
        action_space=metadata.spaces[1],
        action_scale=ENV_SCALE,
        environment=metadata.environment,
        declared=(metadata.document,),
    )
    return MinariSource(data, context.location, info, metadata=metadata, folder=below)


def _of_old_file(file: Location, context: OpenContext) -> Metadata:
    with Hdf5File(file) as opened:
        attributes = opened.top.attributes
    if not {"observation_space", "total_episodes"} & attributes.keys():
        what, fix = f"this is the file of a Minari dataset, without its {METADATA}", "name the folder that has both"
        raise BadData(what, where=file.url, fix=fix)
    return Metadata.of_attributes(attributes, file.url, context.drop)


@dataclass(slots=True)
class MinariSource(FileSource):
    """The files of one dataset; `metadata` says how they are stored."""

    format: ClassVar[str] = FORMAT

    metadata: Metadata = field(kw_only=True)
    folder: str = field(kw_only=True)  # URL, with its last slash

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: whole episodes, large ones in parts. Raises NoData where the file of episodes is not there."""
        self.done = 0
        for path in self.metadata.dropped:
            tally.drop_column(path, LEFT_OUT)
        with self.scope.part() as held:
            if self.metadata.data_format == HDF5:
                main = next((file for file in self.files if file.name == MAIN or len(self.files) == 1), None)
                if main is None:
                    raise NoData(
                        f"{MAIN} is not beside {METADATA}", where=self.info.location, fix="name the folder that has both"
                    )
                layout = _Hdf5Episodes(held.enter(Hdf5File(main)), self.metadata, tally)
                self._check_count(len(layout.names()), main.url, rejects)
                is_declared = self.metadata.spaces[1] is not None
                found = batches(read_episodes(layout, tally, rejects, is_declared=is_declared), main.url)
            else:
                tables = ArrowEpisodes(self.folder, self.files, self.metadata, tally, self.read_options.memory_limit)
                self._check_count(len(tables.names()), self.info.location, rejects)
                found = batches(tables.episodes(rejects), self.folder)
            for fragments in found:
                yield fragments
                self.done += fragments.batch.nbytes
        self.done = self.size or self.done

    def _check_count(self, found: int, url: str, rejects: Rejects) -> None:
        said = self.metadata.episodes
        if said is not None and said != found:
            what = f"its metadata says {said} episodes, and {found} are here"
            rejects.add(BadData(what, where=url, fix="copy the dataset again, or write it again with Minari"), rows=1)
            rejects.lose_episodes(Lost.UNREADABLE, max(0, said - found))


class _Hdf5Episodes:
    """An `EpisodeLayout`."""

    def __init__(self, file: Hdf5File, metadata: Metadata, tally: Tally) -> None:
        self._file, self._metadata, self._tally = file, metadata, tally

    def names(self) -> list[str]:
        return numbered(self._file.members(), PREFIX)

    def episode(self, name: str) -> EpisodeDatasets:
        node = self._file.node(name, passed_over=STATISTICS)
        missing = [key for key in FLAGS if len(node.datasets.get(key, ("", ()))[1]) != 1]
        if missing:
            raise BadEpisode(f"no rows of {' and '.join(missing)}", where=node.where, fix=FIX)
        steps = node.datasets["rewards"][1][0]
        used = {*FLAGS}
        trees = [
            self._tree(space, key, key.replace("observations", "obs"), node, used)
            for key, space in zip(("observations", "actions"), self._metadata.spaces, strict=True)
        ]
        self._refuse_others(node, used)
        for flag in FLAGS[1:]:
            Column(node, flag).check(steps, node.where)
        terminated, truncated = ends_of(node.rows(FLAGS[1], 0, steps), node.rows(FLAGS[2], 0, steps), self._tally)
        extra = [path for path, (_, shape) in node.datasets.items() if path.startswith(f"{EXTRA}/") and shape[:1] == (steps,)]
        infos = self._infos(node, steps)
        for path in node.datasets.keys() - used - set(extra):
            if not path.startswith(("infos/", "observations/", "actions/")):
                self._tally.drop_column(path, "Minari has no such dataset")
        for attribute in node.left_out:
            self._tally.drop_column(f"@{attribute}", "an attribute that is neither numbers nor text")
        number, eps_id = int(name.removeprefix(PREFIX)), node.attributes.get("eps_id")
        return EpisodeDatasets(
            id=eps_id if isinstance(eps_id, str) else str(number),
            number=number,
            where=node.where,
            steps=steps,
            obs=trees[0],
            has_final=True,
            actions=trees[1],
            rewards=Column(node, "rewards"),
            terminated=terminated,
            truncated=truncated,
            extra={path.removeprefix(f"{EXTRA}/"): Column(node, path) for path in extra},
            infos=infos,
            custom_data={key: value for key, value in node.attributes.items() if key not in IDS} or None,
            agent_id=node.attributes.get("agent_id"),
            module_id=node.attributes.get("module_id"),
        )

    def _tree(self, space: Space | None, key: str, path: str, node: Node, used: set[str]) -> Tree:
        """Columns in the structure of the space; of the datasets, where none is known. `path`: dotted, as `--drop` takes it."""
        if isinstance(space, spaces.Dict):
            return {
                part: self._tree(inner, f"{key}/{part}", f"{path}.{part}", node, used) for part, inner in space.spaces.items()
            }
        if isinstance(space, spaces.Tuple):
            parts = enumerate(space.spaces)
            return tuple(self._tree(inner, f"{key}/_index_{at}", f"{path}.{at}", node, used) for at, inner in parts)
        below = dict.fromkeys(one[len(key) + 1 :].partition("/")[0] for one in node.datasets if one.startswith(f"{key}/"))
        if space is None and below:
            tree = {part: self._tree(None, f"{key}/{part}", f"{path}.{part}", node, used) for part in below}
            are_numbered = (
                all(part == f"_index_{at}" for at, part in enumerate(numbered(below, "_index_"))) and "_index_0" in below
            )
            return tuple(tree[f"_index_{at}"] for at in range(len(tree))) if are_numbered else tree
        if key not in node.datasets:
            raise BadEpisode(f"no dataset {key}, which the space has", where=node.where, fix=FIX)
        used.add(key)
        if node.datasets[key][0] == TEXT:
            raise BadEpisode(
                f"{path} holds texts, which episodes do not hold", where=node.where, fix=f"convert ... --drop {path}"
            )
        if space is not None and self._metadata.has_jpeg and is_image(space):
            self._tally.assume("jpeg-frames", node.datasets[key][1][0] if node.datasets[key][1] else 0)
            return Column(node, key, tuple(space.shape or ()))
        return Column(node, key)

    def _refuse_others(self, node: Node, used: set[str]) -> None:
        """Raise BadEpisode for observations and actions that the space does not have, but for those that were dropped."""
        dropped = tuple(path.replace("obs.", "observations.", 1).replace(".", "/") for path in self._metadata.dropped)
        others = [path for path in node.datasets.keys() - used if path.startswith(("observations", "actions"))]
        odd = sorted(path for path in others if not any(path == one or path.startswith(f"{one}/") for one in dropped))
        if odd:
            raise BadEpisode(f"datasets that the space does not have: {', '.join(odd)[:300]}", where=node.where, fix=FIX)

    def _infos(self, node: Node, steps: int) -> list[dict[str, Any]] | None:
        """A dict for each observation; None where no info has a value for each."""
        columns: dict[str, Any] = {}
        for path, (kind, shape) in node.datasets.items():
            if not path.startswith("infos/"):
                continue
            if shape[:1] != (steps + 1,) or kind == FRAMES:
                self._tally.drop_column(path, why_no_column(kind, shape, steps + 1))
            else:
                values = node.texts(path) if kind == TEXT else list(node.rows(path, 0, steps + 1))
                columns[path.removeprefix("infos/")] = values
        return nested_rows(columns) if columns else None
