"""The configuration of a run: one model of the file that `train --config` takes and that a run folder keeps as config.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from annotated_types import MinLen
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

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
from offline_cli.modules.images import AUTO
from offline_cli.modules.network import LAYERS, MLP
from offline_cli.schema_files import toml_schema
from offline_cli.storage.blanking import blanked_call, blanked_values

__all__ = ["BOUNDS", "BOUND_EPOCHS", "DEFAULT_EPOCHS", "GATES", "MLP_KEYS", "TABLES", "BCConfig", "config_schema"]

DEFAULT_EPOCHS, BOUND_EPOCHS = 20, 200
EVAL_EVERY_RANGE = (100, 1000)  # updates
BOUNDS = ("updates", "epochs")
GATES = {"max_val_loss": "loss", "min_accuracy": "accuracy"}  # on which held-out score of the kept policy each is
TABLES = ("algorithm", "network")  # which name code, ours or another package's, and hold its options
MLP_KEYS = tuple(LAYERS)  # options of the network mlp, which are keys of the file as well

Text = Annotated[str, MinLen(1)]


def _with_name(table: Mapping[str, Any]) -> Mapping[str, Any]:
    if not (isinstance(table.get("name"), str) and table["name"]):
        raise ValueError("should be a table with a name")
    return table


NAMED = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "minLength": 1}}}
Table = Annotated[Mapping[str, Any], AfterValidator(_with_name), WithJsonSchema(NAMED)]


class BCConfig(BaseModel):
    """Every choice of a run but data and output."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, title="Configuration of train")

    algorithm: Table = Field(default={"name": "bc"}, description="Learning algorithm: its name and options.")
    network: Table = Field(default={"name": MLP}, description="Network of all modules: its name and options.")
    env: Text | None = Field(default=None, description=f"Environment to measure returns in: {ENV_FORMS}.")
    env_kwargs: Mapping[str, Any] | None = Field(
        default=None, description="Arguments to make the environment with. Default: those in the manifest, or run folder."
    )
    wrappers: tuple[str, ...] | None = Field(
        default=None, strict=False, description="Wrappers around the environment, inner first. Default: those in the manifest."
    )
    agent: Text | None = Field(
        default=None, description="Learn from the episodes of this agent, and check it in a game. Default: of every agent."
    )
    policy: tuple[Text, ...] | None = Field(
        default=None,
        strict=False,
        description="Who plays the other agents of a game in checks, as AGENT=POLICY each. Default: random; needs `agent`.",
    )
    action_scale: ActionScale | None = Field(
        default=None,
        description="Scale of recorded Box actions: the environment's own, or [-1, 1]. Default: what the data declares.",
    )
    hidden: tuple[Count, ...] = Field(
        default=HIDDEN, strict=False, description="Widths of the hidden layers of the network mlp."
    )
    activation: Activation = Field(
        default=ACTIVATION, description="Activation between hidden layers; linear, as in RLlib, is none."
    )
    dropout: DropShare | None = Field(
        default=None, description="Share of each hidden layer's outputs that an update leaves out. Default: none."
    )
    layer_norm: bool | None = Field(default=None, description="Normalise the outputs of each hidden layer. Default: off.")
    batch_size: Count = Field(default=1024, description="Steps per update.")
    lr: Positive = Field(default=5e-4, description="Learning rate of Adam.")
    lr_schedule: Schedule = Field(
        default="constant", description="How the learning rate falls after `lr_warmup`, to 0 at the end."
    )
    lr_warmup: Whole = Field(default=0, description="Updates in which the learning rate rises linearly from 0 to `lr`.")
    weight_decay: NotNegative = Field(default=0.0, description="Decoupled weight decay, as of AdamW.")
    clip_norm: Positive | None = Field(
        default=None, description="Gradients longer than this norm are scaled down. Default: none."
    )
    keep_invented: bool = Field(default=False, description="Keep last steps whose next observation was not recorded.")
    top_fraction: Share | None = Field(
        default=None, description="Learn only from this share of the episodes, those with the highest return. Default: all."
    )
    init_from: Text | None = Field(
        default=None, description="Run folder whose policy the run starts from, a path or URL. Default: fresh weights."
    )
    ema: OpenShare | None = Field(
        default=None, description="Decay of a moving average of the policy's weights, which is kept instead."
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
        description="Stop once the mean return, in a game that of `agent`, confirmed on `confirm_episodes` episodes, is at "
        "least this; needs `env`.",
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
        default=None, description="Updates between two checks. Default: an epoch, but from {} to {}.".format(*EVAL_EVERY_RANGE)
    )
    eval_episodes: Count = Field(default=20, description="Episodes played per check, greedily.")
    confirm_episodes: Count = Field(default=100, description="Fresh episodes that must confirm `until_return`.")
    checkpoint_every: Count = Field(default=500, description="Updates between two checkpoints; fewer where uploads are slow.")
    log_every: Count = Field(default=50, description="Updates between two rows of metrics.jsonl.")
    device: Device = Field(default="auto", description="Where the network runs; auto takes a GPU if there is one.")
    precision: Precision = Field(default="auto", description="Arithmetic of the network; weights stay fp32, and auto is fp32.")
    compile: bool = Field(default=False, description="Compile the losses of updates by torch.compile.")
    threads: Count | None = Field(
        default=None, description="CPU threads of the network. Default: 1 for small networks, else one per core, at most 8."
    )
    seed: Whole = Field(default=0, description="Random seed.")
    track: tuple[Tracker, ...] | None = Field(
        default=None, strict=False, description="Trackers that follow metrics.jsonl, below the run folder. Default: none."
    )
    streaming: bool = Field(
        default=False, description="Keep the steps on disk while training, and `memory_limit` of them in memory."
    )
    memory_limit: Count | None = Field(
        default=None, description="Bytes that the process may take. Default: 1 GiB with `streaming` (on a GPU 4 GiB), else any."
    )

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
        """What is not None, with lists for tuples: the content of config.toml, without secrets."""
        plain: dict[str, Any] = {name: list(value) if isinstance(value, tuple) else value for name, value in self}
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


def config_schema() -> dict[str, Any]:
    """The JSON Schema of the file: schemas/config.v1.json, which `make docs` writes."""
    told = "What `train --config FILE` (TOML) may hold, and RUN/config.toml holds."
    return toml_schema(BCConfig, "offline-cli/config.v1.json", description=told)
