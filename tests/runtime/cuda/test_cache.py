"""Compiled kernels on disk: damaged files, folders that cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtime.codegen import cache

TEXT = b"compiled " * 100


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was compiled; the folder is `tmp_path / "kernels"`."""
    monkeypatch.setenv("EGRAFT_KERNELS", str(tmp_path / "kernels"))
    cache._own_folder.cache_clear()
    return []


def _get(made: list[Path]) -> bytes:
    def make(path: Path) -> None:
        made.append(path)
        path.write_bytes(TEXT)

    return cache.content(cache.cached("one.cubin", make))


@pytest.mark.parametrize("damage", [b"", b"x", TEXT, TEXT[:50], b"\0" * 1000])
def test_a_damaged_file_is_made_again(made: list[Path], tmp_path: Path, damage: bytes) -> None:
    assert _get(made) == _get(made) == TEXT and len(made) == 1
    (tmp_path / "kernels" / "one.cubin").write_bytes(damage)
    assert _get(made) == _get(made) == TEXT and len(made) == 2
    assert os.listdir(tmp_path / "kernels") == ["one.cubin"]


def test_what_cannot_be_written_is_kept_for_this_process(made: list[Path], tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("a file")
    assert _get(made) == _get(made) == TEXT and len(made) == 1
    (tmp_path / "kernels").unlink()
    (tmp_path / "kernels" / "one.cubin").mkdir(parents=True)
    assert _get(made) == TEXT


def test_what_a_killed_process_left_is_removed_later(made: list[Path], tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    old, fresh = (tmp_path / "kernels" / f"{cache._UNDER_WAY}{name}.so" for name in ("old", "fresh"))
    old.write_bytes(b"half")
    fresh.write_bytes(b"half")
    os.utime(old, (0, 0))
    assert _get(made) == TEXT
    assert not old.exists() and fresh.exists(), "another process may be at it"


def test_a_compiler_that_fails_leaves_nothing(made: list[Path], tmp_path: Path) -> None:
    def make(path: Path) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        cache.cached("two.cubin", make)
    assert os.listdir(tmp_path / "kernels") == []
