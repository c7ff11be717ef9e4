"""Constants on a device: uploaded when first used, once for all plans of a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .device import Device
from .lower import Constants
from .tensor import Storage, Tensor


class Weights:
    """Memory of the arrays that do not depend on input sizes (`constants`). Others are uploaded for one plan."""

    def __init__(self, device: Device, constants: Constants) -> None:
        self.device, self.constants = device, constants
        self.memory: dict[int, Any] = {}  # by id of the array, which `constants` keeps alive
        self.bytes = 0

    def upload(self, key: int, array: np.ndarray) -> Any:
        """The memory that holds an array. `key`: the id of the array that it was made of."""
        if key in self.memory:
            return self.memory[key]
        memory = self.device.allocate(max(array.nbytes, 1))
        if array.nbytes:
            self.device.write(memory, 0, array)
        if key in self.constants.arrays:
            self.memory[key] = memory
            self.bytes += array.nbytes
        return memory

    def settle(self, constants: Mapping[int, Tensor], used: Iterable[Storage]) -> None:
        """Upload those constants of a plan that it uses."""
        numbers = {each.number for each in used}
        for key, tensor in constants.items():
            storage = tensor.storage
            assert storage is not None and storage.array is not None
            if storage.number in numbers:
                storage.memory = self.upload(key, storage.array)

    def close(self) -> None:
        """Let go of all."""
        self.memory.clear()
        self.bytes = 0
