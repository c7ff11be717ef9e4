"""`/v1/rules`, `/v1/targets`: what this egraft can do."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from fastapi import APIRouter

from .errors import NotFound

router = APIRouter(prefix="/v1", tags=["reference"])


@router.get("/rules")
def rules(family: str | None = None, exactness: str | None = None) -> dict[str, Any]:
    """All rewrite rules, or those of a family or exactness class."""
    from rules.catalogue import all_rules

    found = [rule for rule in all_rules()
             if family in (None, rule.family) and exactness in (None, rule.exactness)]
    return {"rules": [{"name": rule.name, "family": rule.family, "exactness": rule.exactness, "meaning": rule.meaning}
                      for rule in found]}


@router.get("/rules/{name}")
def rule(name: str) -> dict[str, Any]:
    """One rule: its patterns, where it applies, and a near miss where it must not."""
    from rules.catalogue import by_name

    try:
        found = by_name(name)
    except KeyError as error:
        raise NotFound(f"rule {name[:80]!r}", str(error.args[0]), "list them with GET /v1/rules") from None
    return {"name": found.name, "family": found.family, "exactness": found.exactness, "meaning": found.meaning,
            "text": found.text(), "source": found.source, "example": found.example.strip(),
            "near_miss": found.near_miss.strip()}


@router.get("/targets")
def targets() -> dict[str, Any]:
    """All targets; `missing` says why one is not available on this machine."""
    return {"targets": list(_targets())}


@lru_cache(maxsize=1)
def _targets() -> tuple[dict[str, Any], ...]:
    from cost_model.targets import all_targets, resolve

    auto = resolve("auto").name
    return tuple({"name": each.name, "available": each.available() is None, "missing": each.available(),
                  "auto": each.name == auto} for each in all_targets())
