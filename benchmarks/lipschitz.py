"""Certifying without noise beside a search by faiss: CPU milliseconds per query, single-threaded, interleaved.

Usage: lipschitz.py PROGRAM FOLDER, with the program `lipschitz` and the folder it generated.
"""

import statistics
import subprocess
import sys
import time

import faiss
import numpy

ROUNDS = 5
ALLOWED = 3.0


def milliseconds(search, queries):
    """CPU milliseconds per query."""
    before = time.process_time()
    search()
    return 1e3 * (time.process_time() - before) / len(queries)


def main():
    program, folder = sys.argv[1:]
    faiss.omp_set_num_threads(1)
    vectors = numpy.load(f"{folder}/gallery.npy")
    queries = numpy.load(f"{folder}/queries.npy")
    index = faiss.IndexFlatL2(vectors.shape[1])
    index.add(vectors)

    def one_by_one():
        for place in range(len(queries)):
            index.search(queries[place : place + 1], 1)

    names = ["ours, one by one", "ours, together", "faiss, one by one", "faiss, together"]
    times = {name: [] for name in names}
    one_by_one()
    for _ in range(ROUNDS):
        output = subprocess.run([program, "measure", folder], check=True, capture_output=True, text=True)
        single, together, certified = output.stdout.split()
        times[names[0]].append(float(single))
        times[names[1]].append(float(together))
        times[names[2]].append(milliseconds(one_by_one, queries))
        times[names[3]].append(milliseconds(lambda: index.search(queries, 1), queries))
    print(f"gallery {vectors.shape[0]} x {vectors.shape[1]}, {len(queries)} queries, {certified} certified, {ROUNDS} rounds")
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, values in times.items():
        print(f"{name:18} {medians[name]:7.3f} CPU ms per query (from {min(values):.3f} to {max(values):.3f})")
    ratio = medians[names[0]] / medians[names[2]]
    print(f"one certificate takes {ratio:.2f} times one search by faiss (bar: at most {ALLOWED})")
    return 0 if ratio <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
