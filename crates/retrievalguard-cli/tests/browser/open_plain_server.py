"""Uses the page of a server whose gallery has no noise. Usage: open_plain_server.py URL PICTURE SCREENSHOTS"""

import pathlib
import re
import sys

from chromium import check_width, chromium
from open_server import SEARCH, check_contrast, check_gallery, check_names, drop, listen_to_answers, set_size, wait_for_answer, wait_for_size

# What a page without noise must not say anywhere that can be seen.
UNWANTED = [r"\bnoise\b(?! and no| and|, and no)", r"\bσ\b", r"\bα\b", r"\bsamples?\b", r"\bpilot\b", r"\bsmoothed\b", r"probability (at|of|\d)"]


def check_words(page):
    """Nothing that is shown speaks of noise, but for the sentences that say that there is none."""
    shown = page.inner_text("body")
    for sentence in ("always: no noise, and no failure probability", "which is run once, without noise"):
        assert sentence in shown, f"the page does not say {sentence!r}"
        shown = shown.replace(sentence, "")
    found = [word for word in UNWANTED if re.search(word, shown)]
    assert not found, f"the page says {found}: {[line for line in shown.splitlines() if any(re.search(word, line) for word in found)]}"


def check_answer(page):
    """The radius, as it is and as it is shown."""
    assert page.get_attribute("#answer", "data-verdict") == "certified", page.inner_text("#answer-statement")
    radius, shown = float(page.get_attribute("#answer", "data-radius")), page.inner_text("#answer-radius")
    assert 0 < float(shown) <= radius < float(shown) + 1e-4, f"{shown} is not {radius} rounded down"
    assert "certified, always" in page.inner_text("#answer-verdict")
    statement = page.inner_text("#answer-statement")
    assert "This holds always" in statement and "probability" not in statement, statement
    assert not page.locator("#answer-chart").is_visible(), "a curve of samples is drawn"
    assert page.inner_text("#answer-progress").startswith("one pass of the encoder"), page.inner_text("#answer-progress")
    return radius, shown


def verdict(page):
    """Whether the retriever changed its mind, and the words beside it."""
    assert page.locator("#plain-pill svg").count() == 1, "the verdict is told by colour alone"
    return page.get_attribute("#plain", "data-changed") == "true", page.inner_text("#plain-pill").strip()


def check_search(page, radius, folder):
    """The size at which the search broke the answer, after looking inside the radius and beyond that size."""
    assert not page.locator("#against").is_visible(), "the page offers a smoothed retriever"
    page.locator("#kind-noise").check()
    page.wait_for_selector("#perturb-result[data-kind=noise]:not([hidden])", timeout=SEARCH)
    wait_for_size(page, 0.0)
    page.locator("#kind-adversarial").check()
    page.click("#perturb-make")
    page.wait_for_function(
        "() => !document.getElementById('perturb-result').hidden || document.querySelector('#perturb-notice.bad:not([hidden])')",
        timeout=SEARCH,
    )
    assert page.locator("#perturb-result").is_visible(), f"the search failed: {page.inner_text('#perturb-notice')!r}"
    wait_for_size(page, 0.0)
    broken = float(page.get_attribute("#perturb-result", "data-broken-at"))
    assert broken >= radius, f"the answer broke at {broken}, inside the radius {radius}"
    assert not page.locator("#smoothed").is_visible(), "a smoothed retriever is shown"
    set_size(page, 0.9 * radius)
    assert page.get_attribute("#promise", "data-inside") == "true" and "always" in page.inner_text("#promise")
    changed, words = verdict(page)
    assert not changed and words == "holds", f"inside the radius the retriever {words!r}"
    page.locator("#perturb").screenshot(path=folder / "inside.png")
    set_size(page, 1.02 * broken)
    changed, words = verdict(page)
    assert changed and words == "changed its mind", f"beyond {broken} the retriever {words!r}"
    assert page.get_attribute("#promise", "data-inside") == "false"
    assert not page.locator("#doubt").is_visible(), page.inner_text("#doubt")
    page.locator("#perturb").screenshot(path=folder / "beyond.png")
    return broken


def main(address, picture, folder):
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as (context, page):
        page.emulate_media(color_scheme="light", reduced_motion="reduce")
        faults = listen_to_answers(page)
        page.goto(address)
        page.wait_for_selector("#gallery-items li")
        check_words(page)
        page.screenshot(path=folder / "start.png", full_page=True)

        drop(page, picture)
        wait_for_answer(page)
        radius, shown = check_answer(page)
        assert page.locator("#neighbours li").count() > 0, "no neighbours are shown"
        page.click("#query-options summary")
        assert page.locator("#option-top").is_visible() and not page.locator("#option-samples").is_visible()
        page.fill("#option-top", "3")
        page.click("#query-again")
        page.wait_for_function("() => document.querySelectorAll('#neighbours li').length === 3")
        wait_for_answer(page)
        assert check_answer(page) == (radius, shown), "asking again gave another radius"
        page.screenshot(path=folder / "certificate.png")

        broken = check_search(page, radius, folder)
        check_words(page)
        check_names(context, page)
        check_contrast(page, "light")
        for width in (1280, 1024, 768, 640, 360, 320):
            check_width(page, width)
        page.set_viewport_size({"width": 360, "height": 800})
        page.screenshot(path=folder / "phone.png", full_page=True)
        page.set_viewport_size({"width": 1280, "height": 900})
        page.screenshot(path=folder / "whole.png", full_page=True)
        check_gallery(page)
        assert not faults, faults
    print(f"ok: certified to {shown}, always; broken at {broken:.4f}; screenshots in {folder}")


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
