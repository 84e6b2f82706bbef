"""The figure of the experiment, in the colours and the type of the program's own figures (crates/retrievalguard-report)."""

from html import escape

import numpy

# Class, property, on white, on black: those of chart/theme.rs.
PARTS = (
    ("rg-paper", "fill", "#ffffff", "#15181c"),
    ("rg-ink", "fill", "#1c1f23", "#eceef0"),
    ("rg-muted", "fill", "#575e66", "#a9b1ba"),
    ("rg-grid", "stroke", "#e3e6e9", "#2d3238"),
    ("rg-axis", "stroke", "#7b838c", "#868f99"),
)
PALETTE = (("#0072b2", "#4ba6dd"), ("#d55e00", "#f58137"), ("#00875f", "#2fc296"))
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
WIDTH, LEFT, RIGHT = 640, 40.6, 600
MARKS = ("", "8 4", "2 4")


def style():
    """The style sheet: white, or black where the reader prefers it."""

    def rules(shade):
        parts = "".join(f".{name}{{{what}:{colours[shade]}}}" for name, what, *colours in PARTS)
        series = "".join(f".rg-s{place}{{stroke:{pair[shade]}}}.rg-f{place}{{fill:{pair[shade]}}}" for place, pair in enumerate(PALETTE))
        return parts + series

    dark = f"@media screen and (prefers-color-scheme:dark){{{rules(1)}}}"
    return f"<style>{rules(0)}{dark}.rg-strong{{font-weight:600}}</style>"


def text(x, y, words, size=11.5, kind="rg-muted", anchor="start"):
    return f'<text x="{x:.2f}" y="{y:.2f}" font-size="{size}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1, y1, x2, y2, kind, width=1.0, dashes=""):
    dash = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path class="{kind}" fill="none" stroke-width="{width}"{dash} d="M{x1:.2f} {y1:.2f}L{x2:.2f} {y2:.2f}"></path>'


def attack_panel(curves, top, height):
    """The share of copies that are found, by the size of the attack in certified radii."""
    smallest, largest = 0.01, 2.0
    across = numpy.geomspace(smallest, largest, 241)
    place = lambda value: LEFT + (RIGHT - LEFT) * numpy.log(value / smallest) / numpy.log(largest / smallest)
    level = lambda share: top + height * (1 - share)
    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts += [line(LEFT, level(share), RIGHT, level(share), "rg-grid"), text(LEFT - 7, level(share) + 4, f"{share:g}", anchor="end")]
    for value in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2):
        parts += [line(place(value), top, place(value), top + height, "rg-grid"), text(place(value), top + height + 17, f"{value:g}", anchor="middle")]
    parts += [line(LEFT, top, LEFT, top + height, "rg-axis"), line(LEFT, top + height, RIGHT, top + height, "rg-axis")]
    for number, (name, sizes) in enumerate(curves.items()):
        shares = [float((sizes > value).mean()) for value in across]
        points = "L".join(f"{place(value):.2f} {level(share):.2f}" for value, share in zip(across, shares))
        dash = f' stroke-dasharray="{MARKS[number]}"' if MARKS[number] else ""
        parts.append(f'<path class="rg-s{number}" fill="none" stroke-width="2"{dash} d="M{points}"></path>')
    x = LEFT
    for number, name in enumerate(curves):
        parts += [line(x, top + height + 50, x + 26, top + height + 50, f"rg-s{number}", 2, MARKS[number])]
        words = f"{name}, certified" if number == 0 else name
        parts.append(text(x + 33, top + height + 54, words, 12, "rg-ink"))
        x += 50 + 7 * len(words)
    parts.append(text((LEFT + RIGHT) / 2, top + height + 34, "size of the attack, in certified radii of the picture (l2)", 12, anchor="middle"))
    return parts


def edit_panel(rows, radii, top, step):
    """The sizes of edits beside the certified radii: from 5 to 95 %, with a dot at the mean."""
    left = 148
    rows = sorted(rows, key=lambda row: row["mean size"])
    low, mean, high = numpy.quantile(radii, 0.05), radii.mean(), numpy.quantile(radii, 0.95)
    largest = max(high, *(row["size of 95 %"] for row in rows))
    spacing = next(value for value in (0.5, 1, 2, 5, 10, 20, 50, 100) if largest / value <= 10)
    largest = spacing * numpy.ceil(largest / spacing)
    place = lambda size: left + (RIGHT - left) * size / largest
    bottom = top + step * len(rows)
    band = f'<rect class="rg-f0" opacity="0.16" x="{place(low):.2f}" y="{top:.2f}" width="{place(high) - place(low):.2f}" height="{bottom - top:.2f}"></rect>'
    parts = [band, line(place(mean), top, place(mean), bottom, "rg-s0", 1.5)]
    parts.append(text(place(mean), top - 6, "certified radii", 12, "rg-f0", "middle"))
    for size in numpy.arange(0, largest + spacing / 2, spacing):
        parts += [line(place(size), top, place(size), bottom, "rg-grid"), text(place(size), bottom + 17, f"{size:g}", anchor="middle")]
    parts += [line(left, top, left, bottom, "rg-axis"), line(left, bottom, RIGHT, bottom, "rg-axis")]
    for number, row in enumerate(rows):
        y = top + step * (number + 0.5)
        parts.append(text(left - 8, y + 4, row["edit"], 11.5, "rg-ink", "end"))
        parts.append(line(place(row["size of 5 %"]), y, place(row["size of 95 %"]), y, "rg-axis", 2.5))
        parts.append(f'<circle class="rg-muted" cx="{place(row["mean size"]):.2f}" cy="{y:.2f}" r="4"></circle>')
        # Downwards: 1 is all of them.
        parts.append(text(RIGHT + 6, y + 4, f"{numpy.floor(1000 * row['inside'] + 1e-6) / 1000:.3f}", 11))
    parts.append(text(RIGHT + 34, top - 6, "inside", 11, anchor="end"))
    parts.append(text((left + RIGHT) / 2, bottom + 34, "l2 size of the edit, where the certificate speaks", 12, anchor="middle"))
    return parts, bottom + 44


def drawn(curves, rows, radii):
    """The whole figure as SVG."""
    parts = [text(14, 30, "Copies under attack, and after edits", 16, "rg-ink rg-strong")]
    parts.append(text(14, 54, "share of copies that are found within the threshold", 12))
    parts += attack_panel(curves, 68, 190)
    edits, bottom = edit_panel(rows, radii, 362, 20)
    parts.append(text(14, 338, "size of edits: dot at the mean, line from 5 to 95 %; band: certified radii, from 5 to 95 %", 12))
    parts += edits
    title = "<title>Copies under attack, and after edits</title>"
    said = "Above: share of copies found by the size of an attack in certified radii, logarithmic. Below: l2 sizes of edits beside certified radii."
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH} {bottom:.0f}" width="{WIDTH}" height="{bottom:.0f}" font-family="{FONT}">'
    paper = f'<rect class="rg-paper" width="{WIDTH}" height="{bottom:.0f}"></rect>'
    return f"{head}{title}<desc>{said}</desc>{style()}{paper}{''.join(parts)}</svg>\n"
