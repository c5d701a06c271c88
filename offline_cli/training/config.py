"""BCConfig, the configuration of a run: the model of `train --config` files and RUN/config.toml, and how it is resolved.

Precedence: defaults < stored run < --config file < options; all mistakes are reported at once. The tables `[algorithm]` and
`[network]` name a class, built-in or from another package, and hold its options, validated by its JSON Schema. The options of
the network "mlp" are also top-level keys (`hidden`, `activation`, `dropout`, `layer_norm`). Messages name a key as an option if
it came from the command line, else as in the file.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Final

import tomli_w
from annotated_types import MinLen
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from offline_cli.checked_keywords import as_option, worded
from offline_cli.choices import (
    ACTIVATION,
    ENV_FORMS,
    HIDDEN,
    ActionScale,
    Activation,
    Count,
    Device,
    DropShare,
    NotNegative,
    OpenShare,
    Positive,
    Precision,
    Schedule,
    Share,
    Tracker,
    Whole,
)
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadConfig, StorageNotFound, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment, refused
from offline_cli.modules.encoders import encoder_kind
from offline_cli.modules.network import LAYERS, MLP, network_kind
from offline_cli.plugins import network_named
from offline_cli.policies.by_name import is_code
from offline_cli.policies.run_policy import CONFIG
from offline_cli.schema_files import mistakes_by, toml_schema
from offline_cli.storage.blanking import blanked_call, blanked_values
from offline_cli.training.algorithms.algorithm import algorithm_kind

__all__ = ["GATES", "BCConfig", "allowed", "check_named_again", "config_schema", "differences", "filled", "flat"]
__all__ += ["read_config", "resolve_config", "stored_config"]

DEFAULT_EPOCHS, BOUND_EPOCHS = 20, 200
EVAL_EVERY_RANGE = (100, 1000)  # updates
BOUNDS = ("updates", "epochs")
GATES = {"max_val_loss": "loss", "min_accuracy": "accuracy"}  # held-out score that each option limits
TABLES = ("algorithm", "network")  # tables that name a class and hold its options
MLP_KEYS = tuple(LAYERS)  # options of the network mlp that are also top-level keys

Text = Annotated[str, MinLen(1)]


def _with_name(table: Mapping[str, Any]) -> Mapping[str, Any]:
    if not (isinstance(table.get("name"), str) and table["name"]):
        raise ValueError("must be a table with a name")
    return table


NAMED = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "minLength": 1}}}
Table = Annotated[Mapping[str, Any], AfterValidator(_with_name), WithJsonSchema(NAMED)]


class BCConfig(BaseModel):
    """All settings of a run except data and output."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, title="Configuration of train")

    algorithm: Table = Field(default={"name": "bc"}, description="Learning algorithm: its name and options.")
    network: Table = Field(default={"name": MLP}, description="Network of all modules: its name and options.")
    env: Text | None = Field(default=None, description=f"Environment for measuring returns: {ENV_FORMS}.")
    env_kwargs: Mapping[str, Any] | None = Field(
        default=None, description="Arguments of the environment. Default: those in the manifest, or run folder."
    )
    wrappers: tuple[str, ...] | None = Field(
        default=None, strict=False, description="Wrappers around the environment, inner first. Default: those in the manifest."
    )
    agent: Text | None = Field(
        default=None, description="Learn from this agent's episodes, and play it in checks. Default: all agents."
    )
    policy: tuple[Text, ...] | None = Field(
        default=None,
        strict=False,
        description="Policies of the other agents in checks, AGENT=POLICY each. Default: random; needs `agent`.",
    )
    action_scale: ActionScale | None = Field(
        default=None,
        description="Scale of recorded Box actions: the environment's own, or [-1, 1]. Default: what the data declares.",
    )
    hidden: tuple[Count, ...] = Field(
        default=HIDDEN, strict=False, max_length=1000, description="Widths of the hidden layers of the network mlp."
    )
    activation: Activation = Field(
        default=ACTIVATION, description="Activation between hidden layers; linear, as in RLlib, is none."
    )
    dropout: DropShare | None = Field(default=None, description="Dropout probability after each hidden layer. Default: none.")
    layer_norm: bool | None = Field(default=None, description="Layer norm after each hidden layer. Default: off.")
    batch_size: Count = Field(default=1024, description="Steps per update.")
    lr: Positive = Field(default=5e-4, description="Learning rate of Adam.")
    lr_schedule: Schedule = Field(
        default="constant", description="Decay of the learning rate after `lr_warmup`, to 0 at the end."
    )
    lr_warmup: Whole = Field(default=0, description="Updates in which the learning rate rises linearly from 0 to `lr`.")
    weight_decay: NotNegative = Field(default=0.0, description="Decoupled weight decay (AdamW).")
    clip_norm: Positive | None = Field(default=None, description="Clip gradients to this norm. Default: none.")
    keep_invented: bool = Field(default=False, description="Keep last steps without a recorded next observation.")
    top_fraction: Share | None = Field(
        default=None, description="Learn only from this share of the episodes with the highest returns. Default: all."
    )
    init_from: Text | None = Field(
        default=None, description="Run folder (path or URL) whose policy initialises this run. Default: random weights."
    )
    ema: OpenShare | None = Field(
        default=None, description="Decay of a moving average of the policy's weights, which is checked and kept instead."
    )
    log_std_min: float | None = Field(
        default=None, description="Lower bound on log sigma of Box actions. Default: the algorithm's."
    )
    log_std_max: float | None = Field(
        default=None, description="Upper bound on log sigma of Box actions. Default: the algorithm's."
    )
    updates: Count | None = Field(default=None, description="Stop after this many updates; excludes `epochs`.")
    epochs: Count | None = Field(
        default=None,
        description="Stop after this many passes over the data; excludes `updates`. "
        f"Default: {DEFAULT_EPOCHS}, or {BOUND_EPOCHS} with `until_return` or `patience`.",
    )
    until_return: float | None = Field(
        default=None,
        description="Stop when the mean return (of `agent`, if there are several) is at least this, confirmed on "
        "`confirm_episodes` episodes; needs `env`.",
    )
    val_fraction: OpenShare | None = Field(
        default=None, description="Share of the episodes held out for validation. Default: none."
    )
    max_val_loss: float | None = Field(
        default=None, description="Fail if the kept policy's held-out loss is above this; needs `val_fraction`."
    )
    min_accuracy: Share | None = Field(
        default=None, description="Fail if the kept policy's held-out accuracy is below this; needs `val_fraction`."
    )
    patience: Count | None = Field(
        default=None, description="Stop after this many checks without a better validation loss; needs `val_fraction`."
    )
    eval_every: Count | None = Field(
        default=None,
        description="Updates between two checks. Default: one epoch, limited to {} to {}.".format(*EVAL_EVERY_RANGE),
    )
    eval_episodes: Count = Field(default=20, description="Greedy episodes per check.")
    confirm_episodes: Count = Field(default=100, description="Fresh episodes that must confirm `until_return`.")
    checkpoint_every: Count = Field(default=500, description="Updates between two checkpoints.")
    log_every: Count = Field(default=50, description="Updates between two rows of metrics.jsonl.")
    device: Device = Field(default="auto", description="Device of the network; auto uses a GPU if there is one.")
    precision: Precision = Field(
        default="auto", description="Precision of the network's arithmetic; weights stay fp32; auto is fp32."
    )
    compile: bool = Field(default=False, description="Compile the losses with torch.compile.")
    threads: Count | None = Field(
        default=None, description="CPU threads of the network. Default: 1 for small networks, else torch's."
    )
    seed: Whole = Field(default=0, description="Random seed.")
    track: tuple[Tracker, ...] | None = Field(
        default=None,
        strict=False,
        description="Trackers that log the rows of metrics.jsonl, below the run folder. Default: none.",
    )
    streaming: bool = Field(default=False, description="Keep the steps on disk while training, to stay within `memory_limit`.")
    memory_limit: Count | None = Field(
        default=None,
        description="Memory limit of the data in bytes, besides what torch takes. Default: 1 GiB with `streaming`, else none.",
    )

    @property
    def bound_name(self) -> str:
        """The option that bounds the run: `updates` or `epochs`."""
        return "epochs" if self.updates is None else "updates"

    def bound(self, updates_per_epoch: int) -> int:
        """Maximum number of updates."""
        return self.updates if self.updates is not None else (self.epochs or DEFAULT_EPOCHS) * updates_per_epoch

    def check_every(self, updates_per_epoch: int) -> int:
        """Updates between two checks."""
        low, high = EVAL_EVERY_RANGE
        return self.eval_every if self.eval_every is not None else min(max(updates_per_epoch, low), high)

    def as_dict(self) -> dict[str, Any]:
        """The content of config.toml: values that are not None, with lists for tuples, without secrets."""
        plain: dict[str, Any] = {name: list(value) if isinstance(value, tuple) else value for name, value in self}
        for table in TABLES:  # TOML has no null; reading restores None
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
            own |= {"dropout": self.dropout or 0.0, "layer_norm": bool(self.layer_norm)}
        return own | {name: value for name, value in self.network.items() if name != "name"}


def config_schema() -> dict[str, Any]:
    """The JSON Schema of the file, schemas/config.v1.json, written by `make docs`."""
    description = "Keys of `train --config FILE` (TOML) and RUN/config.toml."
    return toml_schema(BCConfig, "offline-cli/config.v1.json", description=description)


# ---- resolving ----

HELP: Final = (
    'see `offline-cli train --help` (with --algorithm NAME for its options), or "Configuration of train" in the documentation'
)
KINDS: Final[dict[str, Callable[..., Any]]] = {"algorithm": algorithm_kind, "network": network_kind}
NEEDS: Final = (
    ("until_return", "env", "an environment to play in"),
    ("env_kwargs", "env", "the environment of these arguments"),
    ("wrappers", "env", "the environment to wrap"),
    ("policy", "env", "the environment to play in"),
    ("policy", "agent", "the learning agent"),
    *((name, "val_fraction", "episodes held out for validation") for name in ("patience", *GATES)),
)


def resolve_config(
    options: Mapping[str, Any],
    *,
    file: str | PathLike[str] | None = None,
    said: Mapping[str, Any] | None = None,
    stored: Mapping[str, Any] | None = None,
    plugins: Collection[str] = (),
    algorithm: Mapping[str, Any] | None = None,
    network: str | None = None,
) -> BCConfig:
    """Resolve the configuration; options that are None are unset. `said`: content of `file`, if already read. `stored`: that of
    the run to resume. `plugins`: packages that `stored` may import; those named by the file, `algorithm` or `network` are
    imported. `algorithm`: options of that table, and optionally its name; `network`: name of that table. A table in the file
    may omit a name that is given here.

    Raises BadConfig with every mistake in `details["problems"]`, UsageError if all mistakes are contradictory options,
    StorageNotFound for a missing file, MissingPackage for a plug-in that cannot be imported.
    """
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items() if value is not None}
    said, before = said if said is not None else {} if file is None else read_config(file), stored or {}
    places = {"options": given, "the run's config.toml": stored, str(file): file}
    where = " and ".join(place for place, has in places.items() if has) or "options"
    merged: dict[str, Any] = {}
    for source in (before, said, given):
        if not source.keys().isdisjoint(BOUNDS):  # a bound replaces both bounds of lower precedence
            merged = {name: value for name, value in merged.items() if name not in BOUNDS}
        merged |= source
    asked = {"algorithm": dict(algorithm or {}), "network": {} if network is None else {"name": network}}
    own = [table for table in TABLES if table in said or "name" in asked[table]]  # tables set by the user
    for table in TABLES:
        if isinstance(said.get(table, {}), Mapping) and (table in merged or asked[table]):
            merged[table] = _table(table, before.get(table), said.get(table, {}), asked[table])
    contradictions = _contradictions(merged, given)
    mistakes = [*_key_mistakes(merged, given), *_table_mistakes(merged, own, plugins)]
    if mistakes or contradictions:
        kind = UsageError if not mistakes and contradictions == _contradictions(given, given) else BadConfig
        raise kind.of([*mistakes, *contradictions], where=where, fix=HELP)
    brought = algorithm_kind(merged["algorithm"]["name"]).settings if "algorithm" in merged else {}
    if merged.get("network", {}).get("name", MLP) != MLP:
        brought = {name: value for name, value in brought.items() if name not in MLP_KEYS}
    made = _made({**brought, **merged, **{table: filled(table, merged[table]) for table in TABLES if table in merged}})
    try:
        tomli_w.dumps(made.as_dict())
    except TypeError as err:
        fix = "set it in a function: --env python:module:make_env"
        raise BadConfig(f"config.toml cannot hold this: {err}", where=where, fix=fix) from err
    return made


def _table(table: str, stored: Mapping[str, Any] | None, said: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a table's options by precedence; another name discards the options of the former one."""
    found = dict(stored or BCConfig.model_fields[table].default)
    for source in (said, asked):
        name = source.get("name", asked.get("name", found["name"]))
        name = network_named(name) if table == "network" and isinstance(name, str) else name
        if source:
            found = {**(found if name == found["name"] else {}), **source, "name": name}
    return found


def stored_config(stored: Mapping[str, Any]) -> BCConfig:
    """The configuration of a run folder, without importing the classes of its tables. Raises BadConfig."""
    if problems := [*_key_mistakes(stored, ()), *_contradictions(stored, ())]:
        raise BadConfig.of(problems, where="the run's config.toml", fix=HELP)
    return _made(stored)


def _made(merged: Mapping[str, Any]) -> BCConfig:
    bound = BOUND_EPOCHS if {"until_return", "patience"} & merged.keys() else DEFAULT_EPOCHS
    return BCConfig.model_validate(dict(merged) if merged.keys() & {*BOUNDS} else {**merged, "epochs": bound})


def read_config(file: str | PathLike[str]) -> dict[str, Any]:
    """Read the user's file, without validation. Raises BadConfig unless it is TOML, StorageNotFound."""
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise StorageNotFound("no such config file", where=str(file), fix="check the path") from err
    except (ValueError, RecursionError) as err:  # ValueError: TOMLDecodeError, not UTF-8, an invalid date
        raise BadConfig(f"not TOML: {err}", where=str(file), fix="see https://toml.io for the syntax") from err


def filled(table: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A validated table with the defaults of its schema."""
    is_mlp = table == "network" and given["name"] == MLP
    if is_mlp and "memory" not in given:
        return dict(given)
    properties = KINDS[table](given["name"]).schema.get("properties", {})
    defaults = {name: key["default"] for name, key in properties.items() if "default" in key}
    return {"name": given["name"]} | {one: defaults[one] for one in defaults if not (is_mlp and one in MLP_KEYS)} | dict(given)


# ---- a stored configuration and a new one ----


def flat(config: BCConfig) -> dict[str, Any]:
    """Each field, and each entry of a table as `table.key`, without secrets."""
    blank = {name: value for name, value in config.as_dict().items() if name in ("env_kwargs", "wrappers")}
    found = {name: value for name, value in config if name not in TABLES} | blank
    return found | {f"{table}.{key}": value for table in TABLES for key, value in getattr(config, table).items()}


def differences(stored: BCConfig, wanted: BCConfig) -> list[str]:
    """Differences between the two, as messages, except for settings that no update depends on: trackers, limits on scores,
    bounds if the learning rate is constant, and the memory limit without streaming.
    """
    free = {"track", *GATES, *(() if stored.streaming or wanted.streaming else ("memory_limit",))}
    free.update(BOUNDS if "constant" in (stored.lr_schedule, wanted.lr_schedule) else ())
    before, now = flat(stored), flat(wanted)
    return [
        f"{name}: the run has {before.get(name, 'none')}, this call {now.get(name, 'none')}"
        for name in {**before, **now}
        if name not in free and before.get(name) != now.get(name)
    ]


def check_named_again(wanted: BCConfig, said: Collection[str], *, where: str) -> None:
    """Raise BadConfig for code, arguments or wrappers of environment and policies that come from the run folder only: the user
    must name them again. `said`: keys that the user has set.
    """
    asked = AskedEnvironment.of({**dict(wanted), "env_kwargs": None})
    if asked is None:
        return
    spec = EnvironmentSpec(asked.id, wanted.env_kwargs or {}, tuple(asked.wrappers or ()))
    reasons = dict(zip(("env_kwargs", "wrappers"), refused(spec), strict=True))
    reasons = {name: [] if name in said else found for name, found in reasons.items()}
    named, again = [text for found in reasons.values() for text in found], list[str]()
    if ":" in asked.id and "env" not in said:
        named.append(f"the environment {asked.id}")
        again.append(f"--env {shlex.quote(asked.id)}")
    if "policy" not in said and any(is_code(text.partition("=")[2]) for text in wanted.policy or ()):
        named.append(f"the policies {', '.join(wanted.policy or ())}")
        again += [f"--policy {shlex.quote(text)}" for text in wanted.policy or ()]
    if any(reasons.values()):
        again.append(spec.flags(kwargs=bool(reasons["env_kwargs"]), wrappers=bool(reasons["wrappers"])))
    if named:
        what = f"the run's {CONFIG} names code that is not imported from a run folder: {'; '.join(named)}"
        raise BadConfig(what, where=where, fix=f"if it is yours, name it again: {' '.join(again)}")


# ---- mistakes ----


def _spelled(name: str, options: Collection[str]) -> str:
    return as_option(name) if name in options else name


def _key_mistakes(config: Mapping[str, Any], options: Collection[str]) -> list[str]:
    """Messages for unknown keys and invalid values."""
    found = []
    try:
        BCConfig.model_validate(dict(config))
    except ValidationError as err:
        for one in err.errors():
            name = str(one["loc"][0])
            near = get_close_matches(name.replace("-", "_"), BCConfig.model_fields, n=1)
            if one["type"] == "extra_forbidden":
                found.append(f"unknown key '{name}'" + (f", did you mean '{near[0]}'?" if near else ""))
            else:
                found.append(f"{_spelled(name, options)}: {worded(one, config[name])}")
    return list(dict.fromkeys(found))


def _contradictions(config: Mapping[str, Any], options: Collection[str]) -> list[str]:
    """Messages for keys that exclude or need another one."""
    found = []
    if config.keys() >= set(BOUNDS):
        found.append(f"{' and '.join(_spelled(name, options) for name in BOUNDS)} are mutually exclusive")
    low, high = config.get("log_std_min"), config.get("log_std_max")
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        found.append(f"{_spelled('log_std_min', options)} {low:g} is above {_spelled('log_std_max', options)} {high:g}")
    for name, needed, what in NEEDS:
        if name in config and needed not in config:
            found.append(f"{_spelled(name, options)}: needs {as_option(needed) if name in options else needed}, {what}")
    network = config.get("network", {})
    for name in MLP_KEYS if isinstance(network, Mapping) else ():
        if name in config and network.get("name", MLP) != MLP:
            found.append(f"{name}: only for the network {MLP!r}; put options of other networks in [network]")
        elif name in config and name in network:
            found.append(f"{name} and network.{name} are mutually exclusive")
    return found


def _table_mistakes(config: Mapping[str, Any], own: Collection[str], packages: Collection[str]) -> list[str]:
    """Messages for all mistakes in both tables. `own`: tables set by the user; other tables may only name built-in classes, and
    those of `packages`.

    Raises BadConfig for code that the user has not named, MissingPackage for a plug-in that cannot be imported.
    """
    problems = []
    for table in TABLES:
        given = config.get(table, BCConfig.model_fields[table].default)
        if not (isinstance(given, Mapping) and isinstance(given.get("name"), str)):
            continue  # reported by the model
        named = None if table in own else packages
        found = {name: value for name, value in given.items() if name != "name"}
        try:
            kind = KINDS[table](given["name"], named=named)
            if given["name"] == MLP and isinstance(found.get("encoder"), str):
                encoder_kind(found["encoder"], named=named)
            json.dumps(found, allow_nan=False)  # run folders store JSON
        except BadConfig as err:
            place = {f"{table}.name": f"{table}.name", "encoder.name": "network.encoder"}.get(err.where)
            if place is None:
                raise
            problems.append(f"{place}: {err.what} ({err.fix})")
        except (TypeError, ValueError) as err:
            problems.append(f"{table}: {err}; use finite numbers, and strings for dates")
        else:
            problems += mistakes_by(found, {"additionalProperties": False, **kind.schema}, within=table) if found else []
    return problems


TYPES = {"integer": "a whole number", "number": "a number", "string": "text", "array": "a list"}
TYPES |= {"boolean": "true or false", "object": "a table"}
LIMITS: Final = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def allowed(key: Mapping[str, Any]) -> str:
    """Describe a key's JSON Schema in words: `a number above 0 and below 1`."""
    if "enum" in key:
        return "one of " + ", ".join(f'"{value}"' for value in key["enum"])
    if not isinstance(key.get("type"), str):
        return f"a value of the schema {json.dumps(dict(key))}"
    limits = " and ".join(f"{words} {key[limit]}" for limit, words in LIMITS.items() if limit in key)
    text = f"{TYPES[key['type']]} {limits}".rstrip()
    text += f" with {' and '.join(key['required'])}" if "required" in key else ""
    return f"{text}, each item {allowed(key['items'])}" if "items" in key else text
