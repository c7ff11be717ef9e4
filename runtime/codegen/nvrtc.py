"""CUDA readings compiled by NVRTC through CuPy. No device is needed, only CuPy and NVRTC's library."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from graphs.errors import ExecutionFailed, TargetUnavailable

from .cache import cached, content
from .kernel import Kernel

ARCHITECTURES = ("sm_80", "sm_90")  # what is compiled where no device says which one it has


def unavailable() -> str | None:
    """Why kernels cannot be compiled for CUDA here, with what to do; None if they can."""
    try:
        _nvrtc().getVersion()
    except TargetUnavailable as error:
        return f"{error.found}; {error.fix}"
    return None


def _nvrtc() -> ModuleType:
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except Exception as error:  # CuPy raises classes of several packages where CUDA libraries are missing
        said = " ".join(str(error).split())[:120]
        raise TargetUnavailable(
            "CUDA kernels", f"CuPy with NVRTC is not here ({type(error).__name__}: {said})",
            "install `egraft[cuda12]` or `egraft[cuda13]`, as the driver asks for, and `nvidia-cuda-nvrtc`") from error
    return nvrtc


def options(kernel: Kernel, architecture: str) -> tuple[str, ...]:
    """What NVRTC is told. Without contraction a kernel does the same operations as the graph that it stands for."""
    return (f"-arch={architecture}", "-std=c++17", "-default-device", f"-fmad={'false' if kernel.exact else 'true'}")


def check(kernels: Sequence[Kernel], architecture: str) -> None:
    """Compile many kernels in as few programs as their definitions allow, and throw the results away.

    Raises ExecutionFailed with the compiler's words. Tests use it: a program costs more than a kernel in it.
    """
    groups: dict[tuple[str, bool], list[Kernel]] = {}
    for kernel in {each.key: each for each in kernels}.values():
        groups.setdefault((repr(sorted(kernel.definitions.items())), kernel.exact), []).append(kernel)
    for group in groups.values():
        source = group[0].source().removesuffix(group[0].text)
        for kernel in group:
            own = kernel.text.replace(f"EG_KERNEL({kernel.name})", f"EG_KERNEL({kernel.name}_{kernel.key})")
            source += f"namespace k{kernel.key} {{\n{own}}}\n"
        _compile(source, group[0].name, options(group[0], architecture))


def _compile(source: str, name: str, told: tuple[str, ...]) -> bytes:
    nvrtc = _nvrtc()
    program = nvrtc.createProgram(source, f"{name}.cu", (), ())
    try:
        nvrtc.compileProgram(program, told)
        return nvrtc.getCUBIN(program)
    except Exception as error:
        raise ExecutionFailed(f"kernel {name}", f"NVRTC refuses it: {nvrtc.getProgramLog(program)[:2000]}",
                              "report it: generated kernels must compile") from error
    finally:
        nvrtc.destroyProgram(program)


def compile_cubin(kernel: Kernel, architecture: str) -> bytes:
    """The kernel as a cubin for one architecture, like `sm_90`. Raises ExecutionFailed with the compiler's words."""
    version = ".".join(map(str, _nvrtc().getVersion()))
    told = options(kernel, architecture)
    name = hashlib.sha256("\0".join([kernel.key, version, *told]).encode()).hexdigest()[:32]

    def make(path: Path) -> None:
        path.write_bytes(_compile(kernel.source(), kernel.name, told))

    return content(cached(f"{name}.cubin", make))
