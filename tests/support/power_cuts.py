"""What a power cut may leave of a folder after any of the calls that `recorded_disk.py` has recorded; assumes no file system.

Of bytes, those are there that the file had when it was last synced. Of names, those that the folder had when it was last
synced. What came later may be there or not, each name by itself, as long as two calls on one name keep their order. A file that
was moved has its old name or its new one, unless the folder that it left was synced and the one that it came to was not: then
it may have none. Images are made of the extremes, and of names drawn by chance:

    names   nothing: none of them; everything: all; given: new names, no removals; taken: removals, no new names; chance
    bytes   lost: none of them; half; zeros: a file of the right length; whole: all
"""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from recorded_disk import Bytes, Call, Length, Log, Names, RecordedDisk, Sync, Tree

NAMES = ("nothing", "everything", "given", "taken", "chance")
BYTES = ("lost", "half", "zeros", "whole")


@dataclass(frozen=True)
class PowerCut:
    """One image."""

    done: int  # calls before it
    of: int  # all calls: where as many were done, the command has ended with exit 0
    names: str
    bytes: str
    tree: Tree

    @property
    def is_after_the_end(self) -> bool:
        """Whether the command had ended."""
        return self.done == self.of

    def __str__(self) -> str:
        return f"power cut after {self.done} of {self.of} calls, names: {self.names}, bytes: {self.bytes}"

    def put(self, folder: Path) -> Path:
        """Make `folder` this image, whatever it was before."""
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        for path, content in self.tree.items():
            if content is None:
                (folder / path).mkdir()
            else:
                (folder / path).write_bytes(content)
        return folder


class _Disk:
    """The folder after some calls: what is there, and what of it is kept."""

    def __init__(self, log: Log) -> None:
        self._folders = set(log.folders) | log.made
        self._names = {node: dict(names) for node, names in log.folders.items()}
        self._files = {node: bytearray(content) for node, content in log.files.items()}
        self._kept = dict(log.files)
        self._waiting: list[Names] = []

    def call(self, call: Call) -> None:
        match call:
            case Names():
                self._waiting.append(call)
            case Bytes():
                content = self._files.setdefault(call.file, bytearray())
                content[call.at : call.at + len(call.data)] = call.data
            case Length():
                del self._files.setdefault(call.file, bytearray())[call.length :]
            case Sync() if call.node in self._folders:
                kept = [names for names in self._waiting if any(edit[0] == call.node for edit in names.edits)]
                self._names = _after(self._names, kept)
                self._waiting = [names for names in self._waiting if names not in kept]
            case Sync():
                self._kept[call.node] = bytes(self._files.get(call.node, b""))

    def _closed(self, chosen: Iterable[Names]) -> list[Names]:
        """`chosen` and all that they cannot be on the disk without, in order."""
        taken = set(chosen)
        while True:
            places = {edit[:2]: number for number, names in enumerate(self._waiting) if names in taken for edit in names.edits}
            more = {names.needs for names in taken if names.needs is not None and names.needs in self._waiting}
            more |= {
                names
                for number, names in enumerate(self._waiting)
                if any(number < places.get(edit[:2], -1) for edit in names.edits)
            }
            if more <= taken:
                return [names for names in self._waiting if names in taken]
            taken |= more

    def tree(self, names: str, bytes_: str, chance: random.Random) -> Tree:
        choose: dict[str, Callable[[Names], bool]] = {
            "nothing": lambda _: False,
            "everything": lambda _: True,
            "given": lambda call: any(node is not None for *_, node in call.edits),
            "taken": lambda call: all(node is None for *_, node in call.edits),
            "chance": lambda _: chance.random() < 0.5,
        }
        there = _after(self._names, self._closed(filter(choose[names], self._waiting)))
        tree: Tree = {}
        self._add(tree, "", 0, there, bytes_)
        return tree

    def _add(self, tree: Tree, above: str, folder: int, there: dict[int, dict[str, int]], bytes_: str) -> None:
        for name, node in sorted(there.get(folder, {}).items()):
            if node in self._folders:
                tree[f"{above}{name}"] = None
                self._add(tree, f"{above}{name}/", node, there, bytes_)
            else:
                tree[f"{above}{name}"] = self._content(node, bytes_)

    def _content(self, file: int, bytes_: str) -> bytes:
        kept, whole = self._kept.get(file, b""), bytes(self._files.get(file, b""))
        if bytes_ == "lost":
            return kept
        if bytes_ == "whole" or len(whole) <= len(kept):
            return whole
        if bytes_ == "zeros":
            return kept + bytes(len(whole) - len(kept))
        return whole[: (len(kept) + len(whole)) // 2]


def _after(names: dict[int, dict[str, int]], calls: Iterable[Names]) -> dict[int, dict[str, int]]:
    found = {folder: dict(entries) for folder, entries in names.items()}
    for call in calls:
        for folder, name, node in call.edits:
            if node is None:
                found.setdefault(folder, {}).pop(name, None)
            else:
                found.setdefault(folder, {})[name] = node
    return found


def power_cuts(log: Log, *, every: int = 1, seed: int = 0) -> Iterator[PowerCut]:
    """Images after 0, 1, ... and all calls, each of them once; those after the end by themselves.

    `every`: how many of them make one that is given; those after the end all are.
    """
    disk, chance, of = _Disk(log), random.Random(seed), len(log.calls)
    seen: set[tuple[bool, bytes]] = set()
    for done in range(of + 1):
        if done:
            disk.call(log.calls[done - 1])
        for names in NAMES:
            for bytes_ in BYTES:
                tree = disk.tree(names, bytes_, chance)
                key = done == of, _digest(tree)
                if key not in seen:
                    seen.add(key)
                    if done == of or len(seen) % every == 1 % every:
                        yield PowerCut(done, of, names, bytes_, tree)


def _digest(tree: Tree) -> bytes:
    digest = hashlib.sha256()
    for path, content in tree.items():
        digest.update(f"{path}\0{'' if content is None else len(content)}\0".encode() + (content or b""))
    return digest.digest()


def recorded(disk: Path, command: Callable[[], object]) -> Log:
    """The calls of `command` below `disk`. They give what is there: none went past the recording."""
    with RecordedDisk(disk) as seen:
        command()
    replayed = _Disk(seen.log)
    for call in seen.log.calls:
        replayed.call(call)
    assert replayed.tree("everything", "whole", random.Random(0)) == tree_of(disk)
    return seen.log


def tree_of(folder: Path) -> Tree:
    """What is below `folder`."""
    return {path.relative_to(folder).as_posix(): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")}
