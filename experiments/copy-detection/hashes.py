"""The perceptual hashes that people use today, and what it takes to change them.

Both hashes are signs: a small grey version of the picture goes through a cosine transform, and a bit says whether a coefficient lies above the
median of all. Up to rounding the coefficients are linear in the picture, so the smallest change that flips given bits is a formula:
swap the coefficients nearest to the median, as many from above as from below, and the median stays where it is.
"""

import imagehash
import numpy
from PIL import Image

# Grey as both packages make it.
LUMA = numpy.array([0.299, 0.587, 0.114])


def cosines(rows, columns, first):
    """Rows `first`, `first + 1`, … of a cosine transform."""
    frequency = numpy.arange(first, first + rows)[:, None]
    return numpy.cos(numpy.pi / (2 * columns) * frequency * (2 * numpy.arange(columns) + 1))


class PHash:
    """`imagehash.phash`: 64 bits from 32 × 32 grey pixels."""

    name = "pHash"
    bits = 64
    side = 32

    def of(self, picture):
        """The bits of a picture, as the package finds them."""
        return imagehash.phash(picture).hash.ravel()

    def transform(self, size):
        """The matrix `A` with coefficients `A G Aᵀ` of a grey picture `G` of this size."""
        identity = Image.fromarray(numpy.eye(size, dtype=numpy.float32))
        shrink = numpy.asarray(identity.resize((size, 32), Image.Resampling.LANCZOS), dtype=numpy.float64)
        return cosines(8, 32, first=0) @ shrink

    def ordered(self, coefficients):
        """Coefficients in the order of the bits."""
        return coefficients.ravel()

    def placed(self, changes):
        """Changes in the order of the bits, as a matrix."""
        return changes.reshape(8, 8)


class PDQ:
    """`pdqhash`: 256 bits from 64 × 64 grey pixels."""

    name = "PDQ"
    bits = 256
    side = 64

    def __init__(self):
        # Compiled on installation, so only those who ask for it need it.
        import pdqhash

        self.package = pdqhash

    def of(self, picture):
        """The bits of a picture, as the package finds them."""
        return self.package.compute(numpy.asarray(picture))[0].astype(bool)

    def transform(self, size):
        """The matrix `A` with coefficients `A G Aᵀ` of a grey picture `G` of this size."""
        if size > 128:
            raise SystemExit(f"pictures have {size} pixels, wanted at most 128: above that PDQ blurs them first")
        shrink = numpy.eye(size)[((numpy.arange(64) + 0.5) * size / 64).astype(int)]
        return cosines(16, 64, first=1) @ shrink

    def ordered(self, coefficients):
        """Coefficients in the order of the bits."""
        return coefficients.ravel()[::-1]

    def placed(self, changes):
        """Changes in the order of the bits, as a matrix."""
        return changes[::-1].reshape(16, 16)


HASHES = {"phash": PHash, "pdq": PDQ}


def hamming(queries, gallery):
    """Numbers of different bits, (queries, items)."""
    signs = (2.0 * queries - 1).astype(numpy.float32), (2.0 * gallery - 1).astype(numpy.float32)
    return numpy.rint((queries.shape[1] - signs[0] @ signs[1].T) / 2).astype(int)


class Attack:
    """The smallest change that we know of a picture of `size × size` pixels that flips bits of its hash."""

    # From small to large: pairs of bits beyond those needed, and how far behind the median, in units of what rounding of the small grey
    # picture to 8 bits moves a coefficient. The first that does it is taken.
    ATTEMPTS = ((0, 1.0), (0, 3.0), (1, 3.0), (2, 6.0), (4, 10.0), (8, 20.0))
    # Rounds in which what clipping took away is put back elsewhere.
    ROUNDS = 20

    def __init__(self, hash, size):
        self.hash = hash
        self.matrix = hash.transform(size)
        self.inverse = numpy.linalg.inv(self.matrix @ self.matrix.T)
        # Rounding moves each of n × n grey values by some 0.3 levels; rows of the transform have the squared length n/2.
        self.rounding = 0.3 / 255 * hash.side / 2

    def evade(self, picture, stored, threshold):
        """A picture whose hash is more than `threshold` bits away from the stored one, or None."""
        agree = self.hash.of(picture) == stored
        wanted = threshold + 1 - int((~agree).sum())
        return self._cheapest(picture, agree, wanted, lambda bits: (bits != stored).sum() > threshold)

    def collide(self, picture, stored, threshold):
        """A picture whose hash is within `threshold` bits of the stored one, or None."""
        differ = self.hash.of(picture) != stored
        wanted = int(differ.sum()) - threshold
        return self._cheapest(picture, differ, wanted, lambda bits: (bits != stored).sum() <= threshold)

    def _cheapest(self, picture, candidates, wanted, done):
        if wanted <= 0:
            return picture
        original = numpy.asarray(picture, dtype=numpy.float32) / numpy.float32(255)
        for spare, margin in self.ATTEMPTS:
            changed = self._flipped(original, candidates, -(-wanted // 2) + spare, margin * self.rounding)
            attempt = Image.fromarray(numpy.rint(255 * changed).astype(numpy.uint8))
            if done(self.hash.of(attempt)):
                return attempt
        return None

    def _flipped(self, original, candidates, pairs, margin):
        """Brings the `pairs` candidates nearest to the median from either side to the other side."""
        values = self.hash.ordered(self._coefficients(original))
        median = numpy.median(values)
        targets = values.copy()
        for above in (True, False):
            side = numpy.flatnonzero(candidates & ((values > median) == above))
            nearest = side[numpy.argsort(abs(values[side] - median))[:pairs]]
            targets[nearest] = median - margin if above else median + margin
        changed = original
        for _ in range(self.ROUNDS):
            missing = self.hash.placed(targets - self.hash.ordered(self._coefficients(changed)))
            grey = self.matrix.T @ self.inverse @ missing @ self.inverse @ self.matrix
            moved = changed + grey.astype(numpy.float32)[:, :, None] * (LUMA / (LUMA @ LUMA)).astype(numpy.float32)
            changed = numpy.clip(moved, 0, 1)
            if abs(moved - changed).max() < 0.5 / 255:
                break
        return changed

    def _coefficients(self, picture):
        return self.matrix @ (picture @ LUMA.astype(numpy.float32)) @ self.matrix.T
