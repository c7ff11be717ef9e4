"""What is noted beside times of a GPU, and how little it may cost or break."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from cost_model.targets import cuda, find_target


@pytest.mark.parametrize(("script", "wanted"), [
    ("echo '1980, 2619, 41, 310.25'", {"sm_clock": "1980", "memory_clock": "2619", "temperature": "41",
                                       "power": "310.25"}),
    ("exit 9", {}),
])
def test_clocks_are_what_the_drivers_tool_says(script: str, wanted: dict[str, str], tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert cuda.clocks(0.0) == wanted
    tool.write_text("#!/bin/sh\nexit 1\n")
    assert cuda.clocks(1e6) == wanted  # not asked again so soon


def test_without_the_tool_nothing_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert cuda.clocks(0.0) == {}


def test_without_a_gpu_the_targets_say_so_and_have_no_device() -> None:
    for name in ("egraft:cuda", "onnxruntime:cuda"):
        target = find_target(name)
        reason = target.available()
        if reason is not None:
            assert "; " in reason and "\n" not in reason
            assert target.fingerprint.text == '{"device": "none"}'
