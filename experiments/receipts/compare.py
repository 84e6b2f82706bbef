"""Shows receipts, true and forged, to both verifiers and counts what they say.

    python3 experiments/receipts/compare.py --program PROGRAM --checker CHECKER [--engine FLAGS] SET... > results.md

A SET is `NAME:RECEIPTS:PICTURES:GALLERY:MODEL`, RECEIPTS being a folder of receipts or of forgeries (with a
`forgeries.jsonl`), PICTURES the folder that the identities are relative to. The checker is called as the program is:
`CHECKER RECEIPT --picture P --gallery G --model M`, and both end with status 0 for a receipt that they verify and 1 for
one that they refuse; anything else is shown as what it is.
"""

import argparse
import collections
import json
import pathlib
import shlex
import subprocess
import sys


def receipts_of(folder):
    """Receipts of a folder with their kinds; a true one has none."""
    listing = folder / "forgeries.jsonl"
    if listing.exists():
        lines = map(json.loads, listing.read_text(encoding="utf-8").splitlines())
        return [(folder / line["file"], line["kind"]) for line in lines]
    return [(path, None) for path in sorted(folder.glob("*.receipt.json"))]


def said(command):
    finished = subprocess.run(command, capture_output=True, text=True, timeout=600)
    verdict = {0: "verified", 1: "refused"}.get(finished.returncode, f"status {finished.returncode}")
    return verdict, (finished.stderr.strip() or finished.stdout.strip()).replace("\n", " ")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--checker", required=True, help="the other verifier, with its interpreter")
    parser.add_argument("--engine", default="", help="flags of the program's verifier, for instance --engine rten")
    parser.add_argument("--log", type=pathlib.Path, help="where every verdict goes, as JSON lines")
    parser.add_argument("sets", nargs="+")
    arguments = parser.parse_args()
    table, unlike, wrong = collections.Counter(), [], []
    log = open(arguments.log, "w", encoding="utf-8") if arguments.log else None
    for text in arguments.sets:
        name, folder, pictures, gallery, model = text.split(":")
        for path, kind in receipts_of(pathlib.Path(folder)):
            identity = json.loads(path.read_text(encoding="utf-8"))["fixed"]["picture"]["identity"]
            files = [str(path), "--picture", f"{pictures}/{identity}", "--gallery", gallery, "--model", model]
            engine = shlex.split(arguments.engine) if "lipschitz" not in name else []
            own, own_words = said([arguments.program, "verify", *files, *engine])
            other, other_words = said([*shlex.split(arguments.checker), *files])
            wanted = "verified" if kind is None else "refused"
            table[name, kind or "", own, other] += 1
            if own != other:
                unlike.append(f"{path}: {own} / {other}: {own_words} / {other_words}")
            if own != wanted or other != wanted:
                wrong.append(str(path))
            if log:
                line = {"receipt": str(path), "kind": kind, "program": own, "checker": other,
                        "program_says": own_words[:300], "checker_says": other_words[:300]}
                log.write(json.dumps(line, ensure_ascii=False) + "\n")
    true = sum(count for (_, kind, *_), count in table.items() if not kind)
    print(f"{true} receipts and {sum(table.values()) - true} forgeries; {len(unlike)} with different verdicts, "
          f"{len(wrong)} not as they should be\n")
    print("| set | forged | `verify` | checker | count |\n| --- | --- | --- | --- | --- |")
    for (name, kind, own, other), count in sorted(table.items()):
        print(f"| {name} | {kind} | {own} | {other} | {count} |")
    for line in unlike:
        print(line, file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
