"""Checks the documents: links to files and headings exist, and every `Paper:` tag of the code stands in docs/paper-map.md."""

import functools
import itertools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
STATEMENT = re.compile(r"(?:Definition|Lemma|Theorem|Proposition|Remark|Algorithm|Figure|Section|Eq\.)\s*\(?\d+(?:\.\d+)*\)?")


def tracked(pattern):
    """Files that git knows or would add, below the root."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")
    return [ROOT / name for name in listing if name and (ROOT / name).exists()]


def prose(page):
    """The text of a page without its blocks of code."""
    return re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)


@functools.cache
def anchors(page):
    """The anchors of a page's headings, as code hosts and the site make them."""
    found = set()
    for heading in re.findall(r"^#{1,6} +(.*?) *$", prose(page), flags=re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        again = next(number for number in itertools.count() if f"{anchor}-{number}" not in found and (number or anchor not in found))
        found.add(f"{anchor}-{again}" if again else anchor)
    return found


def broken_links():
    for page in tracked("*.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            there = page.parent / name if name else page
            if not there.exists():
                yield f"{page.relative_to(ROOT)}: the link to `{target}` leads nowhere"
            elif anchor and there.suffix == ".md" and anchor not in anchors(there):
                yield f"{page.relative_to(ROOT)}: the link to `{target}` names no heading of that page"


def unmapped_tags():
    table = ROOT / "docs" / "paper-map.md"
    rows = [row for row in table.read_text(encoding="utf-8").splitlines() if row.startswith("|")]
    tags = 0
    for source in tracked("*.rs"):
        text = source.read_text(encoding="utf-8")
        # A tag runs to the end of its paragraph of the doc comment.
        for tag in re.findall(r"///? ?!? ?Paper: ((?:.*)(?:\n\s*//[/!] \S.*)*)", text):
            tags += 1
            sentence = re.split(r"\. (?=[A-Z])|Departure:", re.sub(r"\n\s*//[/!] ", " ", tag))[0]
            found = STATEMENT.findall(sentence)
            if not found:
                yield f"{source.relative_to(ROOT)}: `Paper: {sentence}` names no statement"
            for statement in found:
                key = re.sub(r"\s+", " ", statement)
                if not any(key in row and source.name in row or key in row and source.stem in row for row in rows):
                    yield f"{source.relative_to(ROOT)}: {key} is missing from docs/paper-map.md beside this file"
    if tags == 0:
        yield "no `Paper:` tag was found in the code: the check reads nothing"


faults = [*broken_links(), *unmapped_tags()]
for fault in faults:
    print(fault, file=sys.stderr)
sys.exit(1 if faults else 0)
