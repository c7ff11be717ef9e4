"""Ctrl-C that a library made an error of its own, or that came where Python drops exceptions, is raised again.

KeyboardInterrupt is raised in whatever runs in the main thread. In a callback out of C, or in a destructor, it ends
there, and the run went on for its minutes and wrote its file before it said that it was interrupted.
"""

from __future__ import annotations

_state = {"interrupted": False}


def note() -> None:
    """The user pressed Ctrl-C."""
    _state["interrupted"] = True


def forget() -> None:
    """A new command begins."""
    _state["interrupted"] = False


def seen() -> bool:
    """The user has pressed Ctrl-C in this command."""
    return _state["interrupted"]


def check() -> None:
    """Raise KeyboardInterrupt where that was so."""
    if _state["interrupted"]:
        raise KeyboardInterrupt
