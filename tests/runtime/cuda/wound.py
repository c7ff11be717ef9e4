"""An emulated device with a clock that tests wind: what takes how long is known before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runtime.codegen import Kernel
from runtime.cuda.device import Place
from runtime.cuda.emulated import EmulatedDevice

LAUNCH, ROW, FAVOURITE = 5e-6, 1e-6, (128, 1)


class Wound(EmulatedDevice):
    """An emulation with a clock of its own: a launch takes 5 us, and 1 us more if its block is not the favourite."""

    name = "wound"

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[tuple[int, int]] = []
        self.fused = LAUNCH

    def launch(self, kernel: Kernel, places: Sequence[Place]) -> None:
        super().launch(kernel, places)
        self.blocks.append(kernel.block)

    def time(self, queue: Callable[[], None], count: int) -> list[float]:
        first, blocks = len(self.launches), len(self.blocks)
        queue()
        taken = sum(self.fused if name == "eg_fused" else LAUNCH for name in self.launches[first:])
        taken += sum(ROW for block in self.blocks[blocks:] if block != FAVOURITE)
        return [taken] * count
