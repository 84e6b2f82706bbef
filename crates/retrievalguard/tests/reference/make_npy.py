"""Reference files for `storage::npy`, written by NumPy itself.

Run from the crate's directory:

    python3 tests/reference/make_npy.py

Needs NumPy 1.23 or later. Writes the files in `npy/` beside this script. Every array holds 0, 1, 2, … in row-major
order, minus a half, so that the test knows the values from the shape alone.
"""

from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent / "npy"


def counted(shape, kind):
    return (np.arange(int(np.prod(shape)), dtype="f8") - 0.5).reshape(shape).astype(kind)


def write(name, array, version):
    with open(FOLDER / f"{name}.npy", "wb") as file:
        np.lib.format.write_array(file, array, version=version, allow_pickle=False)


def main():
    FOLDER.mkdir(exist_ok=True)
    write("f4-2x3-v1", counted((2, 3), "<f4"), (1, 0))
    write("f8-2x3-v1", counted((2, 3), "<f8"), (1, 0))
    write("f4-5-v1", counted((5,), "<f4"), (1, 0))
    write("f4-scalar-v1", counted((), "<f4"), (1, 0))
    write("f4-0x3-v1", counted((0, 3), "<f4"), (1, 0))
    write("f4-2x3-v2", counted((2, 3), "<f4"), (2, 0))
    write("f8-2x3-v3", counted((2, 3), "<f8"), (3, 0))
    write("f4-2x3-big", counted((2, 3), ">f4"), (1, 0))
    write("f8-2x3-big", counted((2, 3), ">f8"), (1, 0))
    write("f4-2x3-fortran", np.asfortranarray(counted((2, 3), "<f4")), (1, 0))
    write("f8-2x3x4-fortran", np.asfortranarray(counted((2, 3, 4), "<f8")), (1, 0))
    write("f4-2x3x4-fortran-big", np.asfortranarray(counted((2, 3, 4), ">f4")), (2, 0))
    write("i8-2x3-v1", np.arange(6).reshape(2, 3), (1, 0))
    write("f2-2x3-v1", counted((2, 3), "<f2"), (1, 0))
    write("c8-2-v1", np.zeros(2, dtype="<c8"), (1, 0))
    write("record-2-v1", np.zeros(2, dtype=[("é", "<f4")]), (3, 0))


main()
