"""Opens a report in Chromium and checks what a reader would notice. Usage: open_report.py REPORT SCREENSHOTS"""

import pathlib
import sys

from chromium import check_width, chromium, listen

FIGURES = ["certified-recall", "radius-histogram", "radius-against-samples", "verdicts"]


def column(page, number):
    """What the cells of a column sort by, from top to bottom."""
    return page.eval_on_selector_all(
        f"#query-table tbody tr td:nth-child({number})", "cells => cells.map(cell => cell.dataset.sort)"
    )


def check_figures(page, wanted):
    for name in wanted:
        shapes = page.eval_on_selector_all(
            f"#figure-{name} svg[role=img]",
            "all => all.map(svg => svg.getBoundingClientRect()).map(box => [box.width, box.height])",
        )
        seen = [shape for shape in shapes if shape[0] > 100 and shape[1] > 100]
        assert len(seen) == 1, f"figure {name} has the shapes {shapes}, wanted one that is seen"
    # Neither texts beyond the edge of their figure, nor figures beyond the page.
    outside = page.evaluate(
        """() => [...document.querySelectorAll('figure svg[role=img]')].flatMap(svg => {
            const frame = svg.getBoundingClientRect();
            return [...svg.querySelectorAll('text')].filter(text => {
                const box = text.getBoundingClientRect();
                return box.width > 0 && (box.left < frame.left - 1 || box.right > frame.right + 1);
            }).map(text => text.textContent);
        })"""
    )
    assert not outside, f"texts beyond their figure: {outside}"


def check_pictures(page):
    blank = page.eval_on_selector_all("img", "all => all.filter(image => image.naturalWidth === 0).length")
    assert blank == 0, f"{blank} pictures do not decode"


def check_sorting(page):
    headings = page.locator("#query-table thead th")
    names = [name.strip() for name in headings.all_text_contents()]
    number = names.index("half-space") + 1
    heading = headings.nth(number - 1)
    before = column(page, number)
    heading.locator("button").click()
    down = [float(value) for value in column(page, number)]
    assert down == sorted(down, reverse=True) and heading.get_attribute("aria-sort") == "descending", down
    heading.locator("button").focus()
    page.keyboard.press("Enter")
    up = [float(value) for value in column(page, number)]
    assert up == sorted(up) and heading.get_attribute("aria-sort") == "ascending", up
    assert sorted(before) == sorted(column(page, number)), "sorting changed the rows"
    headings.nth(0).locator("button").focus()
    page.keyboard.press("Space")
    first = column(page, 1)
    assert headings.nth(0).get_attribute("aria-sort") == "ascending" and first[0] == min(first), first
    assert heading.get_attribute("aria-sort") == "none"


def check_nothing_scrolls_sideways(page):
    """Outside of commands, everything fits into its own box; texts of figures have a check of their own."""
    wide = page.evaluate(
        """() => [...document.querySelectorAll('*')]
            .filter(one => !one.closest('pre, code, svg *') && one.scrollWidth > one.clientWidth + 1)
            .map(one => `${one.tagName} ${one.className} ${one.scrollWidth} > ${one.clientWidth}`)"""
    )
    assert not wide, f"wider than their boxes: {wide}"


def main(report, folder):
    folder.mkdir(parents=True, exist_ok=True)
    address = report.resolve().as_uri()
    with chromium() as (_, page):
        faults = listen(page)
        page.on("requestfailed", lambda request: faults.append(f"failed: {request.url[:200]}"))
        page.on("request", lambda request: None if request.url.startswith(("data:", address)) else faults.append(request.url))
        page.goto(address)
        attacked = page.locator("#figure-bracket").count() == 1
        wanted = FIGURES + (["bracket"] if attacked else [])
        check_figures(page, wanted)
        check_pictures(page)
        page.screenshot(path=folder / "desktop.png", full_page=True)
        check_sorting(page)
        for width in (1280, 768, 641, 640, 360, 320):
            check_width(page, width)
        page.set_viewport_size({"width": 360, "height": 800})
        check_nothing_scrolls_sideways(page)
        check_figures(page, wanted)
        page.screenshot(path=folder / "phone.png", full_page=True)
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.set_viewport_size({"width": 1280, "height": 900})
        page.emulate_media(color_scheme="dark")
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert light != dark, f"the page is {light} in the dark, too"
        page.screenshot(path=folder / "dark.png", full_page=True)
        page.emulate_media(media="print", color_scheme="dark")
        printed = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert printed == light, f"paper is {printed}, wanted {light}"
        # A4 at 96 pixels per inch without its margins.
        page.set_viewport_size({"width": 703, "height": 1030})
        inner, outer = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        page.screenshot(path=folder / "print.png", full_page=True)
        assert inner <= outer, f"on paper of {outer} pixels the page is {inner} wide"
        assert not faults, faults
    print(f"{len(wanted)} figures, sorted, five widths: nothing amiss")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
