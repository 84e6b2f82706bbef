"""Reference files for `table`, written by the programs that users have.

Run from the crate's directory:

    python3 tests/reference/make_parquet.py

Needs pandas, pyarrow and polars. Writes the files in `parquet/` beside this script. Every file holds the same gallery:
items `item 0`, `item 1`, … of the labels `cat` and `dog` in turn, vectors (row, row + 0.5, -row).
"""

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = Path(__file__).resolve().parent / "parquet"
ROWS = 7

identities = [f"item {row}" for row in range(ROWS)]
labels = ["cat" if row % 2 == 0 else "dog" for row in range(ROWS)]
vectors = np.array([[row, row + 0.5, -row] for row in range(ROWS)], dtype="f4")


def table(text, vector, labels=labels, vectors=vectors):
    return pa.table(
        {
            "identity": pa.array(identities, text),
            "label": pa.array(labels) if labels is not None and not isinstance(labels[0], str) else pa.array(labels, text),
            "vector": pa.array([None if row is None else list(map(float, row)) for row in vectors], vector),
        }
    )


def main():
    FOLDER.mkdir(exist_ok=True)
    frame = pd.DataFrame({"identity": identities, "label": labels, "vector": list(vectors)})
    frame.to_parquet(FOLDER / "pandas.parquet")
    frame.astype({"label": "category"}).to_parquet(FOLDER / "pandas-category.parquet", compression="zstd")
    polars = pl.DataFrame({"identity": identities, "label": labels, "vector": vectors.tolist()})
    polars.write_parquet(FOLDER / "polars-double.parquet")
    polars.with_columns(pl.col("vector").cast(pl.Array(pl.Float32, 3))).write_parquet(FOLDER / "polars-array.parquet")
    floats, strings = pa.list_(pa.float32()), pa.string()
    pq.write_table(table(pa.large_string(), pa.large_list(pa.float32())), FOLDER / "large.parquet", compression="none")
    pq.write_table(table(strings, floats), FOLDER / "groups.parquet", row_group_size=2, data_page_version="2.0")
    pq.write_table(table(strings, floats), FOLDER / "plain.parquet", use_dictionary=False, compression="snappy")
    pq.write_table(table(strings, floats, labels=list(range(ROWS))), FOLDER / "labels-int.parquet")

    def broken(name, **changed):
        pq.write_table(table(strings, floats, **changed), FOLDER / f"broken-{name}.parquet")

    broken("null-vector", vectors=[*vectors[:4], None, *vectors[5:]])
    broken("empty-vector", vectors=[*vectors[:4], [], *vectors[5:]])
    broken("ragged", vectors=[*vectors[:4], [1.0, 2.0], *vectors[5:]])
    broken("null-label", labels=[*labels[:3], None, *labels[4:]])
    broken("nan", vectors=[*vectors[:2], [0.0, float("nan"), 0.0], *vectors[3:]])
    pq.write_table(table(strings, floats).drop(["label"]), FOLDER / "broken-no-label.parquet")
    pq.write_table(table(strings, floats).slice(0, 0), FOLDER / "broken-empty.parquet")
    pq.write_table(table(strings, pa.list_(pa.int32()), vectors=np.trunc(vectors)), FOLDER / "broken-int-vector.parquet")
    scalar = table(strings, floats).drop(["vector"]).append_column("vector", pa.array([1.0] * ROWS))
    pq.write_table(scalar, FOLDER / "broken-scalar-vector.parquet")
    pq.write_table(table(strings, floats), FOLDER / "broken-gzip.parquet", compression="gzip")


main()
