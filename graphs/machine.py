"""What of the machine this process may use."""

from __future__ import annotations

import os


def cores_visible() -> int:
    """Cores that this process may run on, where the system tells; else all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
