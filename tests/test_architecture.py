"""The rules that hold the house together, read off the source text: who may import whom, how long things may
be, what may stand in a file."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Lower floors first; `egraft` re-exports them all and stands on top.
FLOORS = ["graphs", "runtime", "cost_model", "rules", "search", "optimizer", "server", "egraft"]
OUTSIDE = {"tests", "scripts", "examples"}

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60  # without the docstring
# Functions longer than that, as "path:qualified.name". This list only shrinks.
LONG_FUNCTIONS: set[str] = set()

# Used for comparison in benchmarks or to make test models, never by the product.
FORBIDDEN_LIBRARIES = {"torch", "transformers", "onnxsim", "onnxslim", "openvino"}
# Import names whose distribution is called something else.
DISTRIBUTIONS = {
    "cupy": "cupy-cuda12x",
    "cupy_backends": "cupy-cuda12x",
    "google": "protobuf",
    "starlette": "fastapi",
}


def floor_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


PRODUCT = sources(*FLOORS)
EVERYTHING = PRODUCT + sources(*sorted(OUTSIDE))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_by(node: ast.AST) -> list[str]:
    """Top-level packages that one statement or call imports; relative imports stay in their own floor."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return [node.module.partition(".")[0]]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called, argument = ast.unparse(node.func), node.args[0].value
        if called.rpartition(".")[2] in ("import_module", "__import__") and isinstance(argument, str):
            return [argument.partition(".")[0]]
    return []


@cache
def imports(tree: ast.Module) -> list[tuple[int, str]]:
    return [
        (node.lineno, package)  # type: ignore[attr-defined]
        for node in ast.walk(tree)
        for package in imported_by(node)
    ]


def unconditional_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """What importing the module imports for certain: not inside a function, a `try` or an `if`."""
    for statement in tree.body:
        for package in imported_by(statement):
            yield statement.lineno, package


def normalized(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def declared_libraries() -> tuple[set[str], set[str]]:
    """Distributions that pyproject.toml names: always needed, and only with an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def names(requirements: list[str]) -> set[str]:
        return {normalized(re.split(r"[^\w.-]", text, maxsplit=1)[0]) for text in requirements}

    core = names(project["dependencies"])
    extras = set().union(*(names(each) for each in project["optional-dependencies"].values()))
    return core, extras - core


def third_party(found: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for line, package in found:
        if package not in sys.stdlib_module_names and package not in FLOORS and package not in OUTSIDE:
            yield line, normalized(DISTRIBUTIONS.get(package, package))


def tracked_texts() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if not path.is_file():
            continue
        content = path.read_bytes()
        if b"\0" not in content[:8192]:
            yield name, content.decode("utf-8", errors="replace")


def report(problems: list[str]) -> None:
    assert not problems, "\n".join(["", *problems])


def test_imports_never_run_from_a_lower_to_a_higher_floor() -> None:
    report(
        [
            f"{name_of(path)}:{line}: {floor_of(path)} may not import {package}, which lies above it"
            " (a plug-in comes through [project.entry-points] in pyproject.toml)"
            for path in PRODUCT
            for line, package in imports(parsed(path))
            if package in FLOORS and FLOORS.index(package) > FLOORS.index(floor_of(path))
        ]
    )


def test_the_product_does_not_import_what_is_not_installed() -> None:
    report(
        [
            f"{name_of(path)}:{line}: imports {package}, which is not installed"
            for path in PRODUCT
            for line, package in imports(parsed(path))
            if package in OUTSIDE
        ]
    )


def test_the_product_does_not_use_other_optimizers_or_frameworks() -> None:
    report(
        [
            f"{name_of(path)}:{line}: imports {package}"
            for path in PRODUCT
            for line, package in imports(parsed(path))
            if package in FORBIDDEN_LIBRARIES
        ]
    )


def test_every_library_in_use_is_declared() -> None:
    core, extras = declared_libraries()
    report(
        [
            f"{name_of(path)}:{line}: {library} is not a dependency in pyproject.toml"
            for path in PRODUCT
            for line, library in third_party(imports(parsed(path)))
            if library not in core | extras
        ]
    )


def test_optional_libraries_are_imported_only_where_they_are_used() -> None:
    core, _ = declared_libraries()
    report(
        [
            f"{name_of(path)}:{line}: {library} is optional: import it inside a function or a try"
            for path in PRODUCT
            for line, library in third_party(unconditional_imports(parsed(path)))
            if library not in core
        ]
    )


def test_every_folder_with_code_is_a_package() -> None:
    folders = sorted({path.parent for path in PRODUCT})
    report([f"{name_of(each)}: no __init__.py" for each in folders if not (each / "__init__.py").exists()])


def test_files_are_short() -> None:
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in EVERYTHING}
    report(
        [
            f"{name}: {length} lines, the limit is {MAX_FILE_LINES}: split it by subject"
            for name, length in lengths.items()
            if length > MAX_FILE_LINES
        ]
    )


def function_lengths(path: Path) -> Iterator[tuple[str, int]]:
    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from visit(child, prefix)
                continue
            qualified = f"{prefix}{child.name}"
            if not isinstance(child, ast.ClassDef):
                length = (child.end_lineno or child.lineno) - child.lineno + 1
                if ast.get_docstring(child, clean=False) is not None:
                    docstring = child.body[0]
                    length -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
                yield f"{name_of(path)}:{qualified}", length
            yield from visit(child, f"{qualified}.")

    yield from visit(parsed(path), "")


def test_functions_are_short() -> None:
    lengths = {
        name: length
        for path in PRODUCT + sources("scripts", "examples")
        for name, length in function_lengths(path)
        if length > MAX_FUNCTION_LINES
    }
    report(
        [
            *(
                f"{name}: {length} lines, the limit is {MAX_FUNCTION_LINES}: name its parts"
                for name, length in lengths.items()
                if name not in LONG_FUNCTIONS
            ),
            *(f"{name}: short now, take it off LONG_FUNCTIONS" for name in LONG_FUNCTIONS - set(lengths)),
        ]
    )


# Spelled so that this file does not match itself.
MACHINE_BOUND = re.compile(
    r"(?<![\w.])/(?:wor[k]|roo[t]|hom[e]/\w+)(?:/|(?!\w))"  # folders of one machine
    r"|--(?:extra-)?inde[x]-url|--find-link[s]"  # where one machine gets its packages
    r"|https?://[^\s\"'<>]+/simpl[e]\b"
)


def test_no_file_names_a_folder_or_a_package_index_of_one_machine() -> None:
    report(
        [
            f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
            for name, text in tracked_texts()
            for match in MACHINE_BOUND.finditer(text)
        ]
    )
