"""Large computed arrays lie in temporary files, and read the same."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from graphs import spill
from graphs.spill import is_mapped, let_go, room, spilled


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "LEAST_BYTES", 1000)
    monkeypatch.setattr(spill, "_SEGMENT", 10_000)
    monkeypatch.setattr(spill, "_segments", spill._Segments())


def test_arrays_share_files_and_keep_their_values() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((size, 3)).astype(kind) for size in (400, 500, 2000) for kind in ("f4", "f8", "f2")]
    arrays.append(arrays[0].T)  # not contiguous
    kept = [spilled(array) for array in arrays]
    for array, found in zip(arrays, kept):
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype and is_mapped(found) and not np.shares_memory(found, array)
        assert spilled(found) is found
    assert len({id(found.base) for found in kept}) >= 2


def test_what_was_let_go_reads_the_same() -> None:
    array = np.random.default_rng(1).standard_normal(100_000)
    kept = spilled(array)
    part = kept[777:90_001]
    let_go(part)
    let_go(array)
    let_go(kept[::2])
    np.testing.assert_array_equal(kept, array)


def test_small_arrays_and_objects_stay() -> None:
    for array in (np.zeros(10), np.full(1000, "text", object)):
        assert spilled(array) is array and not is_mapped(array)


def test_without_room_they_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    array = np.zeros(1000)
    assert spilled(array) is array


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system cannot reserve room")
def test_a_disk_that_is_full_is_told_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = spilled(np.ones(1000))

    def full(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(os, "posix_fallocate", full)
    array = np.zeros(1000)
    assert spilled(array) is array and not is_mapped(room(8000)) and is_mapped(kept)
    assert room(8000).nbytes == 8000


_FREED_INSIDE = """
import contextlib, sys
import numpy as np
from graphs.spill import mapping_freed_memory
def private():
    rows = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(rows["RssAnon"].split()[0]) << 10
np.ones(8 << 20, np.uint8)  # freed: from now on glibc keeps what is as small
with mapping_freed_memory() if sys.argv[1] == "inside" else contextlib.nullcontext():
    blocks = [np.ones(2 << 20, np.uint8) for _ in range(20)]
    before = private()
    del blocks[::2]  # between others, so that no heap shrinks by them
    print(before - private())
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists() or platform.libc_ver()[0] != "glibc",
                    reason="the system does not tell what memory is used, or keeps it its own way")
def test_what_is_freed_inside_goes_back_at_once() -> None:
    freed = {where: int(subprocess.run([sys.executable, "-c", _FREED_INSIDE, where], check=True, capture_output=True,
                                       cwd=Path(__file__).parents[2]).stdout) for where in ("inside", "outside")}
    assert freed["inside"] > 15 << 20 > 5 << 20 > freed["outside"]
