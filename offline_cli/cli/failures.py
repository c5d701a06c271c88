"""Turns any exception into one message and one exit code; a traceback is shown only with `--debug`."""

from __future__ import annotations

import errno
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

__all__ = ["Bug", "OutOfMemory", "UsageProblem", "explain", "is_shortage", "report"]

SHORTAGE: Final = re.compile(
    "cannot allocate memory|can't allocate memory|can't start new thread|out of memory|std::bad_alloc", re.I
)

UsageProblem: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises for a wrong command line. Newer versions have a click of their own; this name holds for all."""

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
    """Whether `error` is, or came from, a lack of memory or threads, in the words of Python, torch, C++ or Linux."""
    return any(
        isinstance(one, MemoryError)
        or type(one).__name__ == "OutOfMemoryError"  # torch's, known without loading torch
        or getattr(one, "errno", None) == errno.ENOMEM
        or (isinstance(one, (ImportError, RuntimeError, OSError)) and bool(SHORTAGE.search(str(one))))
        for one in causes(error)
    )


class Bug(OfflineCliError):
    """Something that should not happen."""

    exit_code = 1


class OutOfMemory(OfflineCliError):
    """This machine, or its device, has too little memory."""

    exit_code = 6


def report(error: BaseException, invocation: Invocation) -> int:
    """Show `error` on stderr, under `--json` on stdout too, and return the exit code."""
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
    place = getattr(getattr(error, "ctx", None), "command_path", invocation.command)  # an unknown command has no help
    return UsageError(message, where=place, fix=f"{place} --help")


def _meant(error: Exception) -> str | None:
    """The option of the command that an unknown one means, by a name that other programs have for it."""
    command = getattr(getattr(error, "ctx", None), "command", None)
    names = {name for parameter in getattr(command, "params", ()) for name in parameter.opts}
    name = _MEANT.get(getattr(error, "option_name", ""))
    return name if name in names else None


def _again(invocation: Invocation) -> str:
    """What was written is kept; but nothing is to be resumed where the signal came before anything was."""
    out = invocation.value_of("--out", "-o")
    if out is None:
        return "the same command again"
    if "://" in out or Path(out).exists():
        return "the same command again, with --resume where it had begun to write"
    return "the same command again: nothing had been written"


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
