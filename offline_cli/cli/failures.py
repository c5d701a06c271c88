"""Turns any exception into one message and one exit code; a traceback is shown only with `--debug`.

`is_shortage`: whether a failure is this machine's lack of memory, threads or processes, and not a broken package. Little of it
is a MemoryError: a limit (`ulimit -v`, a container) shows where the system loads a library, starts a thread or maps a file, and
each library says so in its own words. Some continue half loaded, and fail over what they lack: under a limit that is smaller
than what they need, such failures count as a lack of memory too.
"""

from __future__ import annotations

import errno
import mmap
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import typer

from offline_cli.cli.invocation import Invocation
from offline_cli.cli.render import plain, to_json
from offline_cli.cli.streams import colour_wanted, printable, write
from offline_cli.engines.ranks import is_first
from offline_cli.errors import (
    BadData,
    ClusterLost,
    Diverged,
    Interrupted,
    MissingPackage,
    OfflineCliError,
    StorageError,
    StorageNotFound,
    TargetNotMet,
    UsageError,
    as_convert_would,
    causes,
)
from offline_cli.stop_signals import StopRequested

__all__ = ["Bug", "OutOfMemory", "UsageProblem", "explain", "is_shortage", "refuse_tight", "report"]

_RESERVE: Final = mmap.mmap(-1, 8 << 20)
"""Address space, never touched, that is given up to report a lack of memory."""
NUMBERS: Final = (errno.ENOMEM, errno.EAGAIN)  # the latter of fork: too many processes
TIGHT: Final = 2 << 30  # bytes of address space, of which torch takes half to be loaded
SAID: Final = re.compile(
    "failed to map segment|cannot allocate memory|can't allocate memory|can't start new thread|not enough memory"
    "|out of memory|std::bad_alloc|bad allocation|unable to allocate|malloc of size .* failed|cannot map zero-fill pages"
    "|Resource temporarily unavailable",
    re.IGNORECASE,
)
"""Words of the dynamic linker, torch, Python, C++, numpy, Arrow and Linux."""

UsageProblem: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises for a wrong command line. Newer versions have a click of their own; this name holds for all."""

_NO_NUMBER: Final = re.compile(r"Input should be a valid (integer|number), unable to parse string as an? (?:integer|number)")

_AGREED: Final = (Interrupted, TargetNotMet, Diverged)  # of processes that train together each ends so, and one says it
_EXTRA_OF = {"ray": "ray", "minari": "minari", "h5py": "hdf5", "stable_baselines3": "sb3"}
_WITH_ON_ERROR = (("convert",), ("inspect",))
_MEANT = {  # of options, by what they are called elsewhere
    "--learning-rate": "--lr",
    "--steps": "--updates",
    "--iterations": "--updates",
    "--n-envs": "--num-envs",
    "--environment": "--env",
    "--output": "--out",
}
_ELSEWHERE = {("train-bc", "--algorithm"): "offline-cli train, which learns by other algorithms as well"}
_STORAGE_ERRNOS = {
    errno.EACCES: "write permission, or another place",
    errno.EPERM: "write permission, or another place",
    errno.EROFS: "a place that can be written",
    errno.ENOSPC: "to free some space, or another disk",
    errno.EDQUOT: "to free some of the quota, or another place",
    errno.EIO: "another disk: this one reports faults",
    errno.ENOENT: "a path that exists",
    errno.ENOTDIR: "a path whose parents are folders",
    errno.EISDIR: "a path of a file",
    errno.ENAMETOOLONG: "a shorter path",
}


def is_shortage(error: BaseException) -> bool:
    """Whether `error` is, or came from, the system's refusal of memory, of a thread or of a process."""
    return any(_is_one(one) or _is_half_loaded(one) for one in causes(error))


def _is_half_loaded(error: BaseException) -> bool:
    """Whether other packages' code failed under a tight limit of address space."""
    if not isinstance(error, (NameError, AttributeError, SystemError, ImportError)) or not _is_tight():
        return False
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    package = Path(__file__).resolve().parents[1]
    return isinstance(error, SystemError) or (
        frame is not None and not Path(frame.tb_frame.f_code.co_filename).is_relative_to(package)
    )


def _is_tight(wanted: int = TIGHT) -> bool:
    """Whether this process may have less address space than so many bytes."""
    try:
        import resource
    except ImportError:  # Windows
        return False
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return limit != resource.RLIM_INFINITY and limit < wanted


def refuse_tight(wanted: int) -> None:
    """Raise OutOfMemory under a limit of address space that libraries of a command's cannot be loaded in.

    Below it some of them, such as OpenBLAS, end the process themselves, in words and with exit codes of their own.
    """
    if wanted and _is_tight(wanted):
        what = f"a limit leaves less address space than torch and the libraries beside it take, {wanted / 1e9:.1f} GB"
        raise OutOfMemory(what, where="ulimit -v", fix="raise the limit (ulimit -v unlimited)")


def _is_one(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, known without loading torch
        return True
    if isinstance(error, OSError) and error.errno in NUMBERS:
        return True
    return isinstance(error, (ImportError, RuntimeError, OSError, SystemError)) and bool(SAID.search(str(error)))


class Bug(OfflineCliError):
    """Something that should not happen."""

    exit_code = 1


class OutOfMemory(OfflineCliError):
    """This machine, or its device, has too little memory."""

    exit_code = 6


def report(error: BaseException, invocation: Invocation) -> int:
    """Show `error` on stderr, under `--json` on stdout too, and return the exit code."""
    _RESERVE.close()
    told = explain(error, invocation)
    exit_code = _exit_code(error, told)
    if isinstance(told, _AGREED) and not is_first():
        return exit_code
    if invocation.args[:1] not in _WITH_ON_ERROR:
        told.fix = as_convert_would(told.fix)
    if invocation.debug:
        write(sys.stderr, invocation.without_secrets(_traceback(error)))
    what, fix = _blanked_lines(told.what_lines, invocation), _blanked_lines(_fix_lines(told), invocation)
    told.what, told.where, told.fix = (invocation.without_secrets(text) for text in (told.what, told.where, told.fix))
    write(sys.stderr, _message(what, told.where, fix))
    if invocation.as_json and is_first():
        fields = {key: value for key, value in told.as_dict().items() if key != "exit_code"}
        write(sys.stdout, to_json({**_blanked({**told.result, "error": fields}, invocation), "exit_code": exit_code}))
    return exit_code


def _blanked(value: Any, invocation: Invocation) -> Any:
    """`value` in JSON's own types, without secrets in any of its texts."""
    value = plain(value)
    if isinstance(value, str):
        return invocation.without_secrets(value)
    if isinstance(value, dict):
        return {name: _blanked(item, invocation) for name, item in value.items()}
    return [_blanked(item, invocation) for item in value] if isinstance(value, list) else value


def _exit_code(error: BaseException, told: OfflineCliError) -> int:
    """That of the class; an interruption's is that of the signal."""
    if not isinstance(told, Interrupted):
        return told.exit_code
    behind = next((one.exit_code for one in causes(error) if isinstance(one, StopRequested)), told.exit_code)
    return int(told.details.get("exit_code", behind))


def explain(error: BaseException, invocation: Invocation) -> OfflineCliError:
    """`error` as something that a user can act on."""
    if isinstance(error, OfflineCliError):
        return error
    lost = next((one for one in causes(error) if isinstance(one, ClusterLost)), None)
    if lost is not None:  # torchrun stops those that are left, which may be on their way out
        return lost
    if isinstance(error, UsageProblem):
        return _usage(error, invocation)
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted", where=invocation.command, fix=_again(invocation))
    if is_shortage(error):
        return OutOfMemory(
            f"out of memory: {error}".rstrip(": "),
            where=invocation.command,
            fix="a smaller input, --batch-size, or more memory; a limit of this shell is shown by ulimit -a",
        )
    if isinstance(error, OSError) and error.errno in _STORAGE_ERRNOS:
        return _storage(error, invocation)
    if isinstance(error, ImportError):
        return _missing(error, invocation)
    theirs = _of_plugin(error)
    if theirs is not None:
        return theirs
    return Bug(
        f"a bug in offline-cli: {type(error).__name__}: {error}",
        where=_innermost_place(error),
        fix="the same command with --debug, and report the traceback together with the command",
    )


def _of_plugin(error: BaseException) -> BadData | None:
    """`error` as that of a package which offline-cli was asked to use; None: it is none."""
    from offline_cli.plugins import plugin_behind

    found = plugin_behind(error)
    if found is None:
        return None
    package, place = found
    if package.startswith("python:"):
        fix = "correct it; --debug shows the lines on the way"
        return BadData(f"{package} raised {error!r}", where=place, fix=fix)
    fix = f"pip install --upgrade {package}; --debug shows the lines on the way"
    return BadData(f"the package {package} raised {error!r}", where=place, fix=fix)


def _usage(error: Exception, invocation: Invocation) -> UsageError:
    guesses = getattr(error, "possibilities", None)
    if guesses:  # of options, the parser's are far-fetched
        from difflib import get_close_matches

        error.possibilities = get_close_matches(getattr(error, "option_name", ""), guesses, n=2, cutoff=0.8)  # type: ignore[attr-defined]
    if meant := _meant(error):
        error.possibilities = [meant]  # type: ignore[attr-defined]
    message = getattr(error, "format_message", error.__str__)().replace("Value error, ", "")
    given = invocation.value_of(*getattr(getattr(error, "param", None), "opts", ()))
    if given is not None:
        message = _NO_NUMBER.sub(lambda found: f"{given!r} is not a{'n' * (found[1] == 'integer')} {found[1]}", message)
    place = getattr(getattr(error, "ctx", None), "command_path", invocation.command)  # an unknown command has no help
    elsewhere = _ELSEWHERE.get((place.rpartition(" ")[2], getattr(error, "option_name", "")))
    return UsageError(message, where=place, fix=elsewhere or f"{place} --help")


def _meant(error: Exception) -> str | None:
    """The option of the command that an unknown one means, by a name that other programs have for it."""
    command = getattr(getattr(error, "ctx", None), "command", None)
    names = {name for parameter in getattr(command, "params", ()) for name in parameter.opts}
    name = _MEANT.get(getattr(error, "option_name", ""))
    return name if name in names else None


def _again(invocation: Invocation) -> str:
    """What was written is kept; but nothing is to be resumed where the signal came before anything was."""
    from offline_cli.datasets.file_names import WRITING

    in_out = {"record": WRITING, "convert": WRITING, "train": "*", "train-bc": "*"}  # once writing has begun
    begun = in_out.get(invocation.args[0] if invocation.args else "")
    out = invocation.value_of("--out", "-o")
    if out is not None and _is_committed(Path(out), invocation.began):
        return f"nothing: what was to be written to {out} is complete"
    if begun is None or out is None:
        return "the same command again"
    if "://" in out:
        return "the same command again, with --resume where it had begun to write"
    if not any(Path(out).glob(begun)):
        return "the same command again: nothing had been written"
    return "the same command with --resume, or with --overwrite to begin again"


def _is_committed(out: Path, since: float) -> bool:
    """Whether a dataset here, or all of its parts one folder below, have been committed `since` then."""
    from offline_cli.datasets.file_names import MANIFEST, WRITING

    found = list(out.glob(MANIFEST)) or list(out.glob(f"*/{MANIFEST}"))
    whole = [place for place in found if place.stat().st_mtime >= since and not (place.parent / WRITING).exists()]
    return bool(found) and len(whole) == len(found)


def _missing(error: ImportError, invocation: Invocation) -> OfflineCliError:
    package = (error.name or "").partition(".")[0]
    if not package or package == "offline_cli":
        return Bug(f"a bug in offline-cli: {error}", where=_innermost_place(error), fix="the same command with --debug")
    from offline_cli.storage.providers import known_providers

    extras = {name: one.extra for one in known_providers() for name in one.client}
    extra = extras.get(package) or _EXTRA_OF.get(package)
    install = f"pip install 'offline-cli[{extra}]'" if extra else f"pip install --upgrade {package}"
    return MissingPackage(f"the package {package} cannot be imported: {error}", where=invocation.command, fix=install)


def _storage(error: OSError, invocation: Invocation) -> StorageError:
    kind = StorageNotFound if error.errno == errno.ENOENT else StorageError
    place = str(error.filename) if error.filename is not None else invocation.command
    return kind(str(error.strerror or error), where=place, fix=_STORAGE_ERRNOS[error.errno or 0])


def _innermost_place(error: BaseException) -> str:
    """File and line of the deepest frame in this package, or of the deepest frame at all."""
    frames = traceback.extract_tb(error.__traceback__)
    package = Path(__file__).resolve().parents[1]
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(package)]
    if not frames:
        return "(nowhere)"
    frame = (ours or frames)[-1]
    name = Path(frame.filename).relative_to(package.parent) if ours else frame.filename
    return f"{name}, line {frame.lineno}"


def _message(what: str, where: str, fix: str) -> str:
    labels = ("error:", "at:", "try:")
    if colour_wanted(sys.stderr):
        labels = ("\x1b[1;31merror:\x1b[0m", "\x1b[1mat:\x1b[0m", "\x1b[1;32mtry:\x1b[0m")
    return f"{labels[0]} {what}\n  {labels[1]}  {printable(where)}\n  {labels[2]} {fix}\n"


def _blanked_lines(lines: Sequence[str], invocation: Invocation) -> str:
    """Lines that are ours, each without secrets and line breaks of its own."""
    return "\n".join(printable(invocation.without_secrets(line)) for line in lines)


def _fix_lines(error: OfflineCliError) -> Sequence[str]:
    """What to try; a mapping to start from is a text of several lines."""
    mapping = str(error.details.get("starting_mapping", ""))
    if not mapping or not error.fix.endswith(mapping):
        return [error.fix]
    return [error.fix.removesuffix(mapping).rstrip("\n"), "", *mapping.split("\n")]


def _traceback(error: BaseException) -> str:
    """Frames and messages of `error` and what it came from, innermost first; of each message, line breaks are spelled out."""
    parts = []
    for one in reversed(list(causes(error))):
        said = one.what_in_one_line if isinstance(one, OfflineCliError) else str(one)
        notes = getattr(one, "__notes__", ())
        words = "".join(f"{printable(line)}\n" for line in (f"{type(one).__qualname__}: {said}", *map(str, notes)))
        parts.append("Traceback (most recent call last):\n" + "".join(traceback.format_tb(one.__traceback__)) + words)
    return "\nwhich led to:\n\n".join(parts)
