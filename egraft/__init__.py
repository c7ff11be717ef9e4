"""egraft: a superoptimizer for tensor graphs.

Every floor of the house is reachable here under one name: ``egraft.graphs`` is the package ``graphs``,
``egraft.graphs.builder`` is ``graphs.builder``, and so on: the same module objects, not copies, so that a
class is the same class whichever way it was imported. Nothing is imported before it is asked for.
"""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import cost_model as cost_model
    import graphs as graphs
    import optimizer as optimizer
    import rules as rules
    import runtime as runtime
    import search as search
    import server as server
    from graphs import Graph as Graph
    from graphs import load as load
    from graphs import save as save
    from optimizer import optimize as optimize
    from optimizer.deriving import grad as grad
    from optimizer.deriving import train_step as train_step
    from runtime.gradients import gradients as gradients
    from runtime.gradients import jvp as jvp
    from runtime.training import training_step as training_step

__version__ = "0.1.0"

FLOORS = ("graphs", "runtime", "cost_model", "rules", "search", "optimizer", "server")
_SHORTCUTS = {"Graph": "graphs", "load": "graphs", "save": "graphs", "optimize": "optimizer",
              "grad": "optimizer.deriving", "train_step": "optimizer.deriving", "gradients": "runtime.gradients",
              "jvp": "runtime.gradients", "training_step": "runtime.training"}

__all__ = [
    "Graph",
    "__version__",
    "cost_model",
    "grad",
    "gradients",
    "graphs",
    "jvp",
    "load",
    "optimize",
    "optimizer",
    "rules",
    "runtime",
    "save",
    "search",
    "server",
    "train_step",
    "training_step",
]


class _SameModule(Loader):
    """Loads ``egraft.x`` by importing ``x`` and answering that very module."""

    def __init__(self, real_name: str) -> None:
        self.real_name = real_name
        self.real_spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.real_name)
        self.real_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # It ran when it was imported. The import system has just put the alias's spec on it: take that back.
        module.__spec__ = self.real_spec


class _FloorFinder(MetaPathFinder):
    """Finds ``egraft.<floor>`` and what lies below, ahead of the path finder, which would copy."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, real_name = fullname.partition(".")
        if package != __name__ or real_name.partition(".")[0] not in FLOORS:
            return None
        real = find_spec(real_name)
        if real is None:
            return None
        is_package = real.submodule_search_locations is not None
        return ModuleSpec(fullname, _SameModule(real_name), origin=real.origin, is_package=is_package)


if not any(type(finder).__name__ == _FloorFinder.__name__ for finder in sys.meta_path):
    sys.meta_path.insert(0, _FloorFinder())


def __getattr__(name: str) -> Any:
    if name in FLOORS:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _SHORTCUTS:
        return getattr(importlib.import_module(f"{__name__}.{_SHORTCUTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
