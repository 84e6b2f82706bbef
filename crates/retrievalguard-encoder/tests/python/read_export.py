"""Reads an exported gallery as users do, and checks it against the plain text that the test wrote.

    python3 read_export.py FOLDER

FOLDER holds `expected.json` (identities, labels, vectors) and the exports `gallery.parquet`, `vectors.npy` with
`labels.txt`, `clip/` and `certificates.parquet`. Prints `checked: name` for every program that read them and
`skipped: name: reason` for every one that is not installed; fails if one read something else.
"""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np

folder = Path(sys.argv[1])
expected = json.loads((folder / "expected.json").read_text())
vectors = np.array(expected["vectors"], dtype="f4")


def present(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: {modules[0]}: {', '.join(missing)} not installed")
    return not missing


def same(name, identities, labels, rows):
    assert list(identities) == expected["identities"], (name, list(identities))
    assert list(labels) == expected["labels"], (name, list(labels))
    found = np.array([list(row) for row in rows], dtype="f4")
    assert found.tobytes() == vectors.tobytes(), (name, found)


def checked(name):
    print(f"checked: {name}")


array = np.load(folder / "vectors.npy")
assert array.dtype == np.float32 and array.flags.c_contiguous
labels = (folder / "labels.txt").read_text().splitlines()
same("numpy", expected["identities"], labels, array)
checked("numpy")

if present("pandas", "pyarrow"):
    import pandas as pd

    frame = pd.read_parquet(folder / "gallery.parquet")
    same("pandas", frame["identity"], frame["label"], frame["vector"])
    assert frame["vector"].iloc[0].dtype == np.float32
    results = pd.read_parquet(folder / "certificates.parquet")
    assert list(results["half_space_verdict"]) == ["certified", "abstained", "misretrieved", "certified"]
    assert results["half_space_radius"].isna().tolist() == [False, True, True, True]
    assert results["half_space_unbounded"].tolist() == [False, False, False, True]
    assert results["half_space_radius"].iloc[0] == 0.3 and results["half_space_samples"].iloc[0] == 1000
    lines = pd.read_json(folder / "certificates.jsonl", lines=True)
    assert list(lines["identity"]) == list(results["identity"])
    tsv = pd.read_csv(folder / "certificates.tsv", delimiter="\t")
    assert list(tsv.columns) == ["idx", "label", "predict", "radius", "correct", "time"]
    assert list(tsv["correct"]) == [1, 0, 0, 1] and tsv["radius"].iloc[3] == np.inf
    checked("pandas")

if present("pyarrow"):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(folder / "gallery.parquet")
    kind = table.schema.field("vector").type
    assert pa.types.is_list(kind) and kind.value_type == pa.float32(), kind
    manifest = json.loads(table.schema.metadata[b"retrievalguard.gallery"])
    assert manifest["samples"] == 100 and len(manifest["sha256"]) == 64, manifest
    names = sorted((folder / "clip" / "img_emb").iterdir())
    tables = sorted((folder / "clip" / "metadata").iterdir())
    assert len(names) == len(tables) > 1
    joined = pa.concat_tables([pq.read_table(name) for name in tables])
    rows = np.concatenate([np.load(name) for name in names])
    same("clip-retrieval", joined["identity"].to_pylist(), joined["label"].to_pylist(), rows)
    checked("pyarrow")

if present("polars"):
    import polars as pl

    frame = pl.read_parquet(folder / "gallery.parquet")
    same("polars", frame["identity"], frame["label"], frame["vector"])
    checked("polars")

if present("duckdb"):
    import duckdb

    path = str(folder / "gallery.parquet").replace("'", "''")
    rows = duckdb.sql(f"select identity, label, vector from '{path}'").fetchall()
    same("duckdb", *zip(*rows))
    checked("duckdb")

if present("faiss"):
    import faiss

    index = faiss.IndexFlatL2(array.shape[1])
    index.add(array)
    distances, nearest = index.search(array, 1)
    assert nearest[:, 0].tolist() == list(range(len(array))) and not distances.any()
    checked("faiss")
