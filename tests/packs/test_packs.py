"""The shared packs: `cases` must not break, `wins` must improve. Known failures are listed; the lists only shrink."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import cases, expected_failures, run_case

TRIES = 3


@pytest.fixture(scope="module")
def timings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One timing database for the worker, so that equal nodes are measured once."""
    return tmp_path_factory.mktemp("timings") / "timings.db"


def _judge(pack: str, folder: Path, tmp_path: Path, timings: Path) -> None:
    """Which of several equal graphs is handed back is measured, and on a busy machine a measurement can be off: a
    graph that has too many nodes is measured anew (with an empty database). Wrong results are never tried again."""
    for attempt in range(TRIES):
        work = tmp_path / str(attempt)
        work.mkdir()
        status, why = run_case(folder, work, timings if attempt == 0 else work / "timings.db")
        if "node(s)" not in why:
            break
    known = expected_failures(pack).get(folder.name)
    if known is not None:
        assert status != "ok", f"{folder.name} passes now: take it off expected_failures_{pack}.txt"
        pytest.xfail(f"{status}: {why} (known: {known})")
    assert status == "ok", f"{status}: {why}"


@pytest.mark.parametrize("folder", cases("cases"), ids=lambda path: path.name)
def test_case_is_not_broken(folder: Path, tmp_path: Path, timings: Path) -> None:
    _judge("cases", folder, tmp_path, timings)


@pytest.mark.parametrize("folder", cases("wins"), ids=lambda path: path.name)
def test_win_is_found(folder: Path, tmp_path: Path, timings: Path) -> None:
    _judge("wins", folder, tmp_path, timings)


@pytest.mark.parametrize(("pack", "share"), [("cases", 0.85), ("wins", 0.35)])
def test_share_that_passes(pack: str, share: float) -> None:
    """The lists of known failures leave at least the promised share."""
    total = len(cases(pack))
    if not total:
        pytest.skip("the shared packs are not beside this clone")
    assert len(expected_failures(pack)) <= (1 - share) * total
    unknown = set(expected_failures(pack)) - {path.name for path in cases(pack)}
    assert not unknown, f"listed, but there is no such case: {unknown}"
