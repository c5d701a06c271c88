"""Options of the network mlp: its layers, what is between them, images, and a memory."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Final, Literal, TypedDict

from offline_cli.options.option import Form, Group, Option

__all__ = ["ACTIVATION", "HIDDEN", "Hidden", "ImageKeys", "MemoryKeys", "MlpKeys", "Regularizing", "of_learning"]

of_learning: Final = partial(Option, group=Group.LEARNING, in_config=True)

HIDDEN: Final = Option(
    help="Widths of the hidden layers of the network mlp.",
    group=Group.LEARNING,
    default=(256, 256),
    minimum=1,
    in_config=True,
    form=Form.NUMBERS,
    metavar="N,N,...",
)
ACTIVATION: Final = Option(
    help="Activation between hidden layers; linear, as in RLlib, is none.", group=Group.LEARNING, default="relu", in_config=True
)


class Hidden(TypedDict, total=False):
    """How large the network mlp is."""

    hidden: Annotated[Sequence[int] | None, HIDDEN]


class Regularizing(TypedDict, total=False):
    """What is between the layers of the network mlp."""

    dropout: Annotated[
        float | None,
        of_learning(
            help="Share of the outputs of each hidden layer of the network mlp that an update leaves out; nothing else does.",
            without="none",
            minimum=0,
            below=1,
            metavar="F",
        ),
    ]
    layer_norm: Annotated[
        bool | None,
        of_learning(help="Normalise the outputs of each hidden layer of the network mlp.", without="off"),
    ]


class MlpKeys(Hidden, Regularizing, total=False):
    """Options of the network mlp, which its table may hold as well."""

    activation: Annotated[Literal["relu", "tanh", "silu", "gelu", "linear"], ACTIVATION]


class ImageKeys(TypedDict, total=False):
    """How the network mlp takes images, in its table alone."""

    encoder: Annotated[
        str,
        Option(
            help="Network that images go through before the hidden layers: nature, impala, or one that a package registers.",
            group=Group.LEARNING,
            without="nature",
        ),
    ]
    images: Annotated[
        Literal["auto", "hw", "hwc", "chw", "none"],
        Option(
            help="Axes of images: height, width and channels in this order; auto: by their shape; none: there are no images.",
            group=Group.LEARNING,
            without="auto",
        ),
    ]


class MemoryKeys(TypedDict, total=False):
    """Options of a memory of the network mlp, in its table alone."""

    memory: Annotated[
        Literal["lstm", "gru"],
        Option(
            help="Cells that remember, after the hidden layers; episodes are then learned from as sequences.",
            group=Group.LEARNING,
        ),
    ]
    memory_size: Annotated[
        int, Option(help="Numbers that a layer of them remembers.", group=Group.LEARNING, default=256, minimum=1)
    ]
    memory_layers: Annotated[int, Option(help="Layers of them.", group=Group.LEARNING, default=1, minimum=1)]
    max_seq_len: Annotated[
        int, Option(help="Steps of a sequence, over which gradients go back.", group=Group.LEARNING, default=20, minimum=1)
    ]
    burn_in: Annotated[
        int,
        Option(
            help="Steps before a sequence, as far as its episode has them, that it remembers and does not learn from.",
            group=Group.LEARNING,
            default=0,
            minimum=0,
        ),
    ]
