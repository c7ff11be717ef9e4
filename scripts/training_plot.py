"""A plot of time against memory, as SVG text: one line for each model, intervals as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, BOTTOM, RIGHT, TOP = 560, 320, 56, 44, 120, 16
COLOURS = ("#0b6e99", "#b3541e", "#4f7a28", "#7a3e9d")


@dataclass(frozen=True)
class Line:
    """Of one model: (share of the memory, time as a multiple of that without a limit, its low and high end)."""

    name: str
    points: Sequence[tuple[float, float, float, float]]


def plot(lines: Sequence[Line]) -> str:
    """The SVG: memory to the right, in percent of what the step takes; time upwards, in percent added."""
    ends = [end for line in lines for _, time, low, high in line.points for end in (time, low, high)]
    floor, top = min(0.9, *ends), max(1.5, *ends)

    def across(share: float) -> float:
        return LEFT + (share - 0.2) / 0.8 * (WIDTH - LEFT - RIGHT)

    def up(time: float) -> float:
        return HEIGHT - BOTTOM - (time - floor) / (top - floor) * (HEIGHT - BOTTOM - TOP)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
             'font-size="12">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>']
    for percent in range(20, 101, 20):
        x = across(percent / 100)
        parts += [f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#dddddd"/>',
                  f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{percent} %</text>']
    for tenth in range(round(floor * 10), int(top * 10) + 1):
        y = up(tenth / 10)
        if y > HEIGHT - BOTTOM:
            continue
        parts += [f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>',
                  f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{(tenth - 10) * 10:+d} %</text>']
    parts += [f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">peak of live bytes</text>',
              f'<text x="14" y="{HEIGHT / 2}" text-anchor="middle" '
              f'transform="rotate(-90 14 {HEIGHT / 2})">time</text>']
    for index, line in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)]
        places = [(across(share), up(time), up(low), up(high)) for share, time, low, high in line.points]
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="'
                     + " ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in places) + '"/>')
        for x, y, low, high in places:
            parts += [f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" stroke="{colour}"/>',
                      f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>']
        parts.append(f'<text x="{WIDTH - RIGHT + 10}" y="{TOP + 14 + 18 * index}" fill="{colour}">{line.name}</text>')
    return "\n".join([*parts, "</svg>", ""])
