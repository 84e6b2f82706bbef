"""Checks a built site: every link leads to a file and an anchor of the site, and nothing is fetched from another host.

Usage: check_site.py FOLDER. Links to other hosts that a reader follows are allowed, and not followed here.
"""

import html.parser
import pathlib
import re
import sys
import urllib.parse

# What a browser fetches by itself, by tag.
FETCHED = {"img": ["src", "srcset"], "script": ["src"], "link": ["href"], "iframe": ["src"], "source": ["src", "srcset"], "object": ["data"]}
# Links of these kinds say something about the page and are not fetched.
RELATIONS = {"canonical", "next", "prev", "index", "search", "author", "copyright", "license"}


class Page(html.parser.HTMLParser):
    """Anchors of a page, what it links to, and what a browser fetches for it."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.fetched = {""}, [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = {name: value or "" for name, value in attributes}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel", "") in RELATIONS:
            self.links.append(given["href"])
            return
        for name in FETCHED.get(tag, []):
            if name in given:
                self.fetched += [part.split()[0] for part in given[name].split(",") if part.strip()] if name == "srcset" else [given[name]]
        if "style" in given:
            self.fetched += styled(given["style"])


def styled(text):
    """What a style sheet fetches."""
    return [address.strip("\"'") for address in re.findall(r"(?:url\(|@import\s+)\s*([^)\s;]+)", text)]


def faults(root):
    pages = {path.resolve(): Page(path) for path in sorted(root.rglob("*.html"))}
    if not pages:
        yield f"{root} has no page, wanted a built site"
    for path, page in pages.items():
        name = path.relative_to(root)
        for address in page.fetched:
            if re.match(r"(?:https?:)?//", address):
                yield f"{name}: `{address}` would be fetched from another host"
        for address in page.links + page.fetched:
            if re.match(r"[a-z]+:|//", address):
                continue
            parts = urllib.parse.urlsplit(address)
            there = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if not there.is_file():
                yield f"{name}: `{address}` leads nowhere"
            elif there in pages and urllib.parse.unquote(parts.fragment) not in pages[there].anchors:
                yield f"{name}: `{address}` names no anchor of that page"
    for sheet in sorted(root.rglob("*.css")):
        for address in styled(sheet.read_text(encoding="utf-8")):
            if re.match(r"(?:https?:)?//", address):
                yield f"{sheet.relative_to(root)}: `{address}` would be fetched from another host"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    found = list(faults(root))
    for fault in found:
        print(fault, file=sys.stderr)
    if not found:
        print(f"{len(list(root.rglob('*.html')))} pages, no dead link, nothing from another host: {root / 'index.html'}")
    sys.exit(1 if found else 0)


main()
