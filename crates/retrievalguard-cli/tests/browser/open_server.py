"""Uses the page of a running server as a visitor would. Usage: open_server.py URL PICTURE SCREENSHOTS"""

import mimetypes
import pathlib
import re
import sys

from chromium import check_width, chromium, listen

# Milliseconds for the work of the server: a certificate, a search, one look at a perturbation.
CERTIFICATE = 180_000
SEARCH = 600_000
LOOK = 60_000

DROP = """([bytes, name, type]) => {
    const carried = new DataTransfer();
    carried.items.add(new File([new Uint8Array(bytes)], name, { type }));
    const zone = document.getElementById('drop-zone');
    for (const kind of ['dragenter', 'dragover', 'drop']) {
        zone.dispatchEvent(new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true }));
    }
}"""

# Every radius that the page ever shows, in order.
WATCH = """() => {
    const answer = document.getElementById('answer');
    window.radiiSeen = [];
    new MutationObserver(() => {
        if (!answer.hidden) window.radiiSeen.push([answer.dataset.radius, document.getElementById('answer-radius').textContent]);
    }).observe(answer, { attributes: true, attributeFilter: ['data-radius', 'data-state'] });
}"""

# Texts whose contrast with the colour behind them is below that of WCAG AA.
CONTRAST = """() => {
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const rgb = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const luminance = (colour) => colour.slice(0, 3)
        .map((value) => value / 255)
        .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
        .reduce((sum, value, place) => sum + value * [0.2126, 0.7152, 0.0722][place], 0);
    const behind = (one) => {
        for (let each = one; each; each = each.parentElement) {
            const colour = rgb(getComputedStyle(each).backgroundColor);
            if (colour[3] === 255) return colour;
        }
        return rgb('Canvas');
    };
    return [...document.body.querySelectorAll('*')].flatMap((one) => {
        const own = [...one.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
        const box = one.getBoundingClientRect();
        if (!own || box.width < 2 || box.height < 2 || one.closest(':disabled, [inert], option, noscript')) return [];
        const style = getComputedStyle(one);
        const ink = luminance(rgb(one instanceof SVGElement ? style.fill : style.color));
        const paper = luminance(behind(one));
        const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
        const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
        return contrast < (large ? 3 : 4.5) ? [`${one.tagName} "${one.textContent.trim().slice(0, 30)}" ${contrast.toFixed(2)}`] : [];
    });
}"""

CONTROLS = {"button", "link", "textbox", "spinbutton", "slider", "radio", "combobox", "checkbox", "image", "img", "progressbar"}


def wait_for_answer(page, states=("finished",)):
    """Waits until a question has ended, and says how."""
    page.wait_for_function(
        "() => ['finished', 'failed', 'stopped'].includes(document.getElementById('answer').dataset.state)", timeout=CERTIFICATE
    )
    state = page.get_attribute("#answer", "data-state")
    said = page.inner_text("#query-notice") if page.locator("#query-notice").is_visible() else ""
    assert state in states, f"the question is {state}, wanted one of {states}; the page says {said!r}"
    return state


def check_radii(page):
    """The radius at the end and as it is shown, after checking that it never shrank."""
    seen = page.evaluate("window.radiiSeen")
    radii = [float(radius) for radius, _ in seen]
    assert radii, "the page showed no radius at all"
    assert radii == sorted(radii), f"the radius shrank: {radii}"
    verdict = page.get_attribute("#answer", "data-verdict")
    assert verdict == "certified", f"the verdict is {verdict!r}, wanted a certified one; {page.inner_text('#answer-statement')!r}"
    radius, shown = radii[-1], page.inner_text("#answer-radius")
    assert re.fullmatch(r"\d+\.\d{4}", shown), f"the radius is shown as {shown!r}, wanted four digits behind the point"
    assert 0 < float(shown) <= radius < float(shown) + 1e-4, f"{shown} is not {radius} rounded down"
    assert page.inner_text("#answer-statement").strip(), "the guarantee is not said in words"
    plain = page.inner_text("#answer-plain")
    assert "The encoder without noise retrieves" in plain, f"the plain encoder's answer is missing: {plain!r}"
    assert page.locator("#answer-chart svg[role=img] path.line").count() == 1, "no curve is drawn"
    return radius, shown, len(set(radii))


def check_visible(page, radius, folder):
    """The query, the query changed by its radius and the change are shown, and the radius is told in three ways."""
    page.wait_for_selector("#visible:not([hidden])", timeout=LOOK)
    assert float(page.get_attribute("#visible", "data-radius")) == radius, "another radius is shown than the certified one"
    widths = page.eval_on_selector_all("#visible img", "all => all.map(image => image.complete && image.naturalWidth)")
    assert len(widths) == 3 and all(widths), f"the pictures have the widths {widths}"
    assert len(set(page.eval_on_selector_all("#visible img", "all => all.map(image => image.src)"))) == 3, "two pictures are the same"
    words = page.inner_text("#visible-words")
    for part in ("l2 radius", "of 255 grey levels", "l∞", "on a single value"):
        assert part in words, f"{part!r} is not in {words!r}"
    assert re.search(r"enlarged \d+ times", page.inner_text("#visible-change-caption")), "nothing says how far the change is enlarged"
    page.locator("#visible").screenshot(path=folder / "visible.png")


def set_size(page, size):
    """Types a size and waits for the verdicts at it."""
    page.fill("#size-number", repr(size))
    wait_for_size(page, size)


def wait_for_size(page, size):
    page.wait_for_function(
        """(size) => {
            const shown = document.getElementById('verdicts');
            return shown.dataset.size !== '' && Math.abs(Number(shown.dataset.size) - size) < 1e-9 && shown.getAttribute('aria-busy') === 'false';
        }""",
        arg=size,
        timeout=LOOK,
    )
    changed = page.eval_on_selector("#perturbed-picture", "image => image.complete && image.naturalWidth > 0")
    assert changed, f"the picture changed by {size} does not decode"


def verdict(page, retriever):
    """Whether a retriever changed its mind and its label; the words must agree."""
    changed = page.get_attribute(f"#{retriever}", "data-changed") == "true"
    words = page.inner_text(f"#{retriever}-pill").strip()
    # Nothing is proved about the plain retriever, so it never "holds".
    kept = {"plain": "not changed by this", "smoothed": "holds"}[retriever]
    assert (words == kept) != changed, f"the {retriever} retriever's words are {words!r}, but changed is {changed}"
    assert retriever == "smoothed" or "good" not in page.get_attribute("#plain-pill", "class"), "the plain retriever looks safe"
    assert page.locator(f"#{retriever}-pill svg").count() == 1, f"the {retriever} verdict is told by colour alone"
    return changed, page.get_attribute(f"#{retriever}", "data-label")


def check_slider(page):
    """Arrow keys move the slider by its step; the other field and the spoken value follow."""
    slider = page.locator("#size-slider")
    step, most = float(slider.get_attribute("step")), float(slider.get_attribute("max"))
    slider.focus()
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    exact = float(page.input_value("#size-number"))
    assert abs(exact - 3 * step) < 1e-6, f"three keys to the right give {exact}, wanted {3 * step}"
    spoken = slider.get_attribute("aria-valuetext")
    assert spoken.startswith(f"{exact:.4f}, inside"), f"the slider says {spoken!r} at {exact}"
    wait_for_size(page, exact)
    page.keyboard.press("End")
    assert float(page.input_value("#size-number")) == most, f"the key End gives {page.input_value('#size-number')}, wanted {most}"
    spoken = slider.get_attribute("aria-valuetext")
    assert "outside" in spoken, f"the slider says {spoken!r} at its end"
    wait_for_size(page, most)
    assert page.get_attribute("#promise", "data-inside") == "false", "the page promises something outside the radius"


def check_noise(page, radius):
    page.locator("#kind-noise").check()
    page.wait_for_selector("#perturb-result[data-kind=noise]:not([hidden])", timeout=SEARCH)
    wait_for_size(page, 0.0)
    check_slider(page)
    size = 0.9 * radius
    set_size(page, size)
    assert page.get_attribute("#promise", "data-inside") == "true", f"{size} is not said to be inside {radius}"
    changed, label = verdict(page, "smoothed")
    assert not changed, f"the smoothed retriever answers {label!r} for noise of {size}, inside the radius {radius}"


def check_adversarial(page, radius, folder):
    """Sizes and labels inside the radius and beyond the size that breaks the plain retriever."""
    page.locator("#kind-adversarial").check()
    page.locator("#against-plain").check()
    page.click("#perturb-make")
    page.wait_for_function(
        "() => !document.getElementById('perturb-result').hidden || document.querySelector('#perturb-notice.bad:not([hidden])')",
        timeout=SEARCH,
    )
    assert page.locator("#perturb-result").is_visible(), f"the search failed: {page.inner_text('#perturb-notice')!r}"
    wait_for_size(page, 0.0)
    broken = page.get_attribute("#perturb-result", "data-broken-at")
    assert broken, "the search found nothing that changes the plain retriever's answer"
    inside, beyond = 0.9 * radius, 1.02 * float(broken)
    set_size(page, inside)
    assert page.get_attribute("#promise", "data-inside") == "true", f"{inside} is not said to be inside {radius}"
    assert page.locator("#mark-radius").is_visible(), "the certified radius is not marked on the slider"
    changed, kept = verdict(page, "smoothed")
    assert not changed, f"the smoothed retriever changed to {kept!r} at {inside}, inside the radius {radius}"
    page.locator("#perturb").screenshot(path=folder / "inside.png")
    set_size(page, beyond)
    changed, other = verdict(page, "plain")
    assert changed, f"the plain retriever holds at {beyond}, and was seen to change at {broken}"
    promised = page.get_attribute("#promise", "data-inside") == "true"
    assert promised == (beyond < radius), f"{beyond} is said to be inside {radius}: {promised}"
    page.locator("#perturb").screenshot(path=folder / "beyond.png")
    return inside, kept, beyond, other


def check_gallery(page):
    """How many items there are, after going through pages and labels and asking with one of them."""
    page.wait_for_selector("#gallery-items li")
    total = int(page.get_attribute("#gallery-place", "data-total"))
    words = page.inner_text("#gallery-place")
    assert re.fullmatch(r"1–[\d,]+ of [\d,]+", words), f"the place in the gallery is {words!r}"
    page.locator("#gallery").scroll_into_view_if_needed()
    first = page.get_attribute("#gallery-items li", "data-identity")
    if page.locator("#gallery-next").is_enabled():
        page.click("#gallery-next")
        page.wait_for_selector("#gallery-place[data-offset='50']")
        assert page.get_attribute("#gallery-items li", "data-identity") != first, "the second page shows the first item"
        page.click("#gallery-previous")
        page.wait_for_selector("#gallery-place[data-offset='0']")
    label = page.locator("#gallery-label option").nth(1).get_attribute("value")
    page.select_option("#gallery-label", label)
    page.wait_for_function("(label) => [...document.querySelectorAll('#gallery-items li')].every(item => item.dataset.label === label)", arg=label)
    assert int(page.get_attribute("#gallery-place", "data-total")) <= total, f"the label {label!r} has more items than the gallery"
    page.select_option("#gallery-label", "")
    page.wait_for_selector(f"#gallery-place[data-total='{total}']")
    page.locator("#gallery-items li").first.scroll_into_view_if_needed()
    page.wait_for_selector("#gallery-items li img")
    blank = page.eval_on_selector_all("img[src]", "all => all.filter(image => !image.hidden && image.naturalWidth === 0).length")
    assert blank == 0, f"{blank} pictures do not decode"
    use = page.locator("[data-use]").first
    identity = use.get_attribute("data-use")
    use.click()
    page.wait_for_function("(name) => document.getElementById('query-name').textContent === name", arg=identity)
    wait_for_answer(page)
    return total


def check_stop(page):
    """A question can be stopped; a fast server may be faster."""
    page.click("#query-options summary")
    page.fill("#option-samples", page.get_attribute("#option-samples", "max"))
    page.click("#query-again")
    if page.locator("#query-stop").is_visible():
        page.locator("#query-stop").dispatch_event("click")
    wait_for_answer(page, ("stopped", "finished"))
    assert page.locator("#query-again").is_visible(), "after a stop one cannot ask again"


def check_names(context, page):
    """Everything that a screen reader offers has a name."""
    tree = context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    roles = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node.get("ignored")]
    controls = [(role, name) for role, name in roles if role in CONTROLS]
    nameless = [role for role, name in controls if not name.strip()]
    assert len(controls) > 20, f"only {len(controls)} controls were found"
    assert not nameless, f"without a name: {nameless}"
    levels = page.eval_on_selector_all(
        "h1, h2, h3", "all => all.filter(one => one.getClientRects().length).map(one => Number(one.tagName[1]))"
    )
    jumps = [pair for pair in zip(levels, levels[1:]) if pair[1] > pair[0] + 1]
    assert levels[0] == 1 and levels.count(1) == 1 and not jumps, f"the headings have the levels {levels}"


def check_tab_order(page):
    """The tab key reaches the main controls, from top to bottom."""
    wanted = ["query-file", "query-again", "kind-adversarial", "perturb-make", "size-slider", "size-number", "gallery-label"]
    page.evaluate("document.activeElement.blur(), window.scrollTo(0, 0), document.body.setAttribute('tabindex', '-1'), document.body.focus()")
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        one, shown = page.evaluate("[document.activeElement.id, document.activeElement.matches(':focus-visible')]")
        assert shown, f"the focus on {one!r} is not seen"
        reached.append(one)
        if one == wanted[-1]:
            break
    page.evaluate("document.body.removeAttribute('tabindex')")
    assert [one for one in reached if one in wanted] == wanted, f"the tab key reaches {reached}, wanted {wanted} among them"


def check_contrast(page, scheme):
    faint = page.evaluate(CONTRAST)
    assert not faint, f"too faint in the {scheme} scheme: {faint}"


def listen_to_answers(page):
    """A list of faults, among them requests that fail."""
    faults = listen(page)
    page.on("response", lambda answer: faults.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None)

    # The page gives up requests itself when a newer one makes them useless.
    def failed(request):
        if request.failure != "net::ERR_ABORTED":
            faults.append(f"{request.failure} {request.url[:200]}")

    page.on("requestfailed", failed)
    return faults


def drop(page, picture):
    """Drops a file onto the page, as from a file manager."""
    kind = mimetypes.guess_type(picture.name)[0] or "application/octet-stream"
    page.evaluate(DROP, [list(picture.read_bytes()), picture.name, kind])


def main(address, picture, folder):
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as (context, page):
        page.emulate_media(color_scheme="light", reduced_motion="reduce")
        faults = listen_to_answers(page)
        page.on("request", lambda request: None if request.url.startswith((address, "data:", "blob:")) else faults.append(request.url))
        page.goto(address)
        page.wait_for_selector("#gallery-items li")
        page.screenshot(path=folder / "start.png", full_page=True)

        page.evaluate(WATCH)
        drop(page, picture)
        wait_for_answer(page)
        radius, shown, looks = check_radii(page)
        label = page.get_attribute("#answer", "data-label")
        assert page.locator("#neighbours li").count() > 0, "no neighbours are shown"
        check_visible(page, radius, folder)
        page.screenshot(path=folder / "certificate.png", full_page=True)

        check_noise(page, radius)
        inside, kept, beyond, other = check_adversarial(page, radius, folder)
        assert kept == label, f"inside the radius the smoothed retriever answers {kept!r}, the certificate {label!r}"
        check_names(context, page)
        check_tab_order(page)
        check_contrast(page, "light")
        for width in (1280, 1024, 768, 640, 360, 320):
            check_width(page, width)
        page.set_viewport_size({"width": 360, "height": 800})
        page.screenshot(path=folder / "phone.png", full_page=True)
        page.set_viewport_size({"width": 1280, "height": 900})
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.emulate_media(color_scheme="dark")
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert light != dark, f"the page is {light} in the dark, too"
        check_contrast(page, "dark")
        page.screenshot(path=folder / "dark.png", full_page=True)
        page.emulate_media(color_scheme="light")

        total = check_gallery(page)
        check_stop(page)
        page.locator("#gallery").screenshot(path=folder / "gallery.png")
        assert not faults, faults
    print(
        f"ok: {label!r} certified to {shown} in {looks} steps; smoothed holds {kept!r} at {inside:.4f}, "
        f"plain changed to {other!r} at {beyond:.4f}; {total} items"
    )


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
