"""Numbers for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from graphs.wording import counted


def seconds_text(value: object) -> str:
    """A duration."""
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= size:
            return f"{value / size:.3f} {unit}"
    return f"{value / 1e-9:.1f} ns"


def count_text(value: object, unit: str = "") -> str:
    """A large number with a decimal prefix: 12.3 G."""
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.2f} {prefix}{unit}"
    return f"{value:g} {unit}".strip()


def bytes_text(value: object) -> str:
    """A size in binary units."""
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    size = float(value)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def ratio_text(value: object) -> str:
    """A speed-up."""
    return f"{value:.3f}x" if isinstance(value, int | float) else "" if value is None else str(value)


def short_text(value: object) -> str:
    """A number of three digits, or the text itself."""
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)


def share_text(value: object) -> str:
    """A share of 1 in percent."""
    return f"{100 * value:.1f} %" if isinstance(value, int | float) else "" if value is None else str(value)


def _fields(value: object) -> dict[str, Any] | None:
    """What a fingerprint's text holds; None where it is no such text."""
    try:
        found = json.loads(str(value))
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def device_text(value: object) -> str:
    """A fingerprint of a device in words."""
    found = _fields(value)
    if found is None:
        return str(value)
    return ", ".join(f"{name} {text}" for name, text in found.items() if text and name != "instructions")


def device_words(value: object) -> str:
    """What tells devices apart at a glance, of a fingerprint's text: the processor or GPU, its cores, libraries."""
    found = _fields(value)
    if found is None:
        return str(value)
    cores = [] if found.get("gpu") or not found.get("cores") else [counted(found["cores"], "core")]
    libraries = [f"{name} {found[name]}" for name in ("driver", "onnxruntime", "cupy", "numpy") if found.get(name)]
    return ", ".join([str(found.get("gpu") or found.get("cpu") or found.get("device") or "unknown device"), *cores,
                      *libraries])


def moved_text(error: Mapping[str, Any] | None) -> str:
    """The error of a step of a trace, in words; '' where nothing was compared."""
    if error is None:
        return ""
    at = f"{error['value']!r}"
    if not error["changed"]:
        return f"{at} does not move"
    if error["absolute"] is None:
        return f"{at} differs in {error['changed']} elements, not by a number"
    share = "" if error["relative"] is None else f", {error['relative']:.3g} of its largest element"
    return f"{at} moves by at most {error['absolute']:.3g}{share}"
