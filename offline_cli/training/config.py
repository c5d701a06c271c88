"""The configuration of a run, resolved from defaults < stored run < --config file < options, with all mistakes at once.

The schema says what a key may be.

The tables `[algorithm]` and `[network]` name code, ours or another package's, whose options and defaults they hold. The options
of the network "mlp" are keys of the file itself as well (`hidden`, `activation`, `dropout`, `layer_norm`), and are kept there.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any

from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadConfig, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment, refused
from offline_cli.modules.images import AUTO
from offline_cli.modules.network import MLP
from offline_cli.options.option import declared_in
from offline_cli.options.training import BOUND_EPOCHS, DEFAULT_EPOCHS, EVAL_EVERY_RANGE, ConfigKeys
from offline_cli.plugins import network_named
from offline_cli.policies.run_files import CONFIG
from offline_cli.storage.blanking import blanked_call, blanked_values
from offline_cli.storage.local_files import not_found
from offline_cli.training.config_mistakes import (
    BOUNDS,
    DEFAULTS,
    KINDS,
    MLP_KEYS,
    TABLES,
    as_set,
    as_text,
    config_mistakes,
    option_contradictions,
    spelled,
    table_mistakes,
)

__all__ = ["BCConfig", "check_named_again", "differences", "filled", "read_config", "resolve_config", "stored_config"]

_HELP, _PAGE = (
    "`offline-cli train --help` lists the options, with --algorithm NAME its own too",
    "docs/config.md lists the keys of the file",
)


def _default(name: str) -> Any:
    return declared_in(ConfigKeys)[name].option.default


@dataclass(frozen=True, slots=True)
class BCConfig:
    """Every choice of a run but data and output. Fields, units and ranges: `ConfigKeys`, and schemas/config.v1.json."""

    algorithm: Mapping[str, Any] = field(default_factory=lambda: dict(DEFAULTS["algorithm"]))  # `name`, and its options
    network: Mapping[str, Any] = field(default_factory=lambda: dict(DEFAULTS["network"]))  # the same; of "mlp" the next two
    env: str | None = None
    env_kwargs: Mapping[str, Any] | None = None
    wrappers: tuple[str, ...] | None = None
    action_scale: str | None = None
    hidden: tuple[int, ...] = _default("hidden")
    activation: str = _default("activation")
    dropout: float | None = None
    layer_norm: bool | None = None
    batch_size: int = _default("batch_size")
    lr: float = _default("lr")
    lr_schedule: str = _default("lr_schedule")
    lr_warmup: int = _default("lr_warmup")
    weight_decay: float = _default("weight_decay")
    clip_norm: float | None = None
    keep_invented: bool = _default("keep_invented")
    top_fraction: float | None = None
    init_from: str | None = None
    ema: float | None = None
    log_std_min: float | None = None
    log_std_max: float | None = None
    updates: int | None = None
    epochs: int | None = None
    until_return: float | None = None
    val_fraction: float | None = None
    patience: int | None = None
    eval_every: int | None = None
    eval_episodes: int = _default("eval_episodes")
    confirm_episodes: int = _default("confirm_episodes")
    checkpoint_every: int = _default("checkpoint_every")
    log_every: int = _default("log_every")
    device: str = _default("device")
    precision: str = _default("precision")
    threads: int | None = None
    seed: int = _default("seed")
    streaming: bool = _default("streaming")
    memory_limit: int | None = None

    @property
    def bound_name(self) -> str:
        """Which of the two bounds holds: `updates` or `epochs`."""
        return "epochs" if self.updates is None else "updates"

    def bound(self, updates_per_epoch: int) -> int:
        """The update number at which training ends, whatever it has reached."""
        return self.updates if self.updates is not None else (self.epochs or DEFAULT_EPOCHS) * updates_per_epoch

    def check_every(self, updates_per_epoch: int) -> int:
        """Updates between two checks."""
        low, high = EVAL_EVERY_RANGE
        return self.eval_every if self.eval_every is not None else min(max(updates_per_epoch, low), high)

    def as_dict(self) -> dict[str, Any]:
        """What is not None, with lists for tuples: the content of config.toml."""
        fields_ = asdict(self).items()
        plain: dict[str, Any] = {name: list(value) if isinstance(value, tuple) else value for name, value in fields_}
        for table in TABLES:  # TOML has no null: what is None by default is so again when it is read
            plain[table] = {name: value for name, value in plain[table].items() if value is not None}
        plain["env_kwargs"] = blanked_values(self.env_kwargs)
        plain["wrappers"] = None if self.wrappers is None else [*map(blanked_call, self.wrappers)]
        unused = () if self.network["name"] == MLP else MLP_KEYS
        return {name: value for name, value in plain.items() if value is not None and name not in unused}

    @property
    def network_options(self) -> dict[str, Any]:
        """The options of the network."""
        own: dict[str, Any] = {}
        if self.network["name"] == MLP:
            own = {"hidden": [*self.hidden], "activation": self.activation}
            own |= {"dropout": self.dropout or 0.0, "layer_norm": bool(self.layer_norm), "images": AUTO}
        return own | {name: value for name, value in self.network.items() if name != "name"}


def resolve_config(
    options: Mapping[str, Any],
    *,
    file: str | PathLike[str] | None = None,
    stored: Mapping[str, Any] | None = None,
    plugins: Collection[str] = (),
    algorithm: Mapping[str, Any] | None = None,
    network: str | None = None,
) -> BCConfig:
    """The configuration; options that are None were not given. `stored` is that of the run to resume. `plugins`: packages whose
    code may be imported because `stored` names it; what the file, `algorithm` or `network` names is imported. `algorithm`: the
    options of the table that were given, and perhaps its name; they win. `network`: the name of that table, which the file may
    then leave out.

    Raises BadConfig with every mistake in `details["problems"]`, UsageError where options that contradict each other are all
    of them, StorageNotFound for a file that is not there, MissingPackage for a plug-in that cannot be imported.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(given.get("hidden"), Sequence) and not isinstance(given["hidden"], str):
        given["hidden"] = list(given["hidden"])
    twice: list[str] = []
    from_file = folded(_with_name(read_config(file), network), twice) if file is not None else {}
    _check_one_size(given, from_file, file)
    asked = {"algorithm": algorithm} if algorithm else {}
    asked |= {"network": {"name": network}} if network else {}
    for table in asked:
        _check_one_name(table, asked, from_file, file)
    merged = {**(stored or {}), **from_file, **given, **merged_tables(stored or {}, from_file, asked)}
    if stored and "network" in {**from_file, **asked} and merged["network"] != stored.get("network"):
        merged = {name: value for name, value in merged.items() if name not in MLP_KEYS or name in from_file}
    bounds = [source.keys() & set(BOUNDS) for source in (given, from_file, stored or {})]
    bound = next(filter(None, bounds), BOUNDS)  # one replaces whatever bound the sources below it say
    merged = {name: value for name, value in merged.items() if name not in BOUNDS or name in bound}
    problems = twice + config_mistakes(merged, given)
    if isinstance(merged.get("env_kwargs"), Mapping) and _has_null(merged["env_kwargs"]):
        name = spelled("env_kwargs", "env_kwargs" in given)
        problems.append(f"{name}: null cannot be kept in config.toml; a function may set it: --env python:module:make_env")
    own = [table for table in TABLES if table in from_file or "name" in asked.get(table, {})]
    problems += [as_set(text, algorithm or {}) for text in table_mistakes(merged, own=own, packages=plugins)]
    if problems:
        kind = UsageError if set(problems) <= set(option_contradictions(merged, given)) else BadConfig
        raise kind.of(problems, where=_sources(file, given, stored), fix=_HELP if file is None else f"{_HELP}; {_PAGE}")
    return _made({**merged, **{table: filled(table, merged[table]) for table in TABLES if table in merged}})


def _has_null(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_null, value.values()))
    return any(map(_has_null, value)) if isinstance(value, list | tuple) else value is None


def _check_one_size(given: Mapping[str, Any], from_file: Mapping[str, Any], file: str | PathLike[str] | None) -> None:
    """Raise UsageError where option and file name two sizes of the network: a checkpoint's weights have one."""
    asked, said = given.get("hidden"), from_file.get("hidden")
    if asked is not None and said is not None and asked != said:
        what = f"--hidden says {','.join(map(str, asked))}, and the file says {as_text(said)}"
        raise UsageError(what, where=f"--hidden and {file}", fix="give the widths in one of the two")


def _check_one_name(
    table: str, asked: Mapping[str, Any], from_file: Mapping[str, Any], file: str | PathLike[str] | None
) -> None:
    """Raise UsageError where option and file name two algorithms, or networks: the options in the file are those of one."""
    names = [found.get("name") for source in (asked, from_file) if isinstance(found := source.get(table), Mapping)]
    if len(names) == 2 and None not in names and names[0] != names[1]:
        what = f"--{table} says {names[0]}, and the file's [{table}] {names[1]}"
        raise UsageError(what, where=f"--{table} and {file}", fix=f"name the {table} in one of the two")


def _with_name(document: dict[str, Any], network: str | None) -> dict[str, Any]:
    """The file with the name that the option gives its table of the network, and `python:` before a file of code there."""
    table = document.get("network")
    if not isinstance(table, Mapping):
        return document
    name = table.get("name", network)
    return {**document, "network": {**table, **({} if name is None else {"name": _named(name)})}}


def _named(name: Any) -> Any:
    return network_named(name) if isinstance(name, str) else name


def stored_config(stored: Mapping[str, Any]) -> BCConfig:
    """The configuration that a run folder holds, without importing what its tables name. Raises BadConfig."""
    problems = config_mistakes(stored, ())
    if problems:
        raise BadConfig.of(problems, where=_sources(None, {}, stored), fix=_PAGE)
    return _made(dict(stored))


def _made(merged: dict[str, Any]) -> BCConfig:
    if not merged.keys() & set(BOUNDS):
        merged["epochs"] = BOUND_EPOCHS if {"until_return", "patience"} & merged.keys() else DEFAULT_EPOCHS
    merged |= {name: tuple(merged[name]) for name in ("hidden", "wrappers") if name in merged}
    return BCConfig(**merged)


def _sources(file: str | PathLike[str] | None, given: Mapping[str, Any], stored: Mapping[str, Any] | None) -> str:
    """Where the keys came from, as text."""
    sources = {"options": given, "the run's config.toml": stored, str(file): file}
    return " and ".join(name for name, used in sources.items() if used) or "options"


def differences(stored: BCConfig, wanted: BCConfig) -> list[str]:
    """What distinguishes the two, as text, except their bounds where the learning rate is constant, and a limit on memory where
    nothing streams: no update depends on these.
    """
    free = set[str]() if stored.streaming or wanted.streaming else {"memory_limit"}
    if "constant" in (stored.lr_schedule, wanted.lr_schedule):  # else the rate of each update depends on the bound
        free.update(BOUNDS)
    before, now = _flat(stored), _flat(wanted)
    names = [name for name in dict.fromkeys((*before, *now)) if name not in free]
    pairs = ((name, before.get(name), now.get(name)) for name in names)
    return [f"{name}: the run has {_shown(old)}, this call asks for {_shown(new)}" for name, old, new in pairs if old != new]


def check_named_again(wanted: BCConfig, said: Collection[str], *, where: str) -> None:
    """Raise BadConfig where a run folder alone names an environment that only its user may name; `said`: what he does."""
    asked = AskedEnvironment.of({**asdict(wanted), "env_kwargs": None})
    if asked is None:
        return
    env, again = asked.id, list[str]()
    what = f"the run's {CONFIG} names "
    if ":" in env and "env" not in said:  # that is imported for the caller alone
        what += f"an environment that is code, {env}; no code is imported because a run folder names it"
        again.append(f"--env {shlex.quote(env)}")
    spec = EnvironmentSpec(env, wanted.env_kwargs or {}, tuple(asked.wrappers or ()))
    wrong = dict(zip(("kwargs", "wrappers"), refused(spec), strict=True))
    needed = {name: bool(wrong[name]) and key not in said for name, key in (("kwargs", "env_kwargs"), ("wrappers", "wrappers"))}
    if any(needed.values()):
        reasons = [reason for name in needed if needed[name] for reason in wrong[name]]
        what += f"{'; and ' if again else ''}what is not taken from a run folder: {'; '.join(reasons)}"
        again.append(spec.flags(**needed))
    if again:
        raise BadConfig(what, where=where, fix=f"if that is yours, name it again: {' '.join(again)}")


def _flat(config: BCConfig) -> dict[str, Any]:
    """Each field, and each entry of a table as `table.key`."""
    plain = {field.name: getattr(config, field.name) for field in fields(config)}
    found = {name: value for name, value in plain.items() if name not in TABLES}
    found |= {name: value for name, value in config.as_dict().items() if name in ("env_kwargs", "wrappers")}  # without secrets
    return found | {f"{table}.{key}": value for table in TABLES for key, value in plain[table].items()}


def _shown(value: Any) -> str:
    return "none" if value is None else str(list(value) if isinstance(value, tuple) else value)


def read_config(file: str | PathLike[str]) -> dict[str, Any]:
    """What a file of the user's says, unchecked. Raises BadConfig where it is not TOML, StorageNotFound."""
    path = Path(file)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise not_found(path, "no such config file", where=str(path), fix="check the path") from err
    except (ValueError, RecursionError) as err:  # ValueError: TOMLDecodeError, text that is not UTF-8, a date that is none
        raise BadConfig(f"not TOML: {err}", where=str(path), fix="see https://toml.io for the syntax") from err


def folded(document: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """A user's file with the options of `[network] name = "mlp"` as keys of its own; what is said twice goes to `problems`."""
    table = document.get("network")
    if not isinstance(table, Mapping) or table.get("name", MLP) != MLP:
        return dict(document)
    problems += [f"{name} and network.{name}: give one of the two" for name in MLP_KEYS if name in table and name in document]
    rest = {"name": MLP} | {name: value for name, value in table.items() if name not in MLP_KEYS}
    return {**document, "network": rest} | {name: table[name] for name in MLP_KEYS if name in table}


def merged_tables(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """Both tables: options of each source over those of the one before it, where they are those of one algorithm, or network.

    The last source may leave out the name.
    """
    found: dict[str, Any] = {}
    for table in TABLES:
        for source in sources:
            old, new = found.get(table), source.get(table)
            if source is sources[-1] and isinstance(new, Mapping):
                new = {"name": (old if isinstance(old, Mapping) else DEFAULTS[table]).get("name"), **new}
            if isinstance(old, Mapping) and isinstance(new, Mapping) and old.get("name") == new.get("name"):
                found[table] = {**old, **new}
            elif new is not None:
                found[table] = new
    return found


def filled(table: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A checked table with the defaults of its schema."""
    if table == "network" and given["name"] == MLP and "memory" not in given:
        return dict(given)
    properties = KINDS[table](given["name"]).schema.get("properties", {})
    defaults = {name: key["default"] for name, key in properties.items() if "default" in key}
    if given["name"] == MLP:  # the rest are keys of the file
        defaults = {name: value for name, value in defaults.items() if name not in MLP_KEYS}
    return {"name": given["name"], **defaults, **given}
