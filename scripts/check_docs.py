"""Checks the documents: links to files exist, and every `Paper:` tag of the code stands in docs/paper-map.md."""

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


def broken_links():
    for page in tracked("*.md"):
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target) or target.startswith("#"):
                continue
            if not (page.parent / target.split("#")[0]).exists():
                yield f"{page.relative_to(ROOT)}: the link to `{target}` leads nowhere"


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
