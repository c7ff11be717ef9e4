"""Where the commands write."""

from __future__ import annotations

import os
from pathlib import Path

from graphs.errors import InvalidOption


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
