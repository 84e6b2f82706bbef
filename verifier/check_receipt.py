#!/usr/bin/env python3
"""Makes the answer of a RetrievalGuard receipt again, with other code than the tool's (docs/receipts.md, docs/theory.md).

Status 0: verified; 1: refused, with the reason; 2: a file cannot be used, or asks for what is not supported here.
"""
import argparse, functools, hashlib, io, json, math, os, struct, sys, tomllib
from decimal import ROUND_DOWN, Decimal
from statistics import NormalDist
import numpy as np, onnxruntime
from PIL import Image, ImageOps
CLOSE, EPS, LOW = 1e-4, 2.0**-52, 2**32 - 1  # CLOSE: how far embeddings of two engines are apart, per norm bound
class Refused(Exception): """The receipt is not what the computation gives."""
class Declined(Exception): """The receipt, or a file, cannot be checked here."""
def need(condition, reason, error=Refused):
    if not condition:
        raise error(reason)
def bisect(holds, low, high, rounds):
    """The lower end of the place where `holds` ends."""
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low

# ---- noise: Philox4x32-10 and the Box-Muller transform ----
def philox(counter, key):
    (c0, c1, c2, c3), (k0, k1) = (np.atleast_1d(word).astype(np.uint64) for word in counter), key
    for _ in range(10):
        left, right = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = right >> 32 ^ c1 ^ k0, right & LOW, left >> 32 ^ c3 ^ k1, left & LOW
        k0, k1 = k0 + 0x9E3779B9 & LOW, k1 + 0xBB67AE85 & LOW
    return c0, c1, c2, c3
def chain(purpose, blocks):
    """Each block of 64 bits is the key of one step, whose result is mixed into the state."""
    state = struct.unpack("<4I", purpose)
    for block in blocks:
        state = [int(word[0]) ^ old for word, old in zip(philox(state, (block & LOW, block >> 32)), state)]
    return state
def normals(seed, name, stage, samples, pixels):
    """Standard normals, a row per sample: the exact transform in f64, rounded to f32 once."""
    blocks = [int.from_bytes(name[at:at + 8], "little") for at in range(0, len(name), 8)]
    i0, i1, i2, i3 = chain(b"image identity  ", blocks + [len(name)])
    *key, third, fourth = chain(b"noise stream    ", [seed & 2**64 - 1, seed >> 64, i0 | i1 << 32, i2 | i3 << 32])
    block, sample, place = np.arange(-(-pixels // 64) * 16)[None], np.asarray(samples)[:, None], fourth << 16 & LOW | stage
    words, out = philox((block, sample, place, third), key), np.empty((len(sample), block.size // 16, 4, 16), np.float32)
    for half in (0, 2):
        radius, angle = words[half].astype(float), words[half + 1].astype(np.int64)
        rare, uniform = np.nonzero(radius < 2**20), (radius + 0.5) / 2.0**32  # the tail has 32 further bits
        more = philox((block[0, rare[1]], sample[rare[0], 0], place | 256, third), key)[half].astype(float)
        uniform[rare] = (radius[rare] + (more + 0.5) / 2.0**32) / 2.0**32
        length, turn = np.sqrt(-2 * np.log(uniform)), ((angle + 2**29 & 2**30 - 1) - 2**29 + 0.5) * (math.pi / 2**31)
        pair = np.where(angle >> 31, -length, length) * np.cos(turn), length * np.sin(turn)
        for at in (0, 1):
            out[:, :, half + at] = np.where(angle >> 30 & 1, pair[1 - at], pair[at]).reshape(len(sample), -1, 16)
    return out.reshape(len(sample), -1)[:, :pixels]

# ---- the normal distribution and Clopper-Pearson bounds ----
def cdf(scores):
    return np.array([0.5 * math.erfc(-z / math.sqrt(2)) for z in scores])
def quantile(p, q):
    """The normal score of p, from the smaller of p and q = 1 - p."""
    if min(p, q) <= 0:
        return -math.inf if p <= 0 else math.inf
    return NormalDist().inv_cdf(p) if p < q else -NormalDist().inv_cdf(q)
def log_beta(a, b, log_x, log_y):
    """ln of the regularised incomplete beta integral by its continued fraction (Lentz), for x below its mean."""
    x, c, m = math.exp(log_x), 1.0, 0
    d = value = 1 / (1 - (a + b) * x / (a + 1))
    while m == 0 or abs(d * c - 1) > 1e-15 and m < 100_000:
        m += 1
        for top in (m * (b - m) / (a + 2 * m - 1), -(a + m) * (a + b + m) / (a + 2 * m + 1)):
            d, c = 1 / (1 + top * x / (a + 2 * m) * d or 1e-300), 1 + top * x / (a + 2 * m) / c or 1e-300
            value *= d * c
    return math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * log_x + b * log_y + math.log(value / a)
@functools.lru_cache(None)
def lower_bound(k, n, level):
    """Clopper-Pearson: p, rounded down, and 1 - p with P(Bin(n, p) >= k) = level, by bisection over the logit."""
    def below(logit, a=k, b=n - k + 1):
        log_p, log_q = -np.logaddexp(0, -logit), -np.logaddexp(0, logit)
        if math.exp(log_p) < (a + 1) / (a + b + 2):
            return log_beta(a, b, log_p, log_q) <= math.log(level)
        return math.exp(log_beta(b, a, log_q, log_p)) >= 1 - level
    # lgamma is off by some 1e-10, which moves the solution by far less than what is taken off here.
    logit = bisect(below, -700.0, 700.0, 60) - 1e-11 if k > 0 else -math.inf
    return (1 / (1 + math.exp(-logit)), 1 / (1 + math.exp(logit))) if k > 0 else (0.0, 1.0)

# ---- pictures and encoder ----
def resample(pixels, axis, resized, kept, name, eight):
    """One axis resampled, its middle kept; sums run in the order of the pixels, so that every bit comes out again."""
    kernels = {"bilinear": (1, lambda x: max(1 - x, 0.0)), "bicubic": (2, lambda x: (1.5 * x - 2.5) * x * x + 1 if x < 1
               else (((x - 5) * x + 8) * x - 4) * -0.5 if x < 2 else 0.0)}
    pixels, rows = np.moveaxis(pixels, axis, 0), []
    source, scale, wide = len(pixels), len(pixels) / resized, max(len(pixels) / resized, 1.0)
    need(name in kernels and kept <= resized, f"interpolation {name} to {resized}, of which {kept} are kept", Declined)
    for place in range(start := round((resized - kept) / 2), start + kept):
        centre, reach = (place + 0.5) * scale, kernels[name][0] * wide
        first, end = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), source)
        weights = [kernels[name][1](abs((at - centre + 0.5) * (1 / wide))) for at in range(first, end)]
        rows.append((place, [1.0]) if source == resized else (first, np.array(weights) / np.cumsum(weights)[-1]))
    table = np.array([np.pad(row[1], (0, max(len(one[1]) for one in rows) - len(row[1]))) for row in rows])
    if eight:  # weights with 22 bits behind the point, as Pillow has them
        table = np.trunc(table * 2.0**22 + np.where(table < 0, -0.5, 0.5))
    total = np.zeros((kept,) + pixels.shape[1:])
    for tap, weights in enumerate(table.T):
        total += pixels[np.minimum([row[0] + tap for row in rows], source - 1)] * weights[:, None, None]
    return np.moveaxis(np.clip(np.floor((total + 2.0**21) / 2.0**22), 0, 255) if eight else total, 0, axis)
def prepare(picture, config):
    """The tensor in [0, 1] that noise is added to: channels, rows, columns."""
    pixels, resize, given = np.asarray(picture, float), config["resize"], config["input"]
    rule, size, (height, width) = resize["rule"], resize.get("size", 0), pixels.shape[:2]
    tall, wide = (height, width) if rule == "none" else (resize["height"], resize["width"]) if rule == "exact" else \
        (int(size * height / width), size) if width <= height else (size, int(size * width / height))
    kept = (given["height"], given["width"]) if config["crop"]["rule"] == "centre" else (tall, wide)
    need(kept == (given["height"], given["width"]), f"the prepared picture has {kept[0]} x {kept[1]} pixels")
    eight, down_first = resize["resampling"] == "8-bit", height - tall > max(0, 2 * (width - wide))
    for axis in (0, 1) if down_first and resize["order"] == "cheaper" else (1, 0):
        pixels = resample(pixels, axis, (tall, wide)[axis], kept[axis], resize.get("interpolation", "bilinear"), eight)
    pixels = pixels.astype(np.float32) / np.float32(255) if eight else np.clip(pixels / 255, 0, 1).astype(np.float32)
    return pixels.transpose(2, 0, 1)
def embed(session, pictures, config, encoder):
    """Embeddings by onnxruntime, brought to length 1, clamped and scaled onto the ball as the receipt says."""
    source, bound = config["input"].get("name") or session.get_inputs()[0].name, config["output"]["norm_bound"]
    wanted = [config["output"].get("name") or session.get_outputs()[0].name]
    mean, std = (np.asarray(config["input"][part], np.float32).reshape(-1, 1, 1) for part in ("mean", "std"))
    rows = np.concatenate([session.run(wanted, {source: (part - mean) / std})[0] for part in np.array_split(
        pictures, -(-len(pictures) // 64))]).astype(float)
    length = lambda: np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    rows /= length() if config["output"]["normalise"] else 1
    rows = np.maximum(rows, 0) if encoder["components"] == "non-negative" else rows
    need(encoder["excess"] == "project" or length().max() <= bound * (1 + CLOSE), f"norm {length().max()}, not {bound}")
    return rows * np.minimum(bound / length(), 1)

# ---- gallery and exact search ----
def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
def sha(content):
    return hashlib.sha256(content).hexdigest()
def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()
class Gallery:
    def __init__(self, folder):
        other = {"shards.json", "writes.journal"} & set(os.listdir(folder))
        need(not other, f"a gallery with {other}: export it and import it into another folder", Declined)
        stored, manifest = np.load(os.path.join(folder, "vectors.npy")), json.loads(read(folder, "manifest.json"))
        items = [json.loads(line) for line in read(folder, "items.jsonl").splitlines()]
        lines = b"".join(canonical([one["identity"], one["label"], one.get("view")]) + b"\n" for one in items)
        self.vectors, self.views, self.sigma = stored.astype(float), len({one.get("view") for one in items}), manifest.get("sigma")
        self.facts = {"rows": len(stored), "dimension": stored.shape[1], "views": self.views,
                      "vectors": sha(stored.astype("<f4").tobytes()), "items": sha(lines)}
        self.names = [*dict.fromkeys(one["label"] for one in items)]
        self.label = np.array([*map({name: at for at, name in enumerate(self.names)}.get, (one["label"] for one in items))])
        self.unique, self.twin = np.unique(self.vectors, axis=0, return_inverse=True)
    def hide(self, rows):
        whole = sorted({row - row % self.views + view for row in rows for view in range(self.views)})
        need(rows == whole and set(rows) <= set(range(len(self.label))), "the hidden rows are not whole items")
        self.seen = np.setdiff1d(np.arange(len(self.label)), rows)
    def nearest(self, rows):
        """Distance of each embedding from each label; the last column is for a label that no row has."""
        order = self.seen[np.argsort(self.label[self.seen], kind="stable")]
        held, starts = np.unique(self.label[order], return_index=True)
        near = np.full((len(rows), len(self.names) + 1), np.inf)
        for at in range(0, len(rows), step := max(1, 2**24 // len(order))):
            squared = (rows[at:at + step]**2).sum(1)[:, None] + (self.unique**2).sum(1) - 2 * rows[at:at + step] @ self.unique.T
            distance = np.sqrt(np.maximum(squared, 0))[:, self.twin.ravel()[order]]  # equal for equal vectors
            near[at:at + step, held] = np.minimum.reduceat(distance, starts, axis=1)
        return near
def losses(near, answer, slack):
    """In how many copies each label is at least as near as the answer: counted, at least, at most."""
    ahead = near - np.minimum(near[:, [answer]], 1e300)
    ahead[ahead == 0] = -np.inf  # a tie is lost for sure: distances of equal vectors are equal
    ahead[:, answer] = np.inf
    return np.array([(ahead <= limit).sum(0) for limit in (0, -slack, slack)])
def votes(near, answer, slack):
    """How many copies vote for each label: counted, at least, at most; a tie is no vote for the answer."""
    near, others = near.copy(), np.delete(near, answer, 1).min(1)
    near[near[:, answer] == others, answer] = np.inf
    close, winner = near <= near.min(1, keepdims=True) + slack, near.argmin(1)
    sure, count = close.sum(1) == 1, lambda cells: np.bincount(cells, minlength=near.shape[1])
    return np.array([count(winner), count(winner[sure]), count(winner[sure]) + close[~sure].sum(0)])

# ---- half-space: the whole-distribution certificate (theory, sections 2 and 12.1) ----
RUNGS = np.array([1, 5, 10, 20, 40, 55, 65, 72, 77, 81, 85, 88, 91, 94, 96, 98, 100, 102, 104, 107, 110, 113, 116, 120, 125, 132,
                  140, 155, 180]) / 100
DEPTHS, SPREAD = np.array([5, 4.2, 3.5, 2.9, 2.4, 1.9, 1.4, 0.9, 0.4, -0.2, -0.8, -1.5]), np.array([0.4, 0.7, 1, 1.35])
def half_space(gallery, answer, pilot, sample, sigma, alpha, bound, clamped, top_k):
    """The radius (None if the mean of the sample retrieves another label), and the tests that the pilot has chosen."""
    V, n, total, k, mean = gallery.vectors, len(sample), len(pilot), gallery.vectors.shape[1], pilot.mean(0)
    right, F = gallery.label[gallery.seen] == answer, bound * (1 + max(1e-12, (k + 16) * EPS))
    positive, negative, error = gallery.seen[right], gallery.seen[~right], F * (k + 8) / (2.0**24 - k - 8)
    gap, used, now = ((V - mean)**2).sum(1), min(total, 256), ((V - sample.mean(0))**2).sum(1)
    if now[negative].min() <= now[positive].min(initial=math.inf):
        return None, {}
    centred, nearest = pilot[np.arange(used) * total // used] - mean, positive[np.argsort(gap[positive], kind="stable")][:8]
    def separate(rows, shares, b):
        """Direction, threshold and range of the score whose mean must stay above it, or what is known already."""
        points, weights, wrong, mixed = V[rows], np.asarray(shares) / 4096, V[b], len(rows) > 1
        centre, largest = weights @ points, np.linalg.norm(V[[*rows, b]], axis=1).max()
        apart = np.linalg.norm(centre - wrong)
        if apart <= max(1e-9 * largest, 1.2e-38):
            return "never"
        u, spread = (centre - wrong) / apart, mixed * weights @ ((points - centre)**2).sum(1)
        s = (centre + wrong) @ u / 2 + spread / (2 * apart) + EPS * (k + 16) * (2 * largest + spread / apart) + EPS * (
            8 + mixed * 2 * len(rows) * largest / apart) * (F + 2 * largest)
        parts = [np.linalg.norm(np.maximum(side * u, 0)) + 1e-140 if clamped else 1.0 for side in (-1, 1)]
        low, high = -min(F, F * parts[0]), min(F, F * parts[1])
        return "always" if s < low else "never" if s >= high else (u, s, low, high)
    def counted(places, counts, share, space):
        """The largest radius that counts of scores above thresholds show; minus infinity if not even 0."""
        _, s, low, high = space
        z = np.array([quantile(*lower_bound(int(count), n, alpha / share)) for count in counts])
        z = np.maximum.accumulate((z - 1e-13 * (1 + np.minimum(np.abs(z), 1e300)))[::-1])[::-1]
        shown = lambda radius: np.diff([low, *places]) @ cdf(z - radius / sigma) + low - 1e-12 * max(-low, high) > s
        return bisect(shown, 0.0, 40 * sigma, 36) if shown(0.0) else -math.inf
    def look(space):
        """The pilot's scores: their rank, the radius of counting, thresholds, cells of bets, and points to plan bets on."""
        u, s, low, high = space
        scores, nudge, tenth = np.sort(pilot @ u - error), 3 * error * max(-low, high) / F, -(-total // 10)
        atom, floor = total > 2 and scores[2] - scores[0] <= nudge, min(-math.log(alpha) / n, 0.5)
        tail = nudge if atom else np.mean(scores[min(tenth, total - 1)] - scores[:tenth])
        def below(places):
            count, depth = np.searchsorted(scores, places, "right"), (scores[0] - places) / max(tail, 1e-12 * F)
            few = np.maximum(0.5 / (total + 1) * np.exp(-np.maximum(depth, 0)), 1e-18)
            return np.where(count > 0, (count + 0.5) / (total + 1), few)
        at = lambda ranks: scores[np.minimum(ranks.astype(int), total - 1)]
        deep = scores[0] - tail * np.log(1 + np.array([0, 0.6, 2.5, 10]) * max(n / total, 1))
        least, places = quantile(0.5 / total, 1 - 0.5 / total), []
        ranks = cdf(least + (2.2 - least) * (np.arange(18) + 0.5) / 18) * total
        for place in np.sort(np.float32(np.concatenate([deep, low + np.arange(1, 5) / 5 * (deep[3] - low), at(ranks)]) - nudge)):
            if low < place < high and (not places or place - places[-1] > np.float32(nudge)):
                places.append(place)
        edges, mass, count = np.array([low, *places, high]), 0.5 / (total + 1), min(96, total)
        under = (below(edges[:-1] + 2 * nudge) + below(edges[1:])) / 2
        z = np.array([quantile(max(min(1 - q, 1 - floor), 1e-12), min(max(q, floor), 1 - 1e-12)) for q in under])
        points = np.append(scores[0] - tail, at((np.arange(count) + 0.5) / count * total))
        radius = counted(edges[1:-1], np.floor(n * (1 - below(edges[1:-1]))), max(len(places), 1), space)
        return (radius if radius > -math.inf else min(scores.mean() - s, 0) - 1e-300, radius, edges[1:-1], (edges, z),
                (points, np.append(mass, np.full(count, (1 - mass) / count))))
    def wager(space, cells, points, radius):
        """What scores are worth when `radius` is bet on (None: no need to look), the bets, their growth on the pilot."""
        (edges, z), (scores, mass), shift, widths = cells, points, radius / sigma, np.diff(cells[0])
        with np.errstate(over="ignore", invalid="ignore"):
            kappa = np.exp(shift * z - shift**2 / 2)
            hurdle = space[1] - edges[0] + widths @ (kappa * cdf(z) - cdf(z - shift) + 1e-13 * (1 + kappa))
        if not 0 < hurdle < math.inf:
            return (None, None, math.inf) if hurdle <= 0 else (np.zeros_like, np.full(4, 0.99), 0.0)
        worth = lambda scores: np.interp(scores, edges, np.append(0, np.cumsum(kappa * widths))) / hurdle
        gain = worth(scores) - 1
        rises = lambda bet: (mass * gain / (1 + bet * gain)).sum() > 0
        if not rises(0.0):
            return worth, np.array([0.02, 0.05, 0.1, 0.2]), 0.0
        best = 0.99 if rises(0.99) else bisect(rises, 0.0, 0.99, 16)
        return worth, np.minimum(best * SPREAD, 0.99), (mass * np.log1p(best * gain)).sum()
    def mixture(b):
        """Shares of several positives that together have about the largest ratio of mean to deviation."""
        apart, ahead, weights = V[nearest] - V[b], (gap[b] - gap[nearest]) / 2, np.zeros(len(nearest))
        gram = (apart @ centred.T) @ (centred @ apart.T) / used + 1e-4 * F**2 * apart @ apart.T
        for i in [*range(len(nearest))] * 60:
            weights[i] = max((ahead[i] - gram[i] @ weights) / max(gram[i, i], 1e-300) + weights[i], 0)
        shares = np.floor(weights / max(weights.sum(), 1e-300) * 4096).astype(int)
        rows, shares = nearest[shares > 40], shares[shares > 40]
        shares[len(rows) - 1 - np.argmax([*shares[::-1], 0][:len(rows) or 1]):][:1] += 4096 - shares.sum()
        return [(rows, shares)] if len(rows) > 1 else []
    def choose(b):
        """Positives, shares, form and the rest of the test of one dangerous negative."""
        def hope(row):
            if isinstance(space := separate([row], [4096], b), str):
                return math.inf if space == "always" else -math.inf
            deviation = np.sqrt(((pilot @ space[0] - error - mean @ space[0])**2).mean())
            return (mean @ space[0] - space[1]) / (deviation + 1e-3 * F)
        choices, best = [([row], [4096]) for row in sorted(nearest, key=hope, reverse=True)[:3]] + mixture(b), None
        for choice in choices:
            if (space := separate(*choice, b)) == "always":
                return *choice, space, None
            if space != "never" and (not best or best[2][0] < (seen := look(space))[0]):
                best = choice, space, seen if best else look(space)
        if not best:
            return [], [], "never", None
        choice, space, (_, counting, places, cells, points) = best
        reaches = lambda radius: n * wager(space, cells, points, radius)[2] >= -math.log(alpha) - math.log(0.3)
        low, high, hopeful = 1e-3 * sigma, 2 * sigma, reaches(1e-3 * sigma)
        while hopeful and reaches(high) and high < 40 * sigma:
            low, high = high, 2 * high
        centre = bisect(reaches, low, high, 8) if hopeful else -math.inf
        if counting > centre:
            return *choice, "thresholds", (space, places, len(places))
        return *choice, "betting", (space, cells, points, (centre if hopeful else 0.1 * sigma) * RUNGS)
    def passed(space, cells, points, scores, radius):
        worth, bets, _ = wager(space, cells, points, radius)
        if worth is None:
            return True
        logs = np.log([[0.2], [0.3], [0.3], [0.2]]) + np.cumsum(np.log1p(bets[:, None] * (worth(scores) - 1)), axis=1)
        looks = np.logaddexp.reduce(logs[:, np.unique([*range(15, n, 16), n - 1])], axis=0)
        return looks.max() - 1e-5 >= -math.log(alpha)
    def simple(b, row, middle, deviation):
        """The test of a negative that looks harmless on the pilot."""
        if isinstance(space := separate([int(row)], [4096], b), str):
            return None, None, space, None
        places = np.unique(np.float32(middle - DEPTHS * deviation)).astype(float)
        return None, None, "thresholds", (space, places[(places > space[2]) & (places < space[3])], 12)
    wrong, found, least = V[negative], [], math.inf
    for row in nearest:
        apart, ahead = np.maximum(np.linalg.norm(wrong - V[row], axis=1), 1e-12), (gap[negative] - gap[row]) / 2
        spread = np.sqrt(((centred @ (wrong - V[row]).T)**2).mean(0)) + 1e-3 * apart * F
        middle = ahead + ((V[row]**2).sum() - (wrong**2).sum(1)) / 2
        found.append([ahead / spread, np.full(len(wrong), row), middle / apart, spread / apart])
    best = np.take_along_axis(np.array(found), np.argmax([one[0] for one in found], 0)[None, None], 0)[0]
    order, most = np.lexsort((negative, best[0])), max(48, 2 * top_k) * gallery.views
    tests = {int(negative[i]): choose(negative[i]) for i in order[:most]}
    for _, _, form, given in [*tests.values(), *(simple(negative[i], *best[1:, i]) for i in order[most:])]:
        radius, scores = math.inf if form == "always" else -math.inf, sample @ given[0][0] - error if given else None
        if form == "thresholds":
            radius = counted(given[1], (scores > given[1][:, None]).sum(1), given[2], given[0])
        for rung in given[3] if form == "betting" else []:
            if radius >= least or not passed(*given[:3], scores, rung):
                break
            radius = rung
        least = min(least, radius)
    return least, tests

# ---- Lipschitz encoders: the ONNX graph in f64, its constant and its rounding (theory, section 14) ----
def integers(data):
    """Integers of variable length, each with the place behind it."""
    value = shift = 0
    for place, byte in enumerate(data, 1):
        value, shift = value | (byte & 127) << shift, shift + 7
        if byte < 128:
            yield value - (value >> 63 << 64), place
            value = shift = 0
def message(data):
    """The fields of a protobuf message: a list of integers or of byte strings by number; lists of integers are unpacked."""
    found, data = {}, memoryview(data)
    while data:
        key, place = next(integers(data))
        value, more = next(integers(data[place:])) if key & 7 in (0, 2) else ({1: 8, 5: 4}[key & 7], 0)
        data = data[place + more:]
        if key & 7:
            value, data = bytes(data[:value]), data[value:]
        found.setdefault(key >> 3, []).append(value)
    return found
def listed(parts):
    return [one for part in parts for one in ([part] if isinstance(part, int) else [one for one, _ in integers(part)])]
def residual_norm(K, D):
    """At least the norm of D^1/2 A D^1/2, |A| being the kernels' autocorrelations summed over all offsets."""
    (outputs, _, rows, columns), A, q, best = K.shape, 0, np.ones(len(K)), math.inf
    cut = lambda y, x: K[:, :, max(y, 0):rows + min(y, 0), max(x, 0):columns + min(x, 0)].reshape(outputs, -1)
    for y, x in ((y, x) for y in range(1 - rows, rows) for x in range(1 - columns, columns)):
        A = A + np.abs(cut(y, x) @ cut(-y, -x).T)
    A += K.size * EPS * np.outer(*[np.linalg.norm(K.reshape(outputs, -1), axis=1)] * 2)
    for _ in range(2000):  # the largest (D A q)_i / q_i, for the best q that is found
        after = D * (A @ q)
        q, best = np.maximum((q + after / after.max()) / 2, 1e-200), min(best, (after / q).max())
    return best * (1 + len(A) * 4 * EPS)
def convolve(x, K, stride, pads):
    x = np.pad(x, ((0, 0), (0, 0), pads[::2], pads[1::2]))
    windows = np.lib.stride_tricks.sliding_window_view(x, K.shape[2:], (2, 3))[:, :, ::stride[0], ::stride[1]]
    return np.moveaxis(np.tensordot(windows, K, ((1, 4, 5), (1, 2, 3))), 3, 1)
def network(content, config, pixels):
    """The embedding, its constant L, and its forward error at pictures of norm N as (a, b): a N + b."""
    given, name = config["input"], lambda one, field: [part.decode() for part in one.get(field, [])]
    need({*given["std"], 1.0} == {1.0} and {*given["mean"], 0.0} == {0.0}, "mean and std without noise", Declined)
    graph, tensors, nodes, one = message(message(content)[7][0]), {}, [], np.array([0.0, 1.0])
    for part in map(message, graph[5]):
        need(part[2][0] in (1, 7) and 9 in part, "tensors in other files, or not of f32 or integers", Declined)
        numbers = np.frombuffer(part[9][0], "<f4" if part[2][0] == 1 else "<i8").astype(float if part[2][0] == 1 else int)
        tensors[name(part, 8)[0]] = numbers.reshape(listed(part.get(1, [])))
    for part in map(message, graph[1]):
        say = {name(one, 1)[0]: one[3][0] if 3 in one else listed(one.get(8, [])) for one in map(message, part.get(5, []))}
        nodes.append((name(part, 4)[0], name(part, 1), name(part, 2), say))
        need(not name(part, 7) or name(part, 7) == [""], "operators of another domain", Declined)
    gamma, (x, L, size, error) = lambda terms: terms * EPS / (2 - terms * EPS), (pixels[None].astype(float), 1.0, one[::-1], 0 * one)
    at = next(input for input in nodes[0][1] if input not in tensors)  # the graph is one chain of layers
    while nodes:
        operator, inputs, outputs, say = nodes.pop(0)
        rest = [tensors.get(input) for input in inputs[1:]]
        need(inputs[0] == at and not any(part is None for part in rest) and len(outputs) == 1, f"the node {outputs}", Declined)
        if operator == "Conv" and [node[0] for node in nodes[:4]] == ["Relu", "Mul", "ConvTranspose", "Sub"]:
            # x - K^T D relu(K x + b), with the same K twice and D at most 2/T
            relu, mul, back, sub = (nodes.pop(0) for _ in range(4))
            K, bias, D, turned = *rest, tensors[mul[1][1]], [side - 1 - pad for side, pad in zip(rest[0].shape[2:] * 2, say["pads"])]
            need(relu[1] == outputs and mul[1][0] == relu[2][0] and back[1] == [mul[2][0], inputs[1]] and sub[1] == [at, back[2][0]]
                 and back[3] == say and set(say) <= {"kernel_shape", "strides", "pads", "group"} and say["strides"] == [1, 1]
                 and say.get("group", 1) == 1 and D.shape == (1, len(K), 1, 1) and D.min() >= 0, f"{sub[2]} is no residual layer")
            inner = D * np.maximum(convolve(x, K, [1, 1], say["pads"]) + bias.reshape(1, -1, 1, 1), 0)
            beta, value = residual_norm(K, D.ravel()), x - convolve(inner, K[:, :, ::-1, ::-1].transpose(1, 0, 2, 3), [1, 1], turned)
            need(beta <= 2.00001 and value.shape == x.shape, f"the scale of {sub[2]} is too large: {beta}, wanted 2")
            spread = math.sqrt(np.abs(K).sum((1, 2, 3)).max() * np.abs(K).sum((0, 2, 3)).max()) * (1 + K.size * EPS)
            shift, factor, outputs = np.linalg.norm(bias) * math.sqrt(x[0, 0].size) * one, max(1.0, beta - 1), sub[2]
            branch = spread * D.max() * (spread * (size + error) + shift) * (1 + 1e-9)
            local = gamma(2 * K.size // min(K.shape[:2]) + 8) * branch + gamma(2) * (size + error + branch) + 1e-290 * one
            x, L, size, error = value, L * factor, size * factor + spread * D.max() * shift, error * factor + local
        elif operator in ("Conv", "Gemm") and set(say) <= {"kernel_shape", "strides", "pads", "group", "transB"}:
            K, bias = (rest + [np.zeros(1)])[:2]
            K, stride = K if K.ndim == 4 else (K if say.get("transB") else K.T)[:, :, None, None], say.get("strides", [1, 1])
            groups = np.repeat(np.eye(say.get("group", 1)), len(K) // say.get("group", 1), 0)[:, :, None, None, None]
            K, shape = (K[:, None] * groups).reshape(len(K), -1, *K.shape[2:]), x.shape + (1,) * (4 - x.ndim)
            need(K.shape[2] <= stride[0] and K.shape[3] <= stride[1], "overlapping windows outside of residual layers", Declined)
            value, shift = convolve(x.reshape(shape), K, stride, say.get("pads", [0] * 4)), bias.reshape(1, -1, 1, 1)
            norm = np.linalg.norm(K.reshape(len(K), -1), 2) * (1 + 1e-12) + K.size * EPS
            x, shift = (value + shift).reshape(value.shape[:x.ndim]), np.linalg.norm(np.broadcast_to(shift, value.shape)) * one
            error = norm * error + gamma(K[0].size + 2) * (np.linalg.norm(K) * (size + error) + shift) + 1e-290 * one
            L, size = L * norm, norm * size + shift
        else:
            moves = {"Relu": lambda: np.maximum(x, 0), "Transpose": lambda: x.transpose(say["perm"]),
                     "Flatten": lambda: x.reshape(len(x), -1), "Pad": lambda: np.pad(x, rest[0].reshape(2, -1).T), "Reshape":
                     lambda: x.reshape([x.shape[place] if side == 0 else side for place, side in enumerate(rest[0])])}
            need(operator in moves and set(say) <= {"perm", "axis"} and say.get("axis", 1) == 1 and len(rest) < 2,
                 f"the operator {operator} with {say} without noise", Declined)
            x = moves[operator]()
        at = outputs[0]
    need(at == (config["output"].get("name") or at), "an output in the middle of the graph", Declined)
    return x.ravel(), L * (1 + 1e-13), error * (1 + 1e-9)
def reach_of(gallery, answer, h, name):
    """How far the embedding may move, less what rounding takes (theory, 14.2 and 14.4); None for a wrong answer."""
    right, V = gallery.label[gallery.seen] == answer, gallery.vectors
    distance, right, wrong = np.linalg.norm(V - h, axis=1), gallery.seen[right], gallery.seen[~right]
    near, far, slop, reach = distance[right].min(initial=math.inf), distance[wrong].min(), (len(h) + 16) * EPS, math.inf
    if not near < far or name == "lipschitz-margin":
        return (far - near) / 2 - 2 * slop * (far + near) if near < far else None
    for b in wrong[np.argsort(distance[wrong])]:
        if (distance[b] - near) / 2 * (1 - 1e-6) > reach:
            break
        apart, middle = V[right] - V[b], (V[right] + V[b]) / 2
        gap, away = np.linalg.norm(apart, axis=1) + 1e-300, np.linalg.norm(h - middle, axis=1)
        lost = slop * (away + np.linalg.norm(middle, axis=1) + (away + distance[b])**2 / gap + gap)
        reach = min(reach, (((h - middle) * apart).sum(1) / gap - lost).max())
    return reach

# ---- receipts (docs/receipts.md) ----
RETRIEVERS = {"half-space": "mean", "vote": "vote", "pairwise": "pairwise", "lipschitz": "plain", "lipschitz-margin": "plain"}
def text(value):
    return "unbounded" if value == math.inf else np.format_float_positional(value, trim="-")
def same(found, wanted, where):
    for key in found | wanted:
        left, right = (canonical(side.get(key, "nothing")).decode()[:300] for side in (found, wanted))
        need(canonical(found.get(key, "")) == canonical(wanted.get(key, "")), f"{where}.{key} is {left}, wanted {right}")
def once(pairs):
    need(len(dict(pairs)) == len(pairs), "a field is there twice")
    return dict(pairs)
def settings(config):
    usual = {"input": {"channel_order": "rgb", "layout": "nchw"}, "output": {"norm_bound": 1.0},
             "resize": {"order": "cheaper", "resampling": "8-bit"}}
    config = {part: usual.get(part, {}) | config[part] for part in config}
    asked = [config["input"][name] for name in ("channel_order", "layout", "channels")]
    need(asked == ["rgb", "nchw", 3], f"an encoder that takes {asked}", Declined)
    return config
def statement(answer, radius, fixed, given):
    label, hidden, noise = answer["label"], ", ".join(map(str, fixed["gallery"]["excluded"])), fixed["noise"]
    if answer["verdict"] != "certified":
        return "Nothing is certified."
    cut = radius < math.inf and Decimal(radius).quantize(Decimal("0.0001" if radius >= 0.001 else "1e-9"), ROUND_DOWN)
    change = {"vote": f"makes another label than {label} win the vote of all noisy copies",
              "pairwise": f"keeps {label} from coming before each other label in more than half of all noisy copies"}
    return (f"No change of the picture as the encoder gets it ({given['height']} × {given['width']}, pixels scaled to [0, 1]) "
            + (f"with an l2 norm below {cut:f} " if cut is not False else "")
            + change.get(answer["certificate"], f"makes the nearest item of this gallery have another label than {label}")
            + (f" (rows of the gallery hidden from this query: {hidden})" if hidden else "")
            + (f", except with probability {noise['alpha']} over the noise drawn for this answer." if noise else ". This holds "
               "always: it follows from a bound on the encoder that was verified from its weights, and no chance is involved."))
def check(content, picture, model, session, config, gallery):
    """Makes the receipt again, but for what has to be believed and what is compared with a tolerance."""
    receipt = json.loads(content, object_pairs_hook=once, parse_float=lambda number: need(False, f"the number {number}"))
    fixed, opened, answers, noise = receipt["fixed"], receipt["opened"], receipt["answers"], receipt["fixed"]["noise"]
    tie = lambda kind, value: sha(f"retrievalguard receipt {kind}1\n".encode() + canonical(value))
    body = {name: value for name, value in receipt.items() if name not in ("digest", "signature")}
    same(receipt, receipt | {"commitment": tie("commitment ", {"fixed": fixed, "opened": opened}), "digest": tie("", body)}, "receipt")
    need(settings(json.loads(fixed["encoder"]["config"])) == config, "the model config is another")
    need(fixed["certificates"] and set(fixed["certificates"]) <= set(RETRIEVERS), f"{fixed['certificates']}", Declined)
    pixels = prepare(ImageOps.exif_transpose(Image.open(io.BytesIO(picture))).convert("RGB"), config)
    believed = lambda part, *names: {name: fixed[part][name] for name in names}
    again = {"tool": fixed["tool"], "challenge": fixed["challenge"], "question": believed("question", "label"),
             "picture": believed("picture", "identity") | {"file": sha(picture), "pixels": sha(pixels.astype("<f4").tobytes())},
             "encoder": believed("encoder", "config", "components", "excess", "engine") | {
                 "model": sha(model), "dimension": gallery.facts["dimension"]}, "retriever": RETRIEVERS[fixed["certificates"][0]],
             "gallery": believed("gallery", "excluded") | gallery.facts, "certificates": [one["certificate"] for one in answers]}
    gallery.hide(fixed["gallery"]["excluded"])
    asked, names, drawn, bound = fixed["question"]["label"], [*gallery.names, None], [], config["output"]["norm_bound"]
    wanted = [names.index(asked if asked in gallery.names else None)] if asked is not None else None
    if noise:
        sigma, alpha, n, seed = float(noise["sigma"]), float(noise["alpha"]), noise["samples"], int(opened["seed"])
        need(noise["schedule"] == "fixed" and not noise["replan_bets"], "schedules, and bets that are planned again", Declined)
        need(0 < alpha < 1 and 0 < sigma < math.inf and 0 <= seed < 2**128, "alpha, sigma or the seed is out of range")
        same({"sigma": sigma}, {"sigma": gallery.sigma or sigma}, "the gallery's manifest")
        again |= {"bound": None, "noise": believed("noise", "pilot", "samples", "top_k", "seed_from") | {"sigma": text(sigma), "alpha":
                  text(alpha), "schedule": "fixed", "target_radius": None, "replan_bets": False}}
        rows, step = [], max(1, 2**22 // pixels.size)
        for stage, name, count in ((1, "pilot", noise["pilot"]), (2, "certify", n)):
            drawn.append({"stage": name, "first": 0, "end": count})
            draw = lambda at: normals(seed, fixed["picture"]["identity"].encode(), stage, range(at, min(at + step, count)), pixels.size)
            rows.append(np.concatenate([embed(session, pixels + np.float32(sigma) * draw(at).reshape(-1, *pixels.shape), config,
                                              fixed["encoder"]) for at in range(0, count, step)]))
        (pilot, near), slack, unit = map(gallery.nearest, rows), 2 * CLOSE * bound, min(sigma, float(np.float32(sigma)))
        mean, found = gallery.nearest(rows[0].mean(0)[None])[0], votes(pilot, -1, slack) - np.arange(len(names)) / 1e6
        if fixed["retriever"] == "pairwise":  # fewest losses, then most votes, then the smaller number
            found = found / 1e6 - np.array([losses(pilot, at, slack).max(1)[[0, 2, 1]] + 1e9 * (found[2, at] < 0.5)
                                            for at in range(len(names))]).T
        likely = mean <= mean.min() + slack if fixed["retriever"] == "mean" else found[2] >= found[1].max()
    else:
        need(not config["output"]["normalise"] and fixed["bound"]["mixtures"] == 1, "mixtures, or embeddings of length 1", Declined)
        h, L, error = network(model, config, pixels)
        claimed, length = float(fixed["bound"]["constant"]), np.linalg.norm
        error = error @ [length(pixels.astype(float)) + (length(h) + length(gallery.vectors, axis=1).max()) / L, 1]
        again |= {"noise": None, "bound": believed("bound", "top_k") | {"mixtures": 1, "constant": text(claimed)}}
        need(abs(claimed - L) <= 1e-6 * L, f"the constant is {claimed}, wanted {L}")
        likely = np.arange(len(names)) == gallery.nearest(h[None])[0].argmin()
    same(fixed, again, "fixed")
    for answer in answers:
        label, counted, verdict = names.index(answer["label"]), answer["counted"], answer["verdict"]
        need(label in (np.flatnonzero(likely) if wanted is None else wanted), f"the label is {answer['label']}")
        radius, own, close, kept = answer["radius"] and float(answer["radius"].replace("unbounded", "inf")), [], 1e-6, {}
        def copies(entries, found, what):
            count = np.zeros(len(names), int)
            for one in entries:
                count[names.index(one["label"])] = one["copies"]
            outside = np.flatnonzero((count < found[1]) | (found[2] < count))
            need(not len(outside), f"{what}: {[(names[i], int(count[i]), *map(int, found[1:, i])) for i in outside]}")
            return count, [{"label": names[i], "copies": int(count[i])} for i in sorted(np.flatnonzero(count), key=names.__getitem__)]
        low = lambda right, level: quantile(*lower_bound(int(right), n, level))
        if answer["certificate"] == "pairwise":
            count, kept["losses"] = copies(counted["losses"], losses(near, label, slack), "losses")
            wins = n - count.max()
            own = [unit * low(wins, alpha) * (1 - 1e-12) if 2 * wins > n else None]
        elif answer["certificate"] == "vote":
            found, first, given, right = votes(near, label, slack), votes(pilot, label, slack), counted["votes"], counted["votes"]["right"]
            count, rivals = copies([*given["rivals"], {"label": answer["label"], "copies": right}], found, "votes")
            need(count.sum() == n, f"there are {count.sum()} votes")
            kept["votes"] = {"right": right, "rule": given["rule"], "rivals": [one for one in rivals if one["label"] != answer["label"]]}
            score = {"majority": lambda right, rival: low(right, alpha), "runner-up":
                     lambda right, rival: (low(right, alpha / 2) + low(n - rival, alpha / 2)) / 2}
            scaled = lambda votes: min(int(votes / len(pilot) * n + 0.5), n)
            pairs = [(scaled(first[i, label]), scaled(np.delete(first[j], label).max())) for i, j in ((0, 0), (1, 2), (2, 1))]
            rules = [max(score, key=lambda rule: score[rule](*pair)) for pair in pairs]
            need(given["rule"] in rules, f"the rule is {given['rule']}, wanted {rules}")
            rival = np.delete(count, label).max()
            own = [unit * score[given["rule"]](right, rival) * (1 - 1e-12) if right > rival else None]
        elif noise:
            close, kept["tests"], random = CLOSE, counted["tests"], np.random.default_rng(0)
            for attempt in range(9):  # what the last digits decide may come out either way
                moved = [part + attempt * 1e-6 * bound * random.uniform(-1, 1, part.shape) for part in rows]
                radius_again, tests = half_space(gallery, label, *moved, unit, alpha, bound,
                                                 fixed["encoder"]["components"] == "non-negative", noise["top_k"])
                own.append(radius_again)
                if verdict != "certified" or radius_again is not None and abs(radius_again - radius) <= close * radius:
                    break
        else:
            kept["bound"], stated = counted["bound"], np.array([*map(float, counted["bound"]["embedding"])])
            need(stated.shape == h.shape and length(stated - h) <= 1e-6 * length(h), "the embedding is another")
            reach = reach_of(gallery, label, h, answer["certificate"])
            own = [None if reach is None else (reach - 2 * error - 4 * EPS * (abs(reach) + 2 * error)) / L * (1 - 4 * EPS)]
        told = [("misretrieved" if one is None else "certified" if one > 0 else "abstained", one) for one in own]
        need(any(verdict == name and (radius is None or one == radius or abs(one - radius) <= close * one) for name, one in told),
             f"{verdict} {radius}, wanted {told[:3]}")
        same(answer, {"certificate": answer["certificate"], "label": answer["label"], "verdict": verdict, "decision": None, "samples":
                      n if noise else 0, "radius": text(radius) if verdict == "certified" else None,
                      "statement": statement(answer, radius, fixed, config["input"]),
                      "counted": kept | {"steps": counted["steps"]}}, "answer")
    same(receipt, {"receipt": 1, "fixed": fixed, "opened": {"seed": noise and str(seed), "salt": opened["salt"]}, "drawn": drawn,
                   "answers": answers, **{name: receipt[name] for name in ("commitment", "digest", "signature")}}, "receipt")
    return ", ".join(f"{one['certificate']} {one['label']} {one['verdict']} {one['radius']}" for one in answers)
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("receipt", help="a receipt, or a folder of them")
    parser.add_argument("--model", required=True, help="ONNX file, with its config `encoder.toml` beside it")
    parser.add_argument("--config", help="the model config, if it is another file")
    parser.add_argument("--gallery", required=True)
    parser.add_argument("--picture", required=True, help="the picture, or a folder that has it under any name")
    given, worst = parser.parse_args(), 0
    walk = lambda path: [path] if not os.path.isdir(path) else sorted(
        os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    pictures = {sha(read(path)): path for path in walk(given.picture)}
    try:
        config = settings(tomllib.loads(read(given.config or os.path.join(os.path.dirname(given.model), "encoder.toml")).decode()))
        with_these = read(given.model), onnxruntime.InferenceSession(given.model), config, Gallery(given.gallery)
    except Exception as reason:
        print(f"cannot be used: {reason}")
        return 2
    for path in walk(given.receipt):
        try:
            picture = pictures.get(json.loads(read(path))["fixed"]["picture"]["file"])
            need(picture, "no picture has the digest of the receipt")
            status, said = 0, "verified: " + check(read(path), read(picture), *with_these)
        except Refused as reason:
            status, said = 1, f"refused: {reason}"
        except Exception as reason:  # whatever a malformed file leads to, it is not verified
            status, said = 2, f"cannot be checked: {type(reason).__name__}: {reason}"
        print(f"{path}: {said}", flush=True)
        worst = max(worst, status)
    return worst
if __name__ == "__main__":
    sys.exit(main())
