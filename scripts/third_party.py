"""What others wrote and the program carries: writes THIRD-PARTY-NOTICES.txt, and checks it and the licences.

Usage: scripts/third_party.py write    after a change of dependencies; fetches the crates of every platform
       scripts/third_party.py check    part of ./check; reads what a build for this machine has fetched

The licences that are accepted, and why, are in deny.toml; `cargo deny check` reads the same list.
"""

import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOTICES = ROOT / "THIRD-PARTY-NOTICES.txt"
# The program and the Python package: what is handed on. Each with the features that a release has.
SHIPPED = [["-p", "retrievalguard-cli", "--features", "full"], ["-p", "retrievalguard-python"]]
LICENCE_FILE = re.compile(r"(licen[cs]e|copying|notice|copyright|unlicense|ofl|ufl)", re.I)
LINE = "=" * 100


def cargo(*words):
    command = ["cargo", *words, "--locked"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"`{' '.join(command)}` failed:\n{done.stderr}")
    return done.stdout


def host():
    return re.search(r"host: (\S+)", subprocess.run(["rustc", "-vV"], capture_output=True, text=True).stdout)[1]


def tree(edges, target, package):
    """Names and versions of the crates that a build takes up, our own left out."""
    words = ["tree", *package, "-e", edges, "--prefix", "none", "--format", "{p}", "--target", target]
    for line in filter(None, cargo(*words).splitlines()):
        name, version, *rest = line.split()
        if not any(word.startswith("(/") for word in rest):
            yield name, version.removeprefix("v")


def carried(target):
    """The crates whose code is in what is shipped for a target."""
    return {each for package in SHIPPED for each in tree("normal", target, package)}


def compiled(target):
    """The crates that any build or test for a target compiles."""
    return set(tree("normal,build,dev", target, ["--workspace", "--features", "retrievalguard-cli/full"]))


def packages(*filters):
    """What cargo knows of every crate that takes part in a build, by name and version; ours left out."""
    listing = json.loads(cargo("metadata", "--format-version", "1", *filters))
    return {(each["name"], each["version"]): each for each in listing["packages"] if each["source"]}


def licence_files(package):
    """Texts of a crate's licences, those of fonts and code that it brings along among them."""
    folder = pathlib.Path(package["manifest_path"]).parent
    named = [folder / package["license_file"]] if package["license_file"] else []
    beside = [path for path in folder.iterdir() if path.is_file() and LICENCE_FILE.match(path.name)]
    # Fonts lie in a folder of their own, each with its licence beside it.
    deeper = [
        path
        for path in folder.rglob("*.txt")
        if path.parent != folder and (LICENCE_FILE.search(path.name) or path.with_suffix(".ttf").exists())
    ]
    texts = {}
    for path in sorted({*named, *beside, *deeper}):
        if path.is_file() and path.suffix not in {".rs", ".toml"}:
            text = path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n").strip("\n")
            texts[str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name] = text
    return texts


def words_of(text):
    return " ".join(text.split())


def write():
    """One entry per crate, each text once."""
    wanted, known = carried("all"), packages()
    numbers, texts, entries = {}, [], []
    for key in sorted(wanted):
        package = known[key]
        files = licence_files(package)
        found = []
        for name, text in files.items():
            digest = hashlib.sha256(words_of(text).encode()).hexdigest()
            if digest not in numbers:
                texts.append(text)
                numbers[digest] = len(texts)
            found.append(f"{name}: text {numbers[digest]}")
        lines = [f"{key[0]} {key[1]}", f"    licence: {package['license'] or 'see its text'}"]
        if not files:
            authors = ", ".join(re.sub(r" <[^>]*>", "", each) for each in package["authors"]) or "its authors"
            lines.append(f"    no text in the package; copyright: {authors}")
        if package["repository"]:
            lines.append(f"    source: {package['repository']}")
        entries.append("\n".join(lines + [f"    {each}" for each in found]))
    head = f"""Third-party notices

RetrievalGuard is under the MIT licence or the Apache licence 2.0, at your choice (LICENSE-MIT, LICENSE-APACHE).
The program and the Python package contain the {len(entries)} libraries below, as their source code is published,
under the licences named with each. Where several are offered, any of them may be chosen.

This software is based in part on the work of the Independent JPEG Group.

Libraries under the Mozilla Public License 2.0 are unchanged; their source code is at the addresses given.
A library without a text of its own is under the licence named with it, in the wording of SPDX; the texts of the
MIT licence and of the Apache licence 2.0 are those of LICENSE-MIT and LICENSE-APACHE, with the copyright given.

Written by scripts/third_party.py.
"""
    parts = [head, *(f"{entry}\n" for entry in entries)]
    parts += [f"{LINE}\ntext {number}\n{LINE}\n\n{text}\n" for number, text in enumerate(texts, 1)]
    NOTICES.write_text("\n".join(parts), encoding="utf-8")
    print(f"{NOTICES.name}: {len(entries)} libraries, {len(texts)} texts, {NOTICES.stat().st_size} bytes")


def allowed(expression, accepted):
    """Whether an SPDX expression can be met with accepted licences; `/` is how older crates wrote OR."""
    tokens = re.findall(r"\(|\)|[A-Za-z0-9.+-]+", expression.replace("/", " OR "))

    def either():
        met = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            met = both() or met
        return met

    def both():
        met = single()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            met = single() and met
        return met

    def single():
        word = tokens.pop(0)
        if word == "(":
            met = either()
            tokens.pop(0)
            return met
        if tokens and tokens[0] == "WITH":
            tokens.pop(0)
            word += " WITH " + tokens.pop(0)
        return word in accepted

    return either() and not tokens


def faults():
    rules = tomllib.loads((ROOT / "deny.toml").read_text(encoding="utf-8"))["licenses"]
    exceptions = {each["crate"]: each["allow"] for each in rules["exceptions"]}
    clarified = {each["crate"]: each["expression"] for each in rules.get("clarify", [])}
    known, crates = packages("--filter-platform", host()), sorted(compiled(host()))
    if not crates:
        yield "cargo names no crate: the check reads nothing"
    for name, version in crates:
        expression = known[name, version]["license"] or clarified.get(name)
        if expression is None:
            yield f"crate {name} {version} names no licence, wanted one in [[licenses.clarify]] of deny.toml"
        elif not allowed(expression, {*rules["allow"], *exceptions.get(name, [])}):
            yield f"crate {name} {version} is under {expression}, wanted what deny.toml allows"

    listed = set(re.findall(r"^(\S+) (\d\S*)\n    licence: ", NOTICES.read_text(encoding="utf-8"), re.M))
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))
    locked = {(each["name"], each["version"]) for each in lock["package"]}
    for name, version in sorted(carried(host()) - listed):
        yield f"{NOTICES.name} lacks {name} {version}: run scripts/third_party.py write"
    for name, version in sorted(listed - locked):
        yield f"{NOTICES.name} has {name} {version}, which is not in Cargo.lock: run scripts/third_party.py write"


match sys.argv[1:]:
    case ["write"]:
        write()
    case ["check"]:
        found = list(faults())
        for fault in found:
            print(fault, file=sys.stderr)
        sys.exit(1 if found else 0)
    case _:
        sys.exit(__doc__)
