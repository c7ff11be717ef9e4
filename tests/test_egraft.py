"""The package `egraft`: every floor under one name, the same objects, nothing imported too early."""

import importlib
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

import egraft


@pytest.mark.parametrize("floor", egraft.FLOORS)
def test_a_floor_is_the_same_module_under_both_names(floor: str) -> None:
    real = importlib.import_module(floor)
    assert importlib.import_module(f"egraft.{floor}") is real
    assert getattr(egraft, floor) is real
    assert real.__name__ == floor
    assert real.__spec__ is not None and real.__spec__.name == floor


def test_submodules_are_the_same_modules_too() -> None:
    import egraft.graphs.builder as under_egraft
    import graphs.builder as plain

    assert under_egraft is plain
    assert egraft.graphs.builder.Builder is plain.Builder


def fresh(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_long_name_may_come_first() -> None:
    fresh(
        "import egraft.graphs.builder as first, graphs.builder as second;"
        "assert first is second and first.__name__ == 'graphs.builder'"
    )


def test_importing_egraft_imports_no_floor_and_no_library() -> None:
    fresh(
        "import egraft, sys; loaded = {name.partition('.')[0] for name in sys.modules};"
        "assert not loaded & {*egraft.FLOORS, 'numpy', 'onnx', 'egglog'}, loaded"
    )


def test_what_does_not_exist_is_said_so() -> None:
    assert find_spec("egraft.graphs.no_such_module") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("egraft.graphs.no_such_module")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("egraft.no_such_floor")
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = egraft.no_such_name


@pytest.mark.parametrize("name", [name for name in egraft.__all__ if name not in egraft.FLOORS])
def test_shortcuts_lead_somewhere(name: str) -> None:
    assert getattr(egraft, name) is not None


def test_one_version() -> None:
    assert metadata.version("egraft") == egraft.__version__


def test_type_checkers_see_every_floor() -> None:
    folder = Path(egraft.__file__).parent
    assert {path.stem for path in folder.glob("*.pyi")} == set(egraft.FLOORS)
    assert (folder / "py.typed").exists()
