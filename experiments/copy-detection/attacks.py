"""Attacks on block means and on hashes, in the same space: the picture that the encoder gets, in l2."""

import numpy
from encoder import distances
from hashes import Attack
from PIL import Image

# Sizes at which shares are reported, in certified radii.
BUDGETS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9, 0.99, 1.01, 1.1, 1.5, 2.0)


def shares(method, sizes):
    """The share of pictures for which an attack within a budget succeeds; `sizes` are in certified radii."""
    return {"method": method, **{f"within {budget:g} r": float((sizes <= budget).mean()) for budget in BUDGETS}}


class MeansAttack:
    """Block means under the best attack that there is: straight to the nearest bisector, or to the threshold.

    Rows are orthonormal, so an embedding moves as far as the picture. Pictures may leave [0, 1] here, which only helps the attack.
    """

    # Sizes that are tried, in certified radii.
    STEPS = (0.5, 0.9, 0.99, 0.999, 1.001, 1.01, 1.1, 1.5, 2.0)

    def __init__(self, encoder, gallery, threshold):
        self.encoder, self.gallery, self.threshold = encoder, gallery, threshold

    def evaded(self, prepared, radii):
        """Smallest size in certified radii at which each of the first items is no longer found."""
        right = numpy.arange(len(prepared))
        others = distances(self.gallery[right], self.gallery)
        others[right, right] = numpy.inf

        def lost(found, items):
            own = found[numpy.arange(len(found)), right[items]]
            return (own > self.threshold) | (own > found.min(1))

        return self._smallest(prepared, self.gallery[others.argmin(1)], radii, lost)

    def collided(self, prepared, radii):
        """Smallest size in certified radii at which each stranger matches an item."""
        nearest = distances(self.encoder.embedded(prepared), self.gallery).argmin(1)
        return self._smallest(prepared, self.gallery[nearest], radii, lambda found, _: found.min(1) <= self.threshold)

    def _smallest(self, prepared, targets, radii, succeeds):
        sizes = numpy.full(len(prepared), numpy.inf)
        # Some at a time: a thousand pictures in `f64` are large.
        for part in (slice(start, start + 100) for start in range(0, len(prepared), 100)):
            directions = self.encoder.picture_of(targets[part] - self.encoder.embedded(prepared[part]))
            lengths = numpy.sqrt((directions**2).sum((1, 2, 3)))
            for step in reversed(self.STEPS):
                shifted = prepared[part] + directions * (step * radii[part] / lengths)[:, None, None, None]
                broken = succeeds(distances(self.encoder.embedded(shifted), self.gallery), part)
                sizes[part][broken] = step
        if (sizes < 1).any():
            raise SystemExit("an attack inside a certified radius succeeded: a certificate is wrong")
        return sizes


class HashAttack:
    """Attacks on one kind of hash; what comes out are pictures of 8 bits, and the package itself is asked for their hashes."""

    def __init__(self, hash, size, stored, threshold):
        self.attack, self.stored, self.threshold = Attack(hash, size), stored, threshold

    def evaded(self, prepared):
        """The l2 size at which each copy is missed: further from its stored hash than the threshold."""
        attempts = [self.attack.evade(picture_of(copy), bits, self.threshold) for copy, bits in zip(prepared, self.stored)]
        return numpy.array([moved(copy, attempt) for copy, attempt in zip(prepared, attempts)])

    def collided(self, prepared):
        """The l2 size at which each stranger matches the item that is nearest to it."""
        sizes = []
        for stranger in prepared:
            picture = picture_of(stranger)
            nearest = self.stored[(self.stored != self.attack.hash.of(picture)).sum(1).argmin()]
            sizes.append(moved(stranger, self.attack.collide(picture, nearest, self.threshold)))
        return numpy.array(sizes)


def picture_of(prepared):
    """A picture of 8 bits."""
    return Image.fromarray(numpy.rint(255 * prepared).astype(numpy.uint8))


def moved(prepared, attempt):
    """The l2 distance of an attempt from what it began with; infinite if there is none."""
    if attempt is None:
        return numpy.inf
    return float(numpy.linalg.norm(numpy.asarray(attempt) / 255 - prepared))
