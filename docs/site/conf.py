"""How the documents become a site: `scripts/site` builds every page of the repository into target/site.

The pages are plain Markdown that reads as well without the site. What only the site needs is here: the navigation and the style.
"""

import pathlib
import subprocess
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]

project = "RetrievalGuard"
copyright = "2026 the RetrievalGuard contributors"
version = release = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]
html_title = f"RetrievalGuard {version}"

extensions = ["myst_parser"]
root_doc = "docs/index"
# The pages that scripts/check_docs.py checks: those that git knows or would add.
include_patterns = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()
exclude_patterns = ["target", ".git"]

# Headings have the anchors that they have on code hosts, so that one link serves both.
myst_heading_anchors = 4
smartquotes = False
highlight_language = "none"

html_theme = "furo"
html_theme_options = {"top_of_page_buttons": [], "navigation_with_keys": True}
html_static_path = ["static"]
html_css_files = ["style.css"]
html_extra_path = ["redirect"]
html_copy_source = False
html_show_sphinx = False

# Group, then pages; a page that stands in no group is put into the last one.
NAVIGATION = {
    "Begin": ["docs/tutorial", "docs/certificates", "docs/cli"],
    "Your system": ["docs/encoders", "docs/data-sets", "docs/views", "docs/training", "docs/copy-detection"],
    "In production": ["docs/server", "docs/operation", "docs/approximate-search", "docs/many-machines", "docs/cost"],
    "Evidence": ["docs/receipts", "docs/attacks", "docs/results", "docs/theory", "docs/paper-map"],
    "Reference": ["docs/python", "docs/library", "docs/file-formats"],
    "Experiments": ["experiments/README", "experiments/grocery/README", "experiments/copy-detection/README", "benchmarks/README"],
    "The project": ["SECURITY", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG", "RELEASE"],
}
# Where the heading is too long, or says too little beside the others.
SHORT = {
    "README": "Read me",
    "bindings/python/README": "The Python package",
    "crates/retrievalguard/README": "The crate",
    "crates/retrievalguard-cli/demo/README": "The demo's encoders",
    "docs/approximate-search": "Approximate search",
    "docs/tutorial": "Tutorial",
    "docs/views": "Views",
    "experiments/README": "Figures of the paper",
    "experiments/copy-detection/README": "Finding copies",
    "experiments/encoders/README": "Small encoders",
    "experiments/grocery/README": "Groceries",
}


def navigation(environment):
    """The table of contents of all pages, which the start page carries without showing it."""
    found = set(environment.found_docs)
    groups = {group: [page for page in pages if page in found] for group, pages in NAVIGATION.items()}
    groups["The project"] += sorted(found.difference(*groups.values()) - {root_doc})
    for group, pages in groups.items():
        lines = (f"{SHORT[page]} </{page}>" if page in SHORT else f"/{page}" for page in pages)
        yield "\n".join(["```{toctree}", ":hidden:", f":caption: {group}", "", *lines, "```"])


def add_navigation(app, page, content):
    if page == root_doc:
        content[0] += "\n\n" + "\n\n".join(navigation(app.env)) + "\n"


def setup(app):
    app.connect("source-read", add_navigation)
