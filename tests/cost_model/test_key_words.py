"""What a missing record is, in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from cost_model.fingerprint import Fingerprint
from cost_model.key_words import in_words
from cost_model.timings import Timings
from graphs.errors import FrozenMiss


@pytest.mark.parametrize(("key", "words"), [
    ("overhead threads=1", "what a call and a launch cost (overhead threads=1)"),
    ("peak gemm float32 threads=2", "what the device reaches at best (peak gemm float32 threads=2)"),
    ("Relu@14 (float32[2, 8]) -> 1 threads=1", "Relu@14 (float32[2, 8]) -> 1 threads=1"),
    ("overhead", "overhead"),
])  # fmt: skip
def test_kinds_of_records(key: str, words: str) -> None:
    assert in_words(key) == words


def test_hashes_are_cut() -> None:
    found = in_words(f"verdict {'0' * 64} (float32[1, 256]) inputs=12 threads=1")
    assert found.startswith("the whole graphs against each other (verdict 000") and found.endswith("0 ...)")
    assert len(found) < 100


def test_a_frozen_miss_says_what_is_missing(tmp_path: Path) -> None:
    with Timings(tmp_path / "t.db") as timings:
        timings.add("key", "a:cpu", Fingerprint.of({"cpu": "here"}), "node", [1e-3], 1e-3)
    frozen = Timings(tmp_path / "t.db", frozen=True)
    with pytest.raises(FrozenMiss, match=r"no measurement of what a call and a launch cost \(overhead threads=1\)"):
        frozen.get("overhead threads=1", "a:cpu", Fingerprint.of({"cpu": "here"}))
