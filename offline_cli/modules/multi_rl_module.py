"""MultiRLModule, several policies by id for several agents; refuses batches for modules that are not there."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from torch import nn

from offline_cli.errors import BadConfig
from offline_cli.modules.rl_module import RLModule

__all__ = ["MultiRLModule"]


class MultiRLModule(nn.Module):
    """A mapping from module ids to RLModules; batches are `{module id: batch}`, in RLlib's manner."""

    def __init__(self, modules: Mapping[str, RLModule]) -> None:
        """Raises BadConfig for ids that weights cannot be named by: a dot, or nothing at all."""
        super().__init__()
        bad = [name for name in modules if not name or "." in name]
        if bad:
            raise BadConfig(f"module ids {bad}", where="MultiRLModule", fix="ids without dots, such as left_policy")
        self._modules_by_id: dict[str, RLModule] = dict(modules)
        self.parts = nn.ModuleDict(self._modules_by_id)

    def __getitem__(self, module_id: str) -> RLModule:
        return self._modules_by_id[module_id]

    def __contains__(self, module_id: object) -> bool:
        return module_id in self._modules_by_id

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules_by_id)

    def __len__(self) -> int:
        return len(self._modules_by_id)

    def keys(self) -> KeysView[str]:
        """The ids."""
        return self._modules_by_id.keys()

    def values(self) -> ValuesView[RLModule]:
        """The modules."""
        return self._modules_by_id.values()

    def items(self) -> ItemsView[str, RLModule]:
        """Both."""
        return self._modules_by_id.items()

    def is_stateful(self) -> bool:
        """Whether any of them is."""
        return any(module.is_stateful() for module in self.values())

    def get_initial_state(self) -> dict[str, dict[str, Any]]:
        """The initial state of each, by id."""
        return {module_id: module.get_initial_state() for module_id, module in self.items()}

    def foreach_module(self, func: Callable[..., Any], *, return_dict: bool = False, **kwargs: Any) -> Any:
        """`func(module id, module)` of each, as a list, or a dict by id."""
        found = {module_id: func(module_id, module, **kwargs) for module_id, module in self.items()}
        return found if return_dict else list(found.values())

    def forward_inference(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """For playing greedily: the outputs of each module that has a batch, by id. Raises KeyError for an unknown one."""
        return {module_id: self[module_id].forward_inference(part) for module_id, part in batch.items()}

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """For playing with chance, as above."""
        return {module_id: self[module_id].forward_exploration(part) for module_id, part in batch.items()}

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """For an update, as above."""
        return {module_id: self[module_id].forward_train(part) for module_id, part in batch.items()}
