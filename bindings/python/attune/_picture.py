# SPDX-License-Identifier: MIT
"""Pictures of masks."""
from __future__ import annotations

from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .mask import Mask

# The library's colours of a full block and of a partial one.
FULL, PARTIAL = "183060", "c8d8f0"
_CELLS = 192  # the most pixels of the library's picture on a side; more would only make the file larger


def _ticks(length: int, room: float) -> list[int]:
    """Round places from 0 to length, at most six and no more than there is room for beside the first."""
    steps = (factor * 10**power for power in range(11) for factor in (1, 2, 5))
    step = next(step for step in steps if length <= min(5, max(1, int(room))) * step)
    return list(range(0, length + 1, step))


def svg(mask: Mask, batch: int, head: int, size: int) -> str:
    """One batch and head of a mask, with axes in tokens, legend, density and title."""
    lists, stats = mask.lists(), mask.stats()
    columns, rows, pixels = mask.pixels(batch=batch, head=head, width=_CELLS, height=_CELLS)
    unit = size / max(lists.q_len, lists.kv_len)
    # A long and narrow plane is still seen.
    width, height = max(lists.kv_len * unit, size / 12), max(lists.q_len * unit, size / 12)
    left, top = 62, 46
    title = mask.source if len(mask.source) < 80 else mask.source[:77] + "..."
    figures = f"batch {batch}, head {head}: {stats.block_density:.1%} of blocks, about {stats.density:.1%} of pairs"
    # Words are wider than a narrow plane.
    across = max(width, 7.3 * len(title), 6.6 * len(figures)) + left + 20
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{across:.0f}" height="{height + top + 66:.0f}" '
        'font-family="sans-serif" font-size="12" fill="#222" role="img">',
        f"<title>{escape(mask.source)}</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{left}" y="16" font-family="monospace">{escape(title)}</text>',
        f'<text x="{left}" y="34">{figures}</text>',
        f'<g transform="translate({left} {top})" shape-rendering="crispEdges">',
    ]
    # The last block may reach past the end.
    cell_width = width * lists.kv_blocks * lists.kv_block / lists.kv_len / columns
    cell_height = height * lists.q_blocks * lists.q_block / lists.q_len / rows
    for row in range(rows):
        column = 0
        for colour, run in groupby(pixels[3 * i : 3 * i + 3].hex() for i in range(row * columns, (row + 1) * columns)):
            count = len(list(run))
            if colour != "ffffff":
                out.append(f'<rect x="{column * cell_width:.2f}" y="{row * cell_height:.2f}" '
                           f'width="{min(count * cell_width, width - column * cell_width):.2f}" '
                           f'height="{min(cell_height, height - row * cell_height):.2f}" fill="#{colour}"/>')
            column += count
    out.append(f'<rect width="{width:.1f}" height="{height:.1f}" fill="none" stroke="#888"/></g>')
    for token in _ticks(lists.kv_len, width / (7 * len(str(lists.kv_len)) + 8)):
        out.append(f'<text x="{left + token / lists.kv_len * width:.1f}" y="{top + height + 16:.1f}" text-anchor="middle">{token}</text>')
    for token in _ticks(lists.q_len, height / 16):
        out.append(f'<text x="{left - 6}" y="{top + token / lists.q_len * height + 4:.1f}" text-anchor="end">{token}</text>')
    out.append(f'<text x="{left + width / 2:.1f}" y="{top + height + 34:.1f}" text-anchor="middle">key token (kv)</text>')
    out.append(f'<text transform="translate(14 {top + height / 2:.1f}) rotate(-90)" text-anchor="middle">query token (q)</text>')
    place = left
    for label, colour in (("full", FULL), ("partial", PARTIAL), ("empty", "ffffff")):
        out.append(f'<rect x="{place}" y="{top + height + 44:.1f}" width="12" height="12" fill="#{colour}" stroke="#888"/>'
                   f'<text x="{place + 17}" y="{top + height + 54:.1f}">{label}</text>')
        place += 70
    out.append("</svg>")
    return "".join(out)

