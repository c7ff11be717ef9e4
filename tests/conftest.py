"""Set-up shared by all tests: one thread, no user caches, reproducible examples."""

import os
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings

# Before NumPy is imported: tests run side by side and some of them measure.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Timing databases, compiled kernels and job stores of whoever runs the tests are neither read nor written.
_scratch = tempfile.mkdtemp(prefix="egraft-tests-")
for _name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
    os.environ[_name] = os.path.join(_scratch, _name[4:-5].lower())

settings.register_profile(
    "egraft", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("egraft"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "egraft")


def _has_gpu() -> bool:
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount() > 0
    except Exception:
        return False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not _has_gpu():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device answers"))


def pytest_unconfigure() -> None:
    shutil.rmtree(_scratch, ignore_errors=True)
