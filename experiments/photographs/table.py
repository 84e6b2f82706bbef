#!/usr/bin/env python3
"""Tables of certified runs, and whether one run certifies more than another. Needs the standard library only.

    table.py table WORK [--json FILE] [--csv FILE] [--certificates NAMES] [--at SIGMA]
    table.py difference RUN OTHER --certificate NAME[,OTHER] --radius R

`table` reads `WORK/SET-ENCODER-sSIGMA/evaluation.json`, as `retrievalguard evaluate --json` prints it, and writes a Markdown table
per data set and noise level: Recall@1 of the plain encoder, of what is certified, certified recall at half of σ, at σ and at twice σ
with its 95 % Clopper-Pearson interval at σ, and the average radius. A run without noise (`-s0`) has a row in each. Encoders trained with
several seeds have a row of means as well, with the least and the most at σ in place of the interval.

`difference` reads two runs over the same queries (`certificates.jsonl`, or the Parquet file if pyarrow is there) and prints how much
more of them the first certifies beyond R: with the exact McNemar test and a paired bootstrap interval (95 %, 20,000 resamples, seed 0).
"""

import argparse
import csv
import json
import math
import pathlib
import random
import re
import sys

CERTIFICATES = ["paper", "half-space", "vote", "pairwise", "lipschitz"]
SETS = ["grocery", "cars"]
ENCODERS = ["untrained", "dml", "gdml", "distilled", "dm", "lipschitz"]
RUN = re.compile(r"(?P<set>[a-z]+)-(?P<encoder>.+)-s(?P<sigma>[0-9.]+)$")
RESAMPLES = 20_000


def fail(message):
    sys.exit(f"error: {message}")


def rank(known, word):
    """The place of a word in the usual order; strangers come last."""
    first = [place for place, name in enumerate(known) if word.startswith(name)]
    return (first[0] if first else len(known), word)


def share_at(certificate, radius):
    """The point of the curve at a radius."""
    for point in certificate["curve"]:
        if math.isclose(point["radius"], radius, rel_tol=1e-9, abs_tol=1e-12):
            return point["recall"]
    return None


def read_runs(work):
    """Every evaluated run below the folder: (set, encoder, sigma, evaluation)."""
    runs = []
    for path in sorted(work.glob("*/evaluation.json")):
        found = RUN.match(path.parent.name)
        if found:
            runs.append((found["set"], found["encoder"], float(found["sigma"]), json.loads(path.read_text())))
    if not runs:
        fail(f"no run in `{work}`, wanted folders such as grocery-gdml-0-s0.25 with evaluation.json")
    return runs


def rows_at(runs, at, wanted):
    """Rows of the table at one noise level; runs without noise have one in every table."""
    rows = []
    for name, encoder, sigma, evaluation in runs:
        if sigma not in (0.0, at):
            continue
        for certificate, found in evaluation["certificates"].items():
            if certificate not in wanted:
                continue
            points = [share_at(found, factor * at) for factor in (0.5, 1.0, 2.0)]
            if None in points:
                fail(f"the evaluation of {name}-{encoder} has no radius of σ = {at}; evaluate it with --radii")
            summary, plain = found["summary"], evaluation.get("plain")
            rows.append(
                {
                    "set": name,
                    "sigma": at,
                    "encoder": encoder,
                    "certificate": certificate,
                    "queries": summary["queries"],
                    "plain": plain["recall"]["share"] if plain else (summary["recall"]["share"] if sigma == 0 else None),
                    "recall": summary["recall"]["share"],
                    "half": points[0]["share"],
                    "one": points[1]["share"],
                    "lower": points[1]["lower"],
                    "upper": points[1]["upper"],
                    "two": points[2]["share"],
                    "radius": summary["average_finite_radius"],
                }
            )
    rows += over_seeds(rows)
    order = lambda row: (rank(ENCODERS, row["encoder"]), wanted.index(row["certificate"]))  # noqa: E731
    return sorted(rows, key=order)


def over_seeds(rows):
    """Means of the rows that differ in the seed of training only, with the least and the most at σ in place of an interval."""
    groups = {}
    for row in rows:
        groups.setdefault((re.sub(r"-\d+$", "", row["encoder"]), row["certificate"]), []).append(row)
    means = []
    for (encoder, _), members in groups.items():
        if len(members) > 1:
            mean = {key: sum(row[key] for row in members) / len(members) for key in ("recall", "half", "one", "two", "radius")}
            if None not in [row["plain"] for row in members]:
                mean["plain"] = sum(row["plain"] for row in members) / len(members)
            at_sigma = [row["one"] for row in members]
            name = f"{encoder}, mean of {len(members)} seeds"
            means.append({**members[0], **mean, "encoder": name, "lower": min(at_sigma), "upper": max(at_sigma)})
    return means


def markdown(rows):
    """One data set at one noise level."""
    at, queries = rows[0]["sigma"], sorted({row["queries"] for row in rows})
    counted = " or ".join(f"{count:,}" for count in queries)
    lines = [
        f"**{rows[0]['set']}**, σ = {at:g}, {counted} queries",
        "",
        "| encoder | plain | certificate | recall@1 | at σ/2 | at σ | 95 % | at 2σ | average radius |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    before = None
    for row in rows:
        same = row["encoder"] == before
        before = row["encoder"]
        plain = "" if same or row["plain"] is None else f"{row['plain']:.3f}"
        # Rounded down, as every lower bound is printed.
        radius = math.floor(row["radius"] * 1e4) / 1e4
        lines.append(
            f"| {'' if same else row['encoder']} | {plain} | `{row['certificate']}` | {row['recall']:.3f} | {row['half']:.3f}"
            f" | {row['one']:.3f} | {row['lower']:.3f}–{row['upper']:.3f} | {row['two']:.3f} | {radius:.4f} |"
        )
    return "\n".join(lines) + "\n"


def table(options):
    runs = read_runs(options.work)
    wanted = options.certificates.split(",")
    levels = sorted({sigma for _, _, sigma, _ in runs if sigma > 0}, reverse=True)
    levels = [options.at] if options.at else levels
    if not levels:
        fail("only runs without noise, wanted --at with the σ of the columns")
    everything = []
    for name in sorted({run[0] for run in runs}, key=lambda name: rank(SETS, name)):
        for at in levels:
            rows = rows_at([run for run in runs if run[0] == name], at, wanted)
            if rows:
                everything += rows
                print(markdown(rows))
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1) + "\n")
    if options.csv and everything:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, everything[0].keys())
            writer.writeheader()
            writer.writerows(everything)


def read_certified(run, certificate, radius):
    """Query by query: whether it is certified beyond the radius."""
    lines = run / "certificates.jsonl"
    if lines.is_file():
        rows = [json.loads(line) for line in lines.read_text().splitlines()]
        cells = {row["identity"]: row["certificates"].get(certificate) for row in rows}
    else:
        try:
            import pyarrow.parquet
        except ImportError:
            fail(f"`{lines}` is not there and pyarrow is not either; certify with --jsonl")
        column = certificate.replace("-", "_")
        stored = pyarrow.parquet.read_table(run / "certificates.parquet").to_pylist()
        if stored and f"{column}_radius" not in stored[0]:
            fail(f"`{run}` has no certificate {certificate}")
        cells = {
            row["identity"]: {"radius": row[f"{column}_radius"], "unbounded": row.get(f"{column}_unbounded")}
            for row in stored
        }
    if None in cells.values():
        fail(f"`{run}` has no certificate {certificate}")
    beyond = lambda cell: bool(cell.get("unbounded")) or (cell["radius"] is not None and cell["radius"] > radius)  # noqa: E731
    return {identity: beyond(cell) for identity, cell in cells.items()}


def mcnemar(more, fewer):
    """Exact two-sided probability of so uneven a split of the queries on which the runs differ."""
    count = more + fewer
    tail = sum(math.comb(count, k) for k in range(min(more, fewer) + 1)) / 2**count
    return min(1.0, 2 * tail)


def bootstrap(differences):
    """Percentile interval of the mean of paired differences."""
    source, count = random.Random(0), len(differences)
    means = sorted(sum(source.choices(differences, k=count)) / count for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]


def difference(options):
    names = options.certificate.split(",")
    one = read_certified(options.run, names[0], options.radius)
    other = read_certified(options.other, names[-1], options.radius)
    if one.keys() != other.keys():
        fail(f"`{options.run}` has {len(one)} queries and `{options.other}` {len(other)}, of which {len(one.keys() & other.keys())} are the same")
    pairs = [one[identity] - other[identity] for identity in sorted(one)]
    more, fewer = pairs.count(1), pairs.count(-1)
    low, high = bootstrap(pairs)
    print(f"{len(pairs)} queries, certified beyond {options.radius:g}: {sum(one.values()) / len(one):.4f} and {sum(other.values()) / len(one):.4f}")
    print(f"difference {sum(pairs) / len(pairs):+.4f}, 95 % from {low:+.4f} to {high:+.4f} (paired bootstrap, {RESAMPLES:,} resamples)")
    print(f"{more} queries by the first alone, {fewer} by the second alone; exact McNemar p = {mcnemar(more, fewer):.3g}")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = options.add_subparsers(required=True)
    command = commands.add_parser("table")
    command.add_argument("work", type=pathlib.Path)
    command.add_argument("--json", type=pathlib.Path)
    command.add_argument("--csv", type=pathlib.Path)
    command.add_argument("--certificates", default=",".join(CERTIFICATES))
    command.add_argument("--at", type=float)
    command.set_defaults(run_command=table)
    command = commands.add_parser("difference")
    command.add_argument("run", type=pathlib.Path)
    command.add_argument("other", type=pathlib.Path)
    command.add_argument("--certificate", required=True)
    command.add_argument("--radius", type=float, required=True)
    command.set_defaults(run_command=difference)
    options = options.parse_args()
    options.run_command(options)


if __name__ == "__main__":
    main()
