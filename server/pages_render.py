"""Rendering of templates: autoescaped, sharing the report's own parts with `optimizer.report_html`."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape

from optimizer import drawing
from optimizer.number_text import moved_text, seconds_text
from optimizer.report_html import FILTERS

NAMES = {"dim": "dim=NAME=N", "fresh": "fresh=true", "inputs": "the part inputs"}  # of options, in requests


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates of the service and of reports."""
    loader = ChoiceLoader([PackageLoader("server"), PackageLoader("optimizer")])
    found = Environment(loader=loader, autoescape=select_autoescape(default=True, default_for_string=True),
                        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    found.filters.update(FILTERS)
    found.filters.update(when=when, drawing=drawing.drawing, moved=moved_text, change=change)
    found.globals.update(box_width=drawing.WIDTH, box_height=drawing.HEIGHT, names=NAMES)
    return found


def when(seconds: float | None) -> str:
    """A time for people, in UTC."""
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def change(seconds: float) -> str:
    """A time that was gained or lost."""
    return f"{'-' if seconds < 0 else '+'}{seconds_text(abs(seconds)) or '0 s'}"


def render_page(name: str, **values: Any) -> str:
    """One page."""
    return environment().get_template(name).render(**values)
