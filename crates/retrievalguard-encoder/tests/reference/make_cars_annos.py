"""A small `cars_annos.mat` written by scipy, for the module `dataset`.

Run from the crate's directory:

    python3 tests/reference/make_cars_annos.py

Needs Python 3.9 or later, numpy and scipy. Writes `cars/cars_annos.mat` (compressed) beside this file: the variables and
fields of the published file, 6 annotations.
"""

from pathlib import Path

import numpy
from scipy.io import savemat

FOLDER = Path(__file__).resolve().parent / "cars"
FIELDS = ["relative_im_path", "bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "test"]
CLASSES = [1, 98, 99, 196, 1, 99]


def main():
    annotations = numpy.zeros((1, len(CLASSES)), dtype=[(field, object) for field in FIELDS])
    for number, label in enumerate(CLASSES):
        annotations[0, number] = (
            f"car_ims/{number + 1:06d}.jpg",
            numpy.uint8(3 + number),
            numpy.uint16(5),
            numpy.uint16(300 + number),
            numpy.float64(200),
            numpy.uint8(label),
            numpy.uint8(number % 2),
        )
    names = numpy.empty((1, 2), object)
    names[0, :] = ["AM General Hummer SUV 2000", "smart fortwo Convertible 2012"]
    FOLDER.mkdir(exist_ok=True)
    variables = {"class_names": names, "annotations": annotations}
    savemat(FOLDER / "cars_annos.mat", variables, do_compression=True)


if __name__ == "__main__":
    main()
