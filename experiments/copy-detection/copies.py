"""Copy detection with a proof, beside perceptual hashes: every table and the figure of README.md in this folder.

Usage: copies.py PHOTOGRAPHS --tool retrievalguard --out OUT; run.sh installs what it needs and calls it.
"""

import argparse
import csv
import importlib.metadata
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import attacks
import figure
import numpy
from edits import EDITS, edited
from encoder import Encoder, distances
from hashes import HASHES, hamming
from pictures import divide, opened, photographs

# Sizes and grids that are tried on pictures of their own before one is used: at most 3,072 numbers.
TRIED = ((128, 32), (128, 16), (128, 8), (112, 28), (96, 32), (64, 32), (32, 32))
TRIED_ITEMS = 300
TRIED_EDITS = ("JPEG 50", "JPEG 10", "blur, radius 2", "crop 2 %", "rotation 1°", "caption bar")


def tell(line):
    print(line, file=sys.stderr, flush=True)


def write_table(path, rows):
    """A CSV file of dictionaries with the same keys; numbers of at most six digits."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0])
        for row in rows:
            writer.writerow(f"{value:.6g}" if isinstance(value, float) else value for value in row.values())


def nearest_other(vectors):
    """For each of the vectors its distance to the nearest other one."""
    found = distances(vectors, vectors)
    numpy.fill_diagonal(found, numpy.inf)
    return found.min(1)


def try_encoders(tool, folder, files, wanted):
    """Sizes and grids on pictures that nothing is reported about: radii, and how much of a few edits they cover."""
    pictures = [opened(file) for file in files[:TRIED_ITEMS]]
    changed = {name: [edited(name, picture, place) for place, picture in enumerate(pictures)] for name in TRIED_EDITS}
    rows = []
    for size, grid in TRIED if wanted in TRIED else (wanted, *TRIED):
        encoder = Encoder(tool, folder / f"{size}-{grid}", size, grid)
        prepared = numpy.stack([encoder.prepared(picture) for picture in pictures])
        radii = nearest_other(encoder.embedded(prepared)) / 2 / encoder.constant
        row = {"size": size, "grid": grid, "numbers": 3 * grid * grid, "mean radius": radii.mean(), "least radius": radii.min()}
        row["share of the limit"] = float((radii / pixel_limit(prepared)).mean())
        for name in TRIED_EDITS:
            after = numpy.stack([encoder.prepared(picture) for picture in changed[name]])
            row[f"{name} inside"] = float((numpy.sqrt(((after - prepared) ** 2).sum((1, 2, 3))) < radii).mean())
        rows.append(row)
        tell(f"tried {size} pixels, grid {grid}: mean radius {radii.mean():.2f}")
    return rows


def pixel_limit(prepared):
    """Half the distance from each picture to the nearest other: no retriever can certify more on both."""
    return nearest_other(prepared.reshape(len(prepared), -1)) / 2


@dataclass
class Method:
    """One way of finding copies: how far each query is from each item, and from which distance on there is no match."""

    name: str
    threshold: float

    def judged(self, found, right):
        """Shares of queries whose nearest item is the right one, and for which it is within the threshold as well."""
        own = found[numpy.arange(len(found)), right]
        # Several items may be equally near to a hash; that counts for it.
        first = own <= found.min(1)
        return first, first & (own <= self.threshold)


def highest_threshold(nearest, rate):
    """The largest distance at which at most this share of strangers matches; bits are whole numbers."""
    allowed = int(rate * len(nearest))
    smallest = numpy.sort(nearest)
    if nearest.dtype.kind == "i":
        return int(smallest[allowed]) - 1
    # In the middle between the last that may match and the first that may not.
    return float((smallest[allowed - 1] + smallest[allowed]) / 2 if allowed else smallest[0] * (1 - 1e-6))


def false_matches(thresholds, tuning, unseen):
    """False-match rates at the thresholds, and for hashes beyond, where a bit more is a lot."""
    rows = []
    for name, threshold in thresholds.items():
        for step in (0,) if name == "block means" else (0, 1, 2, 3, 4):
            limit = threshold + step
            rows.append(
                {
                    "method": name,
                    "threshold": limit,
                    "false-match rate where it was chosen": float((tuning[name] <= limit).mean()),
                    "false-match rate on unseen strangers": float((unseen[name] <= limit).mean()),
                }
            )
    return rows


def edit_row(name, sizes, radii, within_radii, judged):
    """One line of the table of edits."""
    row = {
        "edit": name,
        "mean size": float(sizes.mean()),
        "size of 5 %": float(numpy.quantile(sizes, 0.05)),
        "size of 95 %": float(numpy.quantile(sizes, 0.95)),
        "inside": float((sizes < radii).mean()),
        "inside, with threshold": float((sizes < within_radii).mean()),
    }
    for method, (first, matched) in judged.items():
        row[f"{method} first"] = float(first.mean())
        row[f"{method} found"] = float(matched.mean())
    return row


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", help="folder with the pictures, at any depth")
    parser.add_argument("--tool", required=True, help="the program `retrievalguard`")
    parser.add_argument("--out", required=True, type=Path, help="folder for tables and figure")
    parser.add_argument("--same-photographs", help="file with two names per line: pictures that are one photograph")
    parser.add_argument("--items", type=int, default=1000, help="pictures in the gallery, and as many strangers")
    parser.add_argument("--attacked", type=int, default=200, help="how many of them are attacked, from the first on")
    parser.add_argument("--size", type=int, default=128, help="pixels along a side of what the encoder gets")
    parser.add_argument("--grid", type=int, default=32, help="blocks along a side")
    parser.add_argument("--rate", type=float, default=0.001, help="false-match rate for which thresholds are chosen")
    parser.add_argument("--hashes", default="phash,pdq", help="hashes to compare with, of phash and pdq, or none")
    parser.add_argument("--seed", type=int, default=1, help="which pictures are which")
    options = parser.parse_args()
    unknown = set(options.hashes.split(",")) - {*HASHES, "none"}
    if unknown:
        parser.error(f"--hashes has {', '.join(sorted(unknown))}, wanted {', '.join(HASHES)} or none")
    if not 0 <= options.rate < 1:
        parser.error(f"--rate is {options.rate}, wanted a share from 0 to 1")
    return options


class Experiment:
    """A gallery of photographs, the program's certificates for them, and every method's distances to them."""

    def __init__(self, options):
        self.options = options
        self.hashes = [HASHES[name]() for name in options.hashes.split(",") if name != "none"]
        self.files = photographs(options.photographs, options.same_photographs)
        self.sets = divide(self.files, options.items, options.seed)
        tell(f"{len(self.files)} photographs; thresholds from {len(self.sets.tuning_strangers)} strangers")
        self.encoder = Encoder(options.tool, options.out / "work" / "encoder", options.size, options.grid)
        self.originals = [opened(file) for file in self.sets.items]
        self.prepared = self.all_prepared(self.originals)
        self.gallery = self.encoder.embedded(self.prepared)
        self.right = numpy.arange(len(self.originals))
        self.onnx_distance = self.encoder.check(self.prepared[:64])
        retrieved, self.radii, _ = self.encoder.certified(self.gallery, self.gallery, self.right)
        if (retrieved != self.right).any() or numpy.isnan(self.radii).any():
            raise SystemExit("two items of the gallery have the same embedding: name them in --same-photographs")
        self.stored = {hash.name: numpy.array([hash.of(picture) for picture in self.originals]) for hash in self.hashes}
        tell(f"certified radius of {len(self.radii)} items: mean {self.radii.mean():.3f}, least {self.radii.min():.3f}")

    def table(self, name, rows):
        write_table(self.options.out / f"{name}.csv", rows)

    def all_prepared(self, pictures):
        return numpy.stack([self.encoder.prepared(picture) for picture in pictures])

    def distances(self, pictures, vectors):
        """Of each method: from every picture to every item."""
        found = {"block means": distances(vectors, self.gallery)}
        for hash in self.hashes:
            found[hash.name] = hamming(numpy.array([hash.of(picture) for picture in pictures]), self.stored[hash.name])
        return found

    def of_strangers(self, files):
        """What the encoder makes of strangers, and each method's distance from them to the nearest item."""
        pictures = [opened(file) for file in files]
        # One by one: thousands of pictures are large once they are numbers.
        vectors = numpy.concatenate([self.encoder.embedded(self.encoder.prepared(picture)[None]) for picture in pictures])
        return vectors, {name: found.min(1) for name, found in self.distances(pictures, vectors).items()}

    def choose_thresholds(self):
        """Thresholds from some strangers, false-match rates from others, and the radii of statements with a threshold."""
        self.tuning_vectors, tuning = self.of_strangers(self.sets.tuning_strangers)
        _, unseen = self.of_strangers(self.sets.strangers)
        self.methods = {name: Method(name, highest_threshold(found, self.options.rate)) for name, found in tuning.items()}
        self.thresholds = {name: method.threshold for name, method in self.methods.items()}
        self.table("false-matches", false_matches(self.thresholds, tuning, unseen))
        tell(f"thresholds {self.thresholds}")
        # "Still first, and still within the threshold": both hold always, so the smaller radius is that of both.
        allowance, threshold = 2 * self.encoder.error(), self.thresholds["block means"]
        self.within_radii = numpy.minimum(self.radii, (threshold - allowance) / self.encoder.constant)
        self.stranger_radii = (unseen["block means"] - threshold - allowance) / self.encoder.constant

    def measure_edits(self):
        """The table of edits."""
        self.edit_rows = []
        for name in EDITS:
            pictures = [edited(name, picture, place) for place, picture in enumerate(self.originals)]
            after = self.all_prepared(pictures)
            vectors = self.encoder.embedded(after)
            found = self.distances(pictures, vectors)
            judged = {method: self.methods[method].judged(found[method], self.right) for method in self.methods}
            answers, _, _ = self.encoder.certified(self.gallery, vectors, self.right)
            first, matched = judged["block means"]
            if ((answers == self.right) != first).any():
                raise SystemExit(f"after `{name}` the program finds other items than the distances say")
            sizes = numpy.sqrt(((after - self.prepared).astype(numpy.float64) ** 2).sum((1, 2, 3)))
            if (~first & (sizes < self.radii)).any() or (~matched & (sizes < self.within_radii)).any():
                raise SystemExit(f"`{name}` is inside a certified radius and was not found: a certificate is wrong")
            self.edit_rows.append(edit_row(name, sizes, self.radii, self.within_radii, judged))
            tell(f"{name}: mean size {sizes.mean():.2f}, inside {self.edit_rows[-1]['inside']:.3f}")
        self.table("edits", self.edit_rows)

    def attack(self):
        """Copies that are to be missed, and strangers that are to match, by attacks on the prepared pictures."""
        count = min(self.options.attacked, self.options.items)
        radii, stranger_radii = self.within_radii[:count], self.stranger_radii[:count]
        outside = stranger_radii > 0
        copies = self.prepared[:count]
        strangers = self.all_prepared([opened(file) for file in self.sets.strangers[:count]])[outside]
        ours = attacks.MeansAttack(self.encoder, self.gallery, self.thresholds["block means"])
        self.evaded = {"block means": ours.evaded(copies, radii)}
        collided = {"block means": ours.collided(strangers, stranger_radii[outside])}
        self.attack_sizes = {}
        for hash in self.hashes:
            attack = attacks.HashAttack(hash, self.options.size, self.stored[hash.name], self.thresholds[hash.name])
            missed, matched = attack.evaded(copies), attack.collided(strangers)
            self.evaded[hash.name], collided[hash.name] = missed / radii, matched / stranger_radii[outside]
            for what, sizes in (("copy missed", missed), ("stranger matched", matched)):
                quantile = {"median": 0.5, "95 %": 0.95}
                sizes = {name: float(numpy.quantile(sizes, share, method="higher")) for name, share in quantile.items()}
                self.attack_sizes[f"{hash.name}, {what}"] = sizes
                tell(f"{hash.name}, {what}: {sizes}")
        self.table("attacks", [attacks.shares(name, sizes) for name, sizes in self.evaded.items()])
        self.table("collisions", [attacks.shares(name, sizes) for name, sizes in collided.items()])

    def enlarge(self):
        """Radii in larger galleries, and with the mirror image of every item as a second view."""
        every = numpy.concatenate([self.gallery, self.tuning_vectors])
        rows = []
        for number in (factor * self.options.items for factor in (1, 2, 4)):
            if number <= len(every):
                radii = nearest_other(every[:number]) / 2 / self.encoder.constant
                rows.append({"items": number, "views": 1, "mean radius": float(radii.mean()), "least radius": float(radii.min())})
        mirrored = self.encoder.embedded(self.prepared[:, :, ::-1])
        others = numpy.minimum(distances(self.gallery, self.gallery), distances(self.gallery, mirrored))
        numpy.fill_diagonal(others, numpy.inf)
        radii = others.min(1) / 2 / self.encoder.constant
        rows.append({"items": len(radii), "views": 2, "mean radius": float(radii.mean()), "least radius": float(radii.min())})
        self.table("gallery-size", rows)

    def summary(self):
        """Everything that is one number."""
        share = self.radii / pixel_limit(self.prepared)
        strangers = self.stranger_radii[self.stranger_radii > 0]
        packages = ("pillow", "numpy", "onnxruntime", "imagehash")
        version = subprocess.run([self.options.tool, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        return {
            "photographs": len(self.files),
            "items": len(self.originals),
            "strangers": len(self.sets.strangers),
            "strangers for thresholds": len(self.sets.tuning_strangers),
            "encoder": {"size": self.options.size, "grid": self.options.grid, "resampling": self.encoder.resampling},
            "lipschitz constant": self.encoder.constant,
            "forward error": self.encoder.error(),
            "largest distance from the ONNX file in f32": self.onnx_distance,
            "radius, mean": float(self.radii.mean()),
            "radius, least": float(self.radii.min()),
            "radius with threshold, mean": float(self.within_radii.mean()),
            "radius with threshold, least": float(self.within_radii.min()),
            "share of half the pixel distance, mean": float(share.mean()),
            "share of half the pixel distance, least": float(share.min()),
            "l-infinity radius in grey levels, mean": float(255 * self.radii.mean() / numpy.sqrt(self.prepared[0].size)),
            "thresholds": self.thresholds,
            "stays a stranger, share": float((self.stranger_radii > 0).mean()),
            "stays a stranger, mean radius": float(strangers.mean()),
            "attacked": len(self.evaded["block means"]),
            "size of attacks on hashes": self.attack_sizes,
            "versions": {"retrievalguard": version, **{name: importlib.metadata.version(name) for name in packages}},
        }


def main():
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    experiment = Experiment(options)
    wanted = (options.size, options.grid)
    experiment.table("encoders", try_encoders(options.tool, options.out / "work" / "tried", experiment.sets.tuning_items, wanted))
    experiment.choose_thresholds()
    experiment.measure_edits()
    experiment.attack()
    experiment.enlarge()
    summary = json.dumps(experiment.summary(), indent=2) + "\n"
    (options.out / "summary.json").write_text(summary, encoding="utf-8")
    drawn = figure.drawn(experiment.evaded, experiment.edit_rows, experiment.radii)
    (options.out / "figure.svg").write_text(drawn, encoding="utf-8")
    print(summary, end="")


if __name__ == "__main__":
    main()
