"""GPU targets: egraft's executor through CuPy, timed by events, and ONNX Runtime with its CUDA provider."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from graphs.errors import NotExecutable
from graphs.ir import Graph

from .. import peaks
from ..fingerprint import Fingerprint, source_of, version_of
from ..peaks import Peaks
from ..timings import Timings
from .base import Feeds, MeasuredTarget, Runner, Unsupported
from .onnxruntime_cpu import OnnxRuntimeCpu, providers_here, try_once

if TYPE_CHECKING:
    from runtime.cuda.device import Device

HOST = "device:cuda"  # what peaks of a GPU are filed under
_PEAK_RUNS = 10


class _Timed:
    """A run of a device that is timed by the device."""

    def __init__(self, device: Device, queue: Callable[[], None]) -> None:
        self.device, self.queue = device, queue

    def __call__(self) -> None:
        self.queue()
        self.device.synchronize()

    def timed(self, count: int) -> list[float]:
        """Seconds by the device's clock."""
        return self.device.time(self.queue, count)


class EgraftCuda(MeasuredTarget):
    """egraft's executor on an NVIDIA GPU: generated kernels and cuBLAS through CuPy."""

    name = "egraft:cuda"
    gemm_size = 4096  # rows and columns of what peaks are measured with
    copy_bytes = 256 << 20  # of each of the two buffers of a copy in memory
    cached_bytes = 4 << 20  # the same in the L2 cache

    def __init__(self, device: Device | None = None) -> None:
        super().__init__()
        self._device = device
        self.is_given = device is not None  # not the machine's own, which another process could open as well
        self._fingerprint: Fingerprint | None = None

    def available(self) -> str | None:
        """None, or what is missing: CuPy, a driver, a device, NVRTC, cuBLAS."""
        if self._device is not None:
            return None
        from runtime.cuda import cupy_device

        return cupy_device.unavailable()

    @property
    def device(self) -> Device:
        """The GPU. Raises TargetUnavailable where there is none."""
        if self._device is None:
            self.require()
            from runtime.cuda.cupy_device import CupyDevice

            self._device = CupyDevice()
        return self._device

    @property
    def fingerprint(self) -> Fingerprint:
        """Card, driver, libraries, and the source of egraft's runtime; without a device `device: none`."""
        if self._fingerprint is None:  # it is asked for with every node
            if self.available() is not None:
                return Fingerprint.of({"device": "none"})
            fields = {key: str(value) for key, value in self.device.describe().items()}
            own = {"egraft": version_of("egraft"), "runtime": source_of("runtime")}
            self._fingerprint = Fingerprint.of({**fields, **own})
        return self._fingerprint

    def default_threads(self) -> int:
        """One: the host's threads compute nothing."""
        return 1

    def conditions(self) -> dict[str, str]:
        """Clocks, temperature and power now, where the driver's tool tells them."""
        return clocks()

    def prepare(self, graph: Graph, feeds: Feeds, threads: int = 1) -> Runner:
        """A plan with its inputs uploaded; a run replays it, captured where no node runs on NumPy.

        Raises Unsupported for graphs whose sizes depend on data: they have no plan that could be measured alone.
        """
        from runtime import Session
        from runtime.execute import MOST_TURNS

        try:
            session = Session(graph, target=self.name, device=self.device, most_turns=MOST_TURNS)
            replay = session.replay(feeds)
        except NotExecutable as error:
            raise Unsupported(error.found) from error
        return Runner(_Timed(self.device, replay.queue), replay.outputs, replay.close, replay.launches)

    def peaks(self, threads: int, timings: Timings) -> Peaks:
        """float32 GEMM without TF32, and copies inside the L2 cache and in memory."""
        measures: Mapping[str, peaks.Measure] = {
            "gemm float32": self._gemm, "copy cache": self._copy_cache, "copy memory": self._copy_memory,
            "read memory": self._copy_memory,
        }  # fmt: skip
        return peaks.peaks(timings, threads, HOST, self.fingerprint, measures)

    @property
    def peaks_filed_under(self) -> str:
        """The device itself, whatever runs on it."""
        return HOST

    def _gemm(self, threads: int) -> tuple[float, list[float]]:
        from runtime.cuda.device import Gemm, Place

        rows = self.gemm_size
        size = rows * rows * 4
        memory = [self.device.allocate(size) for _ in range(3)]
        values = np.random.default_rng(0).uniform(-1, 1, (rows, rows)).astype(np.float32)
        for each in memory[:2]:
            self.device.write(each, 0, values)
        places = [Place(each, 0, "float32", (rows, rows), (rows, 1)) for each in memory]
        product = Gemm(rows, rows, rows, "float32", rows, rows, rows)

        def queue() -> None:
            self.device.gemm(product, *places)

        queue()
        return 2.0 * rows**3, self.device.time(queue, _PEAK_RUNS)

    def _copy_cache(self, threads: int) -> tuple[float, list[float]]:
        return self._copy(self.cached_bytes, flushed=False)

    def _copy_memory(self, threads: int) -> tuple[float, list[float]]:
        return self._copy(self.copy_bytes, flushed=True)

    def _copy(self, size: int, flushed: bool) -> tuple[float, list[float]]:
        from runtime.codegen.movement import copy_kernel
        from runtime.cuda.device import Place

        count = size // 4
        source, target = self.device.allocate(size), self.device.allocate(size)
        self.device.write(source, 0, np.random.default_rng(0).uniform(-1, 1, count).astype(np.float32))
        places = [Place(each, 0, "float32", (count,), (1,)) for each in (source, target)]
        kernel = copy_kernel("float32", (count,), (1,), (1,))
        repeats = 1 if flushed else 20  # in the cache only what was copied just before

        def queue() -> None:
            for _ in range(repeats):
                self.device.launch(kernel, places)

        queue()
        return 2.0 * size * repeats, self.device.time(queue, _PEAK_RUNS)


class OnnxRuntimeCuda(OnnxRuntimeCpu):
    """ONNX Runtime on an NVIDIA GPU, where its CUDA provider is installed. Timed by wall clock, runs waited for."""

    name = "onnxruntime:cuda"
    providers: tuple[str, ...] = ("CUDAExecutionProvider", "CPUExecutionProvider")

    def available(self) -> str | None:
        """None, or what is missing: ONNX Runtime, its CUDA provider, or a device."""
        here = providers_here()
        if not here:
            return "the Python package onnxruntime-gpu is not installed; pip install onnxruntime-gpu"
        if "CUDAExecutionProvider" not in here:
            return ("the installed onnxruntime has no CUDA provider; on a machine with an NVIDIA GPU: "
                    "pip uninstall onnxruntime && pip install onnxruntime-gpu")
        return None if _has_nvidia_device() else "no NVIDIA GPU is here; use onnxruntime:cpu"

    @property
    def fingerprint(self) -> Fingerprint:
        """Card, driver and version of ONNX Runtime."""
        if self.available() is not None:
            return Fingerprint.of({"device": "none"})
        version = version_of("onnxruntime-gpu") or version_of("onnxruntime")
        return Fingerprint.of({**_card(), "onnxruntime": version})

    def default_threads(self) -> int:
        """One: what stays on the CPU is small."""
        return 1

    def prepare(self, graph: Graph, feeds: Feeds, threads: int = 1) -> Runner:
        """A session with inputs and outputs bound on the device; a run waits until it is done."""
        import onnxruntime

        self.require()
        session = self.session(graph, threads)
        binding = session.io_binding()
        wanted = {each.name for each in session.get_inputs()}
        bound = []  # ONNX Runtime does not keep them
        for name, array in feeds.items():
            if name in wanted:
                bound.append(onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), "cuda", 0))
                binding.bind_ortvalue_input(name, bound[-1])
        names = [each.name for each in session.get_outputs()]
        for name in names:
            binding.bind_output(name, "cuda")

        def run(options: Any = None) -> None:
            session.run_with_iobinding(binding, options)
            binding.synchronize_outputs()

        def outputs() -> dict[str, np.ndarray]:
            run()
            return dict(zip(names, binding.copy_outputs_to_cpu()))

        def close() -> None:
            binding.clear_binding_inputs()
            binding.clear_binding_outputs()
            bound.clear()

        try_once(graph, run)
        return Runner(run, outputs, close)


def clocks(max_age: float = 1.0) -> dict[str, str]:
    """Clocks (MHz), temperature (C) and power (W) of the first card as `nvidia-smi` says, empty without it.

    Asked at most once in `max_age` seconds: the tool takes longer than most nodes.
    """
    if time.monotonic() - _asked.get("at", -1e9) >= max_age:
        _asked["at"], _asked["found"] = time.monotonic(), _ask_clocks()
    return dict(_asked["found"])


_asked: dict[str, Any] = {}
_FIELDS = {"sm_clock": "clocks.sm", "memory_clock": "clocks.mem", "temperature": "temperature.gpu",
           "power": "power.draw"}


def _ask_clocks() -> dict[str, str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    command = [tool, f"--query-gpu={','.join(_FIELDS.values())}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):  # a card that does not say is measured all the same
        return {}
    values = (done.stdout.splitlines() or [""])[0].split(",")
    return {name: value.strip() for name, value in zip(_FIELDS, values)}


def _has_nvidia_device() -> bool:
    """A driver file, or the WSL one: asking CUDA itself would need CuPy."""
    return any(os.path.exists(path) for path in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg"))


@lru_cache(maxsize=1)
def _card() -> dict[str, str]:
    """The card as the driver names it, from /proc; no library is needed."""
    folder = "/proc/driver/nvidia"
    found: dict[str, str] = {}
    try:
        gpus = sorted(os.listdir(f"{folder}/gpus"))
        with open(f"{folder}/gpus/{gpus[0]}/information", encoding="utf-8") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
        found["gpu"] = fields.get("Model", "").strip()
        with open(f"{folder}/version", encoding="utf-8") as file:
            found["driver"] = file.readline().strip()
    except (OSError, IndexError):  # a container may hide /proc/driver
        found.setdefault("gpu", "unknown NVIDIA GPU")
    return found


__all__ = ["EgraftCuda", "OnnxRuntimeCuda"]
