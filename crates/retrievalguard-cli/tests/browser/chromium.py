"""Chromium for the scripts beside this one."""

import contextlib
import tempfile

from playwright.sync_api import sync_playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextlib.contextmanager
def chromium():
    """A browser with a new profile, and its first page."""
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path="/usr/bin/chromium", headless=True, args=FLAGS, viewport={"width": 1280, "height": 900}
        )
        yield context, context.new_page()
        context.close()


def listen(page):
    """A list that fills with what the page complains about and with errors of its scripts."""
    faults = []
    page.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    return faults


def check_width(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    inner, outer = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert inner <= outer, f"at {width} pixels the page is {inner} wide, wanted at most {outer}"
