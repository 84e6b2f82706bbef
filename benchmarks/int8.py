"""Certificates of the demo's encoder and of the same encoder quantised to 8 bits.

Usage: int8.py FOLDER, with the demo in FOLDER/demo. Each encoder has a gallery of its own, because a certificate is about
one network.
"""

import pathlib
import shutil
import sys
import time

import numpy
import retrievalguard as rg

from quantise import quantise

SIGMA = 0.25
OPTIONS = {"samples": 1000, "progress": False}


def main():
    folder = pathlib.Path(sys.argv[1])
    demo, runs = folder / "demo", folder / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    (runs / "int8").mkdir(parents=True)
    whole, smaller = demo / "encoder.onnx", runs / "int8" / "encoder.onnx"
    shutil.copy(demo / "encoder.toml", smaller.with_suffix(".toml"))
    encoder = rg.Encoder(whole, threads=2)
    noise = numpy.random.default_rng(0)
    pictures = sorted((demo / "pictures" / "gallery").rglob("*.png"))[::3]
    noisy = [encoder.prepare(path)[None] + SIGMA * noise.standard_normal((1, *encoder.shape)) for path in pictures]
    # The config's own scaling: (x - 0.5) / 0.5.
    quantise(whole, smaller, "pictures", [((values - 0.5) / 0.5).astype(numpy.float32) for values in noisy])
    for name, model in [("32 bits", whole), ("8 bits", smaller)]:
        encoder = rg.Encoder(model, threads=2)
        gallery = runs / f"{name} gallery"
        rg.index(demo / "pictures" / "gallery", encoder, SIGMA, gallery, progress=False)
        begun = time.perf_counter()
        table = rg.certify_pictures(demo / "pictures" / "queries", encoder, gallery, SIGMA, runs / name, **OPTIONS)
        seconds = time.perf_counter() - begun
        print(f"{name}: {table}, Recall@1 {table.recall():.3f}, {len(table) / seconds:.1f} queries per second")


if __name__ == "__main__":
    main()
