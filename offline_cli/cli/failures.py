"""Turn any exception into one message and one exit code; show a traceback only with `--debug`."""

from __future__ import annotations

import errno
import re
import sys
import textwrap
import traceback
from typing import Any, Final

import typer

from offline_cli.cli.command import About
from offline_cli.cli.invocation import Invocation
from offline_cli.cli.render import plain, to_json
from offline_cli.cli.streams import colour_wanted, printable, write
from offline_cli.engines.ranks import is_first
from offline_cli.errors import (
    BadData,
    ClusterLost,
    Interrupted,
    MissingPackage,
    OfflineCliError,
    StorageError,
    StorageNotFound,
    TargetNotMet,
    TrainingDiverged,
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
"""Typer's usage error. Newer versions bundle their own click; this works for all."""

_AGREED: Final = (Interrupted, TargetNotMet, TrainingDiverged)  # raised in every training process; only the first reports it
_EXTRA_OF: Final = {"ray": "ray", "minari": "minari", "h5py": "hdf5", "stable_baselines3": "sb3"}
_FIXES: Final = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "use a path with read and write permission"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EIO), "use another disk, or free some space"),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG), "check the path"),
}


def is_shortage(error: BaseException) -> bool:
    """Whether `error` was caused by a lack of memory or threads, reported by Python, torch, C++ or Linux."""
    return any(
        isinstance(one, MemoryError)
        or type(one).__name__ == "OutOfMemoryError"  # torch's, without importing torch
        or getattr(one, "errno", None) == errno.ENOMEM
        or (isinstance(one, (ImportError, RuntimeError, OSError)) and bool(SHORTAGE.search(str(one))))
        for one in causes(error)
    )


class Bug(OfflineCliError):
    """An unexpected exception."""

    exit_code = 1


class OutOfMemory(OfflineCliError):
    """The machine or its device is out of memory."""

    exit_code = 6


def report(error: BaseException, invocation: Invocation) -> int:
    """Show `error` on stderr, with `--json` also on stdout, and return the exit code."""
    told = explain(error, invocation)
    exit_code = _exit_code(error, told)
    if isinstance(told, _AGREED) and not is_first():
        return exit_code
    if invocation.args[:1] not in (("convert",), ("inspect",)):
        told.fix = as_convert_would(told.fix)
    if invocation.has("--debug"):
        frames = "".join(traceback.format_exception(error))
        write(sys.stderr, invocation.without_secrets(textwrap.indent(frames, "  ")))
    write(sys.stderr, invocation.without_secrets(_message(told)))
    if invocation.as_json and is_first():
        fields = {key: value for key, value in told.as_dict().items() if key != "exit_code"}
        write(sys.stdout, to_json({**_blanked({**told.result, "error": fields}, invocation), "exit_code": exit_code}))
    return exit_code


def _message(told: OfflineCliError) -> str:
    """What, where and fix in three lines, or more for several mistakes or a starting mapping."""
    labels = ("error:", "at:", "try:")
    if colour_wanted(sys.stderr):
        labels = ("\x1b[1;31merror:\x1b[0m", "\x1b[1mat:\x1b[0m", "\x1b[1;32mtry:\x1b[0m")
    mapping = str(told.details.get("starting_mapping", ""))
    fix = [told.fix.removesuffix(mapping).rstrip("\n"), *(["", *mapping.split("\n")] if mapping else [])]
    what, tried = ("\n".join(map(printable, lines)) for lines in (told.what_lines, fix))
    return f"{labels[0]} {what}\n  {labels[1]}  {printable(told.where)}\n  {labels[2]} {tried}\n"


def _blanked(value: Any, invocation: Invocation) -> Any:
    """`value` in JSON types, with secrets in strings blanked out."""
    value = plain(value)
    if isinstance(value, str):
        return invocation.without_secrets(value)
    if isinstance(value, dict):
        return {name: _blanked(item, invocation) for name, item in value.items()}
    return [_blanked(item, invocation) for item in value] if isinstance(value, list) else value


def _exit_code(error: BaseException, told: OfflineCliError) -> int:
    """The exit code of the error class; for an interruption that of the signal."""
    if not isinstance(told, Interrupted):
        return told.exit_code
    behind = next((one.exit_code for one in causes(error) if isinstance(one, StopRequested)), told.exit_code)
    return int(told.details.get("exit_code", behind))


def explain(error: BaseException, invocation: Invocation) -> OfflineCliError:
    """Translate `error` into an OfflineCliError with a fix."""
    if isinstance(error, OfflineCliError):
        return error
    lost = next((one for one in causes(error) if isinstance(one, ClusterLost)), None)
    if lost is not None:  # torchrun stops the other processes
        return lost
    where = invocation.command
    if isinstance(error, UsageProblem):
        message = getattr(error, "format_message", error.__str__)().replace("Value error, ", "")
        ctx = getattr(error, "ctx", None)
        where = getattr(ctx, "command_path", where)  # an unknown command has no help
        elsewhere = getattr(getattr(ctx, "command", None), "about", About()).elsewhere
        other = elsewhere.get(getattr(error, "option_name", ""))
        return UsageError(message, where=where, fix=f"offline-cli {other} has this option" if other else f"see {where} --help")
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted", where=where, fix="run the same command again")
    if is_shortage(error):
        fix = "use a smaller input or --batch-size, or more memory; ulimit -a shows limits of the shell"
        return OutOfMemory(f"out of memory: {error}".rstrip(": "), where=where, fix=fix)
    if isinstance(error, OSError) and error.errno in _FIXES:
        kind = StorageNotFound if error.errno == errno.ENOENT else StorageError
        return kind(str(error.strerror or error), where=str(error.filename or where), fix=_FIXES[error.errno])
    missing = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if missing not in ("", "offline_cli"):
        what = f"the package {missing} cannot be imported: {error}"
        return MissingPackage(what, where=where, fix=f"pip install {_distribution(missing)}")
    return _of_plugin(error) or Bug(
        f"a bug in offline-cli: {type(error).__name__}: {error}",
        where=_innermost_place(error),
        fix="run the same command with --debug, and report the traceback with the command",
    )


def _distribution(package: str) -> str:
    """The pip requirement of a missing package: our extra that includes it, or the package itself."""
    from offline_cli.storage.providers import PROVIDERS

    extras = {name: one.extra for one in PROVIDERS for name in one.client} | _EXTRA_OF
    return f"'offline-cli[{extras[package]}]'" if package in extras else f"--upgrade {package}"


def _of_plugin(error: BaseException) -> BadData | None:
    """Translate an error of a plug-in package or user code; None for other errors."""
    from offline_cli.plugins import plugin_behind

    package, place = plugin_behind(error) or ("", "")
    if not package:
        return None
    is_code = package.startswith("python:")
    fix = "fix this code" if is_code else f"pip install --upgrade {package}"
    what = f"{'' if is_code else 'the package '}{package} raised {error!r}"
    return BadData(what, where=place, fix=f"{fix}; --debug shows the traceback")


def _innermost_place(error: BaseException) -> str:
    """File and line of the deepest frame."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "(nowhere)"
