"""Keeps pyarrow from loading pandas (a quarter of a second) where it is installed but not used.

pyarrow looks for pandas twice, for its classes and for its scalars, the first time that it makes or reads an array. The
commands give it neither. A Python policy, environment or connector piece of the user's may: as soon as it imports pandas,
pyarrow knows the classes again. It does not learn any more that `pandas.NA` among plain Python objects is a null.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from typer.core import TyperCommand

__all__ = ["DataCommand", "without_pandas"]

PANDAS, PYARROW = "pandas", "pyarrow"


class DataCommand(TyperCommand):
    """A command that reads or writes data, with pyarrow."""

    def invoke(self, ctx: Any) -> Any:
        """Run it; its help has been shown before this."""
        without_pandas()
        return super().invoke(ctx)


@cache  # each finder asks the others: many of them, where pandas is not installed, would never come to an end
def without_pandas() -> None:
    """Hide pandas from pyarrow, as soon as that is imported, unless pandas has been; once for all commands of a process."""
    finder = _Finder()
    if PANDAS not in sys.modules:
        sys.meta_path.insert(0, finder)
        if PYARROW in sys.modules:
            finder.hide()


class _Finder:
    """Hides pandas while pyarrow looks for it; once other code imports pandas, pyarrow is informed and this finder removed."""

    hides = False

    def hide(self) -> None:
        """Have pyarrow look for the classes of pandas, then for the scalars, in vain."""
        import pyarrow as pa
        from pyarrow.lib import _pandas_api

        self.hides = True
        pa.array([_pandas_api.have_pandas])
        self.hides = False

    def show(self) -> None:
        """Have pyarrow look again, if it is there."""
        if PYARROW in sys.modules:
            from pyarrow.lib import _pandas_api

            _pandas_api.pd  # noqa: B018  the one property that makes it do so

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """As any entry of `sys.meta_path`."""
        if name == PYARROW:
            return self._spec(name, self.hide)
        if name != PANDAS:
            return None
        if self.hides:
            raise ModuleNotFoundError(name, name=name)
        return self._spec(name, self.show)

    def _spec(self, name: str, then: Callable[[], None]) -> ModuleSpec | None:
        """That of a module after whose loading `then` is called."""
        place = sys.meta_path.index(self)  # asking where a module is does not import it
        del sys.meta_path[place]
        try:
            from importlib.util import find_spec

            spec = find_spec(name)
        finally:
            sys.meta_path.insert(place, self)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_tell(module: ModuleType) -> None:
            if name == PANDAS and self in sys.meta_path:  # unless it is imported anew
                sys.meta_path.remove(self)
            load(module)
            then()

        spec.loader.exec_module = load_and_tell  # type: ignore[method-assign]
        return spec
