"""Kinds of networks by the name that a `[network]` table gives: ours, and those of other packages (`offline_cli.networks`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from offline_cli.modules.network import Mlp, Network
from offline_cli.plugins import NETWORKS, plugins, registered_class

__all__ = ["MLP", "OURS", "network_kind", "network_package"]

MLP: Final = "mlp"
OURS: Final[dict[str, type[Network]]] = {MLP: Mlp}


def network_kind(name: str, *, named: Collection[str] | None = None) -> type[Network]:
    """The kind of that name. `named`, and what is raised: see `registered_class`."""
    if name in OURS:
        return OURS[name]
    return registered_class(
        NETWORKS,
        name,
        Network,  # type: ignore[type-abstract]  # what is abstract is refused
        ours=OURS,
        derive_from="offline_cli.modules.network.Network",
        named=named,
    )


def network_package(name: str) -> str | None:
    """The package that registered the network; None: it is ours, or nobody's."""
    return None if name in OURS else next((one.package for one in plugins(NETWORKS) if one.name == name), None)
