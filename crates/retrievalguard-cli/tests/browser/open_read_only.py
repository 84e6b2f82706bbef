"""Uses the page of a read-only server whose search cannot find anything. Usage: open_read_only.py URL PICTURE SCREENSHOTS"""

import pathlib
import sys
import time

from chromium import check_width, chromium
from open_server import check_contrast, drop, listen_to_answers, set_size, verdict, wait_for_answer, wait_for_size

# Seconds within which a search with the page's own defaults must end.
SEARCH = 45


def check_read_only(page):
    """The gallery can be looked at, and nothing on the page offers to change it."""
    page.wait_for_selector("#gallery-items li")
    assert page.locator("#gallery-read-only").is_visible(), "the page does not say that the gallery is read-only"
    assert page.locator("#gallery-add").is_hidden(), "the page offers to add an item"
    assert page.locator("[data-remove]").count() == 0, "the page offers to remove items"
    assert page.locator("[data-use]").count() > 0, "items cannot be used as queries"
    facts = page.inner_text("#facts-list")
    assert "read-only" in facts, f"the facts do not say it: {facts!r}"


def check_nothing_found(page, folder):
    """How long a search took that found nothing, and that it is not told as robustness."""
    page.locator("#kind-adversarial").check()
    page.locator("#against-plain").check()
    started = time.monotonic()
    page.click("#perturb-make")
    page.wait_for_selector("#perturb-progress-words:not(:empty)", timeout=SEARCH * 1000)
    page.wait_for_function(
        "() => !document.getElementById('perturb-result').hidden || document.querySelector('#perturb-notice.bad:not([hidden])')",
        timeout=SEARCH * 1000,
    )
    took = time.monotonic() - started
    assert page.locator("#perturb-result").is_visible(), f"the search failed: {page.inner_text('#perturb-notice')!r}"
    wait_for_size(page, 0.0)
    assert page.get_attribute("#perturb-result", "data-nothing") == "true", "the search found something, wanted nothing"
    said = page.inner_text("#perturb-found")
    for words in ("found nothing", "proves little", "only the encoder's outputs", "gradients may find"):
        assert words in said, f"{words!r} is not in {said!r}"
    assert "warn" in page.get_attribute("#perturb-found", "class"), "nothing found is told in passing"
    set_size(page, float(page.get_attribute("#size-slider", "max")))
    changed, _ = verdict(page, "plain")
    assert changed or "no proof" in page.inner_text("#plain-note"), page.inner_text("#plain-note")
    assert page.locator("#mark-broken").is_hidden(), "a break is marked that nobody found"
    page.locator("#perturb").screenshot(path=folder / "nothing-found.png")
    return took


def main(address, picture, folder):
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as (context, page):
        page.emulate_media(color_scheme="light", reduced_motion="reduce")
        faults = listen_to_answers(page)
        page.goto(address)
        check_read_only(page)
        page.locator("#gallery").screenshot(path=folder / "read-only.png")
        drop(page, picture)
        wait_for_answer(page)
        took = check_nothing_found(page, folder)
        check_contrast(page, "light")
        for width in (1280, 640, 320):
            check_width(page, width)
        # A page of another origin gets neither pictures nor words.
        other = context.new_page()
        # Through a site of its own, which the browser tells apart by its name.
        other.goto("data:text/html,<title>elsewhere</title>")
        identity = page.get_attribute("#gallery-items li", "data-identity")
        seen = other.evaluate(
            """(address) => new Promise((resolve) => {
                const image = new Image();
                image.onload = () => resolve(`shown, ${image.naturalWidth} wide`);
                image.onerror = () => resolve('refused');
                image.src = address;
            })""",
            f"{address}/v1/items/{identity.replace('/', '%2F')}/picture",
        )
        assert seen == "refused", f"another site's page gets a picture of the gallery: {seen}"
        assert not faults, faults
    print(f"ok: read-only, nothing found in {took:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
