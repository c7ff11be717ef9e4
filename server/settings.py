"""Settings of the service: from the environment (`EGRAFT_...`), from arguments in tests."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import platformdirs

from graphs.errors import InvalidOption

GIB = 1 << 30
FLOORS = ("graphs", "runtime", "cost_model", "rules", "search", "optimizer", "server")
# What results depend on besides egraft itself.
LIBRARIES = ("egglog", "highspy", "numpy", "onnx", "onnx-ir", "onnxruntime", "cupy-cuda12x", "cupy-cuda13x")


def default_data_dir() -> Path:
    """`$EGRAFT_DATA`, else the user's data folder."""
    named = os.environ.get("EGRAFT_DATA")
    return Path(named) if named else Path(platformdirs.user_data_dir("egraft")) / "server"


def physical_memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True)
class Settings:
    """How one service runs.

    `workers`: jobs at the same time (more than one disturbs the measuring). `job_seconds`, `job_memory`: limits of one
    worker process. `attempts`: how often a job is started when the server dies meanwhile; `crashes`: when its worker
    is killed. `hosts`: further names under which a service without a key may be called.
    """

    data: Path
    database_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    workers: int = 1
    max_upload: int = 2 * GIB
    max_queue: int = 1000
    job_seconds: float = 3600.0
    job_memory: int = field(default_factory=lambda: max(8 * GIB, physical_memory()))
    attempts: int = 3
    crashes: int = 2
    timings: str | None = None
    hosts: tuple[str, ...] = ()

    @staticmethod
    def from_environment(data: Path | None = None, **given: Any) -> Settings:
        """Settings with what `EGRAFT_API_KEY`, `EGRAFT_WORKERS`, ... say; raises InvalidOption."""
        found: dict[str, Any] = {"data": data or default_data_dir()}
        for name, variable, convert in _VARIABLES:
            text = os.environ.get(variable, "").strip()
            if text:
                try:
                    found[name] = convert(text)
                except ValueError:
                    raise InvalidOption(variable, f"{text!r} is no positive number", "give a number") from None
        return Settings(**{**found, **given})


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def _seconds(text: str) -> float:
    if not float(text) > 0:
        raise ValueError(text)
    return float(text)


_VARIABLES: tuple[tuple[str, str, Any], ...] = (
    ("api_key", "EGRAFT_API_KEY", str),
    ("database_url", "EGRAFT_DATABASE_URL", str),
    ("workers", "EGRAFT_WORKERS", _positive),
    ("max_upload", "EGRAFT_MAX_UPLOAD", _positive),
    ("max_queue", "EGRAFT_MAX_QUEUE", _positive),
    ("job_seconds", "EGRAFT_JOB_SECONDS", _seconds),
    ("job_memory", "EGRAFT_JOB_MEMORY", _positive),
    ("timings", "EGRAFT_TIMINGS", str),
    ("hosts", "EGRAFT_HOSTS", lambda text: tuple(part.strip() for part in text.split(",") if part.strip())),
)


@lru_cache(maxsize=1)
def build_digest() -> str:
    """Names this very egraft: its sources and the versions of the libraries that results depend on."""
    found = hashlib.sha256()
    root = Path(__file__).resolve().parents[1]
    for floor in FLOORS:
        for path in sorted((root / floor).rglob("*.py")):
            found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    for library in LIBRARIES:
        try:
            found.update(f"{library}=={version(library)}\n".encode())
        except PackageNotFoundError:
            continue
    return found.hexdigest()
