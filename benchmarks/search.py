"""Exact search beside numpy and faiss: CPU milliseconds per query, single-threaded, interleaved.

Usage: search.py PROGRAM FOLDER, with the program `search` and the folder it generated.
"""

import statistics
import subprocess
import sys
import time

import faiss
import numpy

ROUNDS = 5
# Rows per block of the blocked numpy product: its scores for 256 queries fit in the caches.
BLOCK = 1024


def plain_numpy(vectors, norms, queries):
    """One product for everything, as most scripts write it."""
    return (norms - 2.0 * (queries @ vectors.T)).argmin(axis=1)


def blocked_numpy(vectors, norms, queries):
    """The same in blocks of rows, as a careful script writes it."""
    best = numpy.full(len(queries), numpy.inf, dtype=numpy.float32)
    rows = numpy.zeros(len(queries), dtype=numpy.int64)
    doubled = 2.0 * queries
    for start in range(0, len(vectors), BLOCK):
        scores = doubled @ vectors[start : start + BLOCK].T
        numpy.subtract(norms[start : start + BLOCK], scores, out=scores)
        nearest = scores.argmin(axis=1)
        found = scores[numpy.arange(len(queries)), nearest]
        better = found < best
        best[better] = found[better]
        rows[better] = start + nearest[better]
    return rows


def timed(search, queries):
    """CPU milliseconds per query of one search, and the nearest rows."""
    before = time.process_time()
    rows = search()
    return 1e3 * (time.process_time() - before) / len(queries), rows


def main():
    program, folder = sys.argv[1:]
    faiss.omp_set_num_threads(1)
    vectors = numpy.load(f"{folder}/gallery.npy")
    queries = numpy.load(f"{folder}/queries.npy")
    norms = (vectors * vectors).sum(axis=1)
    index = faiss.IndexFlatL2(vectors.shape[1])
    index.add(vectors)

    peers = {
        "numpy": lambda: plain_numpy(vectors, norms, queries),
        "numpy-blocked": lambda: blocked_numpy(vectors, norms, queries),
        "faiss": lambda: index.search(queries, 1)[1][:, 0],
    }
    times = {name: [] for name in ["ours", *peers]}
    nearest = {}
    for _ in range(ROUNDS):
        output = subprocess.run([program, "measure", folder], check=True, capture_output=True, text=True)
        milliseconds, rows = output.stdout.splitlines()
        times["ours"].append(float(milliseconds))
        nearest["ours"] = numpy.array(rows.split(), dtype=numpy.int64)
        for name, search in peers.items():
            milliseconds, nearest[name] = timed(search, queries)
            times[name].append(milliseconds)

    print(f"gallery {vectors.shape[0]} x {vectors.shape[1]}, {len(queries)} queries, {ROUNDS} rounds, one thread")
    print("ours: nearest positive and negative, exact; the others: nearest row in float32")
    ours = statistics.median(times["ours"])
    for name, milliseconds in times.items():
        median = statistics.median(milliseconds)
        same = int((nearest[name] == nearest["ours"]).sum())
        print(
            f"{name:14} {median:7.3f} CPU ms per query (from {min(milliseconds):.3f} to {max(milliseconds):.3f}),"
            f" {median / ours:5.2f} times ours, same nearest row for {same} of {len(queries)}"
        )
    allowed = min(statistics.median(times["numpy"]), statistics.median(times["faiss"]))
    print("bar (ours at most numpy's and faiss's):", "met" if ours <= allowed else "missed")
    return 0 if ours <= allowed else 1


if __name__ == "__main__":
    sys.exit(main())
