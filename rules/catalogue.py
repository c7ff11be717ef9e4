"""All rules: collected from one module per family."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib import import_module

from .declare import Rule, allowed

MODULES = (
    "elementwise", "arithmetic", "casts", "activations", "gates", "ranges", "movement", "slicing", "padding",
    "layout", "carrying", "reshaping", "linear", "gemm", "sharing", "einsum",
    "convolution", "unfolding", "batch_norm",
    "normalization", "reduction", "training",
)  # fmt: skip


@lru_cache(maxsize=1)
def _table() -> dict[str, Rule]:
    found: dict[str, Rule] = {}
    for module in MODULES:
        for value in vars(import_module(f"rules.{module}")).values():
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, Rule):
                    if found.get(item.name, item) is not item:
                        raise ValueError(f"two rules are called {item.name!r}")
                    found[item.name] = item
    return found


def all_rules() -> list[Rule]:
    """Every rule, in the order of families and declarations."""
    return list(_table().values())


def by_name(name: str) -> Rule:
    """One rule. Raises KeyError with the names that come close."""
    table = _table()
    if name not in table:
        close = [other for other in table if name in other or other in name]
        raise KeyError(f"no rule {name!r}" + (f"; did you mean {', '.join(close[:5])}?" if close else ""))
    return table[name]


def by_family(family: str) -> list[Rule]:
    """The rules of one family."""
    return [rule for rule in all_rules() if rule.family == family]


def permitted(exactness: str, disabled: Iterable[str] = ()) -> list[Rule]:
    """The rules that a request of a class may use."""
    left_out = set(disabled)
    return [rule for rule in all_rules() if allowed(rule.exactness, exactness) and rule.name not in left_out]
