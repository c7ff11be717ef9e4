"""Where the commands write."""

from __future__ import annotations

import os
import re
from pathlib import Path

from graphs.errors import InvalidOption
from graphs.wording import counted

_LEFT_OUT = re.compile(r"\] sha256:[0-9a-f]{64}\b")


def check_place(option: str, place: Path) -> None:
    """Before any work: raise InvalidOption unless a file can be written there."""
    if not place.parent.is_dir():
        raise InvalidOption(f"{option} {place}", f"the folder {str(place.parent)!r} does not exist", "create it first")
    if place.is_dir():
        raise InvalidOption(f"{option} {place}", "it is a folder", "give the name of a file")
    if place.exists() and not place.is_file():  # taking its place would destroy it: /dev/null, a pipe
        raise InvalidOption(f"{option} {place}", "it is no regular file", "give the name of a file")
    if not os.access(place.parent, os.W_OK):
        raise InvalidOption(f"{option} {place}", f"the folder {str(place.parent)!r} cannot be written",
                            "choose another place")


def print_left_out(out: Path) -> None:
    """Say of a written text form how many constants are not in it: with any left out, no command can run it."""
    if out.suffix.lower() != ".txt":
        return
    with out.open(encoding="utf-8") as lines:
        count = sum(len(_LEFT_OUT.findall(line)) for line in lines)
    if count:
        print(f"note       {out.name} is for reading only: {counted(count, 'large constant')} left out (only digests "
              "stand there); write .onnx or .json to run it")
    else:
        print(f"note       {out.name} is the text form, for reading; no constant is left out of it")
