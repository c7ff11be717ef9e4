"""Runs a command and tells the most memory that its process tree held at one time, sampled from /proc.

    python -m tests.big.measure COMMAND ...

`private`: anonymous and shared-memory pages (RssAnon + RssShmem): what the command needs. `resident` has the pages of
mapped files on top (VmRSS), which the kernel takes back when anyone needs them; pages that several processes map count
once for each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PERIOD = 0.02  # seconds between samples


@dataclass
class Peak:
    """Bytes at the worst moment, and how the command ended."""

    private: int = 0
    resident: int = 0
    seconds: float = 0.0
    returncode: int = 0
    private_at: float = 0.0


def _tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))
    except OSError:  # it ended meanwhile
        return


def _sizes(pid: int) -> tuple[int, int]:
    try:
        rows = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except OSError:
        return 0, 0
    anon, shared, whole = (int(rows.get(name, "0 kB").split()[0]) * 1024 for name in ("RssAnon", "RssShmem", "VmRSS"))
    return anon + shared, whole


def measure(command: Sequence[str], log: Path | None = None) -> Peak:
    """Run a command to its end."""
    peak, start = Peak(), time.monotonic()
    with open(log or os.devnull, "wb") as out:
        process = subprocess.Popen(command, stdout=out if log else None, stderr=subprocess.STDOUT if log else None)
        while process.poll() is None:
            sizes = [_sizes(pid) for pid in _tree(process.pid)]
            private = sum(each[0] for each in sizes)
            if private > peak.private:
                peak.private, peak.private_at = private, time.monotonic() - start
            peak.resident = max(peak.resident, sum(each[1] for each in sizes))
            time.sleep(PERIOD)
    peak.seconds, peak.returncode = time.monotonic() - start, process.returncode
    return peak


if __name__ == "__main__":
    found = measure(sys.argv[1:])
    print(f"private {found.private / 1e9:.3f} GB (at {found.private_at:.0f} s), "
          f"resident {found.resident / 1e9:.3f} GB, {found.seconds:.0f} s, exit {found.returncode}")
