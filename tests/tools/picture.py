#!/usr/bin/env python3
"""Draws a board with the data of a Prometheus, for the README.

    picture.py http://127.0.0.1:9090 config/grafana/dashboards/tributary.json OUT.svg [RATE_INTERVAL]

Panels are where the board has them, with its queries, units and legends; colours and fonts are Grafana's only in spirit. Tokens and the
worker itself are left out, for the picture's sake. Standard library only.
"""

import html
import json
import math
import re
import sys
import time

from panels import SPAN_SECONDS, ask, filled

ROWS = ["At a glance", "Ingest", "Spool", "Enrichment", "Snapshot", "Subscriptions and gaps", "API budget"]
COLUMN, LINE, MARGIN, POINTS, MOST_SERIES, MOST_NAMED = 50, 20, 4, 60, 10, 3
PALETTE = ["#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#b877d9", "#5794f2", "#ffb357", "#96d98d", "#ffa6b0"]
BACK, PANEL, EDGE, TEXT, FAINT = "#111217", "#181b1f", "#2c2e33", "#ccccdc", "#8e8e99"


def shown(value, unit):
    """A number in a readable form."""
    if unit == "s":
        for size, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
            if abs(value) >= size:
                return f"{value / size:.3g} {name}"
        return "0 s" if value == 0 else f"{value * 1000:.3g} ms"
    if unit in ("bytes", "Bps"):
        for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
            if abs(value) >= size:
                return f"{value / size:.3g} {name}" + ("/s" if unit == "Bps" else "")
        return f"{value:.3g} B" + ("/s" if unit == "Bps" else "")
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    return f"{value:.3g}" + ("/s" if unit == "cps" else "")


def name(target, labels):
    legend = target.get("legendFormat") or ", ".join(text for key, text in sorted(labels.items()) if key != "__name__")
    return re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found[1], ""), legend)


def step_of(span):
    return max(1, round((span[1] - span[0]) / POINTS))


def series_of(base, panel, span, interval):
    """Series with their points, those with values first."""
    start, end = span
    step = step_of(span)
    found = []
    for target in panel["targets"]:
        answer = ask(base, "query_range", query=filled(target["expr"], interval), start=start, end=end, step=f"{step}s")
        for series in answer["result"]:
            points = [(float(at), float(value)) for at, value in series["values"]]
            points = [(at, value) for at, value in points if math.isfinite(value)]
            if points:
                found.append((name(target, series["metric"]), points))
    found.sort(key=lambda one: -max(abs(value) for _, value in one[1]))
    return found[:MOST_SERIES]


def text(x, y, words, size=11, color=TEXT, anchor="start", weight="normal"):
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{color}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{html.escape(words)}</text>"
    )


def cut(words, width):
    most = max(4, int(width / 5))
    return words if len(words) <= most else words[: most - 1] + "…"


def draw_graph(found, unit, span, box):
    x, y, width, height = box
    left, top, bottom = x + 58, y + 26, y + height - 26
    start, end = span
    most = max([value for _, points in found for _, value in points] + [0])
    least = min([value for _, points in found for _, value in points] + [0])
    most = most if most > least else least + 1
    place = lambda at, value: (  # noqa: E731
        left + (at - start) / (end - start) * (x + width - 10 - left),
        bottom - (value - least) / (most - least) * (bottom - top),
    )
    parts = []
    for value in (least, (least + most) / 2, most):
        _, line = place(start, value)
        parts.append(f'<path d="M{left} {line:.0f}H{x + width - 10}" stroke="{EDGE}"/>')
        parts.append(text(left - 5, line + 4, shown(value, unit), 9, FAINT, "end"))
    for index, (_, points) in enumerate(found):
        # Nothing is drawn where data is missing.
        path, before = "", -math.inf
        for at, value in points:
            px, py = place(at, value)
            path += f"{'L' if at - before < 1.5 * step_of(span) else 'M'}{px:.0f} {py:.1f}"
            before = at
        parts.append(f'<path d="{path}" fill="none" stroke="{PALETTE[index % len(PALETTE)]}" stroke-width="1.5"/>')
    named, room = found[:MOST_NAMED], (width - 20) / max(1, min(len(found), MOST_NAMED))
    for index, (words, _) in enumerate(named):
        at = x + 10 + index * room
        parts.append(f'<rect x="{at:.0f}" y="{bottom + 12:.0f}" width="10" height="3" fill="{PALETTE[index]}"/>')
        parts.append(text(at + 14, bottom + 17, cut(words, room - 20), 9, FAINT))
    return parts


def draw_panel(base, panel, span, interval, box):
    x, y, width, height = box
    unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "short")
    found = series_of(base, panel, span, interval)
    parts = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="2" fill="{PANEL}" stroke="{EDGE}"/>',
        text(x + 10, y + 16, cut(panel["title"], width - 10), 11, TEXT, weight="600"),
    ]
    if not found:
        return parts + [text(x + width / 2, y + height / 2 + 8, "no data", 11, FAINT, "middle")]
    if panel["type"] == "stat":
        value = shown(found[0][1][-1][1], unit)
        return parts + [text(x + width / 2, y + height / 2 + 18, value, 24, PALETTE[0], "middle", "600")]
    return parts + draw_graph(found, unit, span, box)


def main(base, board, out, interval="10s"):
    with open(board, encoding="utf-8") as file:
        panels = json.load(file)["panels"]
    now = time.time()
    up = ask(base, "query_range", query='up{job="tributary"} == 1', start=now - SPAN_SECONDS, end=now, step="1s")["result"]
    if not up:
        raise SystemExit("no worker was up in all that Prometheus has")
    moments = [float(at) for series in up for at, _ in series["values"]]
    span = (min(moments), max(moments))
    parts, row, height, top, first = [], None, 0, 0, 0
    for panel in panels:
        place = panel["gridPos"]
        if panel["type"] == "row":
            # A row that is left out leaves no space.
            row, first = panel["title"], place["y"]
            if row in ROWS:
                top = height
                parts.append(text(MARGIN + 6, top + 18, row, 13, TEXT, weight="600"))
                height += 26
            continue
        if row not in ROWS:
            continue
        x, y = place["x"] * COLUMN + MARGIN, top + 26 + (place["y"] - first - 1) * LINE
        box = (x, y, place["w"] * COLUMN - MARGIN, place["h"] * LINE - MARGIN)
        parts += draw_panel(base, panel, span, interval, box)
        height = max(height, y + place["h"] * LINE)
    width = 24 * COLUMN + MARGIN
    told = f"The board of Tributary over {span[1] - span[0]:.0f} seconds of its demo"
    picture = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + MARGIN}" '
        'font-family="Inter, Helvetica, Arial, sans-serif" role="img">',
        f"<title>{told}</title>",
        f'<rect width="{width}" height="{height + MARGIN}" fill="{BACK}"/>',
        *parts,
        "</svg>",
    ]
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(picture) + "\n")
    print(f"{told}: {out}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
