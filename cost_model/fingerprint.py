"""Device fingerprints: what must be the same for a stored time to count here.

Thread counts are part of a record's key, not of the fingerprint: one device is measured at several of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from graphs.machine import cores_visible

from . import blas


@dataclass(frozen=True)
class Fingerprint:
    """Names and values that identify a device and the libraries on it. `digest` is what records are filed
    under.
    """

    fields: tuple[tuple[str, str], ...]

    @staticmethod
    def of(fields: Mapping[str, object]) -> Fingerprint:
        """From a mapping; order does not matter."""
        return Fingerprint(tuple(sorted((str(name), str(value)) for name, value in fields.items())))

    @property
    def digest(self) -> str:
        """16 hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def text(self) -> str:
        """JSON with sorted names."""
        return json.dumps(dict(self.fields), sort_keys=True)

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.fields if value)


@lru_cache(maxsize=1)
def cpu() -> dict[str, str]:
    """Model, family and stepping, instruction set (as a hash), cores that this process may use, container
    quota.
    """
    found: dict[str, str] = {}
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    features = " ".join(sorted((found.get("flags") or found.get("Features") or "").split()))
    parts = (found.get("cpu family"), found.get("model"), found.get("stepping"))
    return {
        "cpu": found.get("model name") or found.get("CPU part") or platform.processor() or platform.machine(),
        "cpu_version": "-".join(part for part in parts if part),
        "instructions": hashlib.sha256(features.encode()).hexdigest()[:8] if features else "",
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": str(cores_visible()),
        "quota": _quota(),
    }


def _quota() -> str:
    """Cores that the container grants (cgroup v2), empty where unlimited or unknown."""
    try:
        granted, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):  # no cgroup v2 here: nothing is known of a quota
        return ""
    return "" if granted == "max" else f"{int(granted) / int(period):g}"


def version_of(distribution: str) -> str:
    """Version of an installed distribution, empty where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


@lru_cache(maxsize=1)
def numpy_cpu() -> Fingerprint:
    """The CPU with NumPy and its BLAS: for kernels of `egraft:cpu`."""
    library = blas.description()
    return Fingerprint.of(
        {
            **cpu(),
            "numpy": np.__version__,
            "blas": library["name"],
            "blas_version": library["version"],
            "blas_kernel": library["kernel"],
            "OPENBLAS_CORETYPE": os.environ.get("OPENBLAS_CORETYPE", ""),
        }
    )


@lru_cache(maxsize=1)
def egraft_cpu() -> Fingerprint:
    """`numpy_cpu` with the source of egraft's own runtime: a changed kernel makes its old times foreign."""
    own = {"egraft": version_of("egraft"), "runtime": source_of("runtime")}
    return Fingerprint.of({**dict(numpy_cpu().fields), **own})


SOURCES = (".py", ".c", ".h", ".cpp", ".cuh")


def source_of(package: str) -> str:
    """Hash of a package's source files, empty where they cannot be found."""
    spec = find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    hasher = hashlib.sha256()
    for folder in folders:
        for path in sorted(each for each in Path(folder).rglob("*") if each.suffix in SOURCES):
            hasher.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return hasher.hexdigest()[:16] if folders else ""


@lru_cache(maxsize=1)
def onnxruntime_cpu() -> Fingerprint:
    """The CPU with ONNX Runtime; NumPy runs none of its kernels and is left out."""
    return Fingerprint.of({**cpu(), "onnxruntime": version_of("onnxruntime") or version_of("onnxruntime-gpu")})
