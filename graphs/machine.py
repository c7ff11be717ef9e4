"""What of the machine this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def cores_visible() -> int:
    """Cores that this process may run on, where the system tells; else all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def last_level_cache() -> int | None:
    """Bytes of the largest cache of the first core, where Linux tells."""
    found: list[int] = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = path.read_text().strip()
        except OSError:  # a container may hide it: then it is not known
            continue
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 0)
        if unit and text[:-1].isdigit():
            found.append(int(text[:-1]) * unit)
    return max(found, default=None)
