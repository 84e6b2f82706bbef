#!/usr/bin/env python3
"""Makes the answer of a RetrievalGuard receipt again, by other code than the tool's (docs/receipts.md, docs/theory.md).

Status 0: verified; 1: refused, with the reason; 2: a file cannot be used, or asks for what is not supported here."""
import argparse, functools, hashlib, io, json, math, os, struct, sys, tomllib
from decimal import ROUND_DOWN, Decimal
from statistics import NormalDist
import numpy as np, onnxruntime
from PIL import Image, ImageOps
CLOSE, EPS, LOW = 1e-4, 2.0**-52, 2**32 - 1  # CLOSE: how far embeddings of two engines are apart, per norm bound
class Refused(Exception): """The receipt is not what the computation gives."""
class Declined(Exception): """The receipt, or a file, cannot be checked here."""
def need(condition, reason, error=Refused):
    if not condition: raise error(reason)
def bisect(holds, low, high, rounds):  # the lower end of the place where `holds` ends
    for _ in range(rounds):
        low, high = (middle, high) if holds(middle := (low + high) / 2) else (low, middle)
    return low

# ---- noise: Philox4x32-10 and the Box-Muller transform ----
def philox(counter, key):
    (c0, c1, c2, c3), (k0, k1) = (np.atleast_1d(word).astype(np.uint64) for word in counter), key
    for _ in range(10):
        left, right = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = right >> 32 ^ c1 ^ k0, right & LOW, left >> 32 ^ c3 ^ k1, left & LOW
        k0, k1 = k0 + 0x9E3779B9 & LOW, k1 + 0xBB67AE85 & LOW
    return c0, c1, c2, c3
def chain(purpose, blocks):  # each block of 64 bits is the key of one step, whose result is mixed into the state
    state = struct.unpack("<4I", purpose)
    for block in blocks:
        state = [int(word[0]) ^ old for word, old in zip(philox(state, (block & LOW, block >> 32)), state)]
    return state
def normals(seed, name, stage, samples, pixels):  # a row per sample; the exact transform in f64, rounded to f32 once
    blocks = [int.from_bytes(name[at:at + 8], "little") for at in range(0, len(name), 8)]
    i0, i1, i2, i3 = chain(b"image identity  ", blocks + [len(name)])
    *key, third, fourth = chain(b"noise stream    ", [seed & 2**64 - 1, seed >> 64, i0 | i1 << 32, i2 | i3 << 32])
    block, sample, stage = np.arange(-(-pixels // 64) * 16)[None], np.array(samples)[:, None], fourth << 16 & LOW | stage
    words = philox((block, sample, stage, third), key)
    out = np.empty((len(sample), block.size // 16, 4, 16), np.float32)
    for half in (0, 2):
        radius, angle = words[half].astype(float), words[half + 1].astype(np.int64)
        rare, uniform = np.nonzero(radius < 2**20), (radius + 0.5) / 2.0**32  # the tail has 32 further bits
        more = philox((block[0, rare[1]], sample[rare[0], 0], stage | 256, third), key)[half].astype(float)
        uniform[rare] = (radius[rare] + (more + 0.5) / 2.0**32) / 2.0**32
        length, turn = np.sqrt(-2 * np.log(uniform)), ((angle + 2**29 & 2**30 - 1) - 2**29 + 0.5) * (math.pi / 2**31)
        pair = np.where(angle >> 31, -length, length) * np.cos(turn), length * np.sin(turn)
        for at in (0, 1):
            out[:, :, half + at] = np.where(angle >> 30 & 1, pair[1 - at], pair[at]).reshape(len(sample), -1, 16)
    return out.reshape(len(sample), -1)[:, :pixels]

# ---- the normal distribution and Clopper-Pearson bounds ----
def cdf(scores):
    return np.array([0.5 * math.erfc(-z / math.sqrt(2)) for z in scores])
def quantile(p, q):  # the normal score of p, from the smaller of p and q = 1 - p
    if min(p, q) <= 0: return -math.inf if p <= 0 else math.inf
    return NormalDist().inv_cdf(p) if p < q else -NormalDist().inv_cdf(q)
def log_beta(a, b, log_x, log_y):  # of the incomplete beta integral, by its continued fraction (Lentz), x below its mean
    x, c, m = math.exp(log_x), 1.0, 0
    d = value = 1 / (1 - (a + b) * x / (a + 1))
    while m == 0 or abs(d * c - 1) > 1e-15 and m < 100_000:
        m += 1
        for top in (m * (b - m) / (a + 2 * m - 1), -(a + m) * (a + b + m) / (a + 2 * m + 1)):
            d, c = 1 / (1 + top * x / (a + 2 * m) * d or 1e-300), 1 + top * x / (a + 2 * m) / c or 1e-300
            value *= d * c
    return math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * log_x + b * log_y + math.log(value / a)
@functools.lru_cache(None)
def lower_bound(k, n, level):  # Clopper-Pearson: p, rounded down, and 1 - p with P(Bin(n, p) >= k) = level
    def below(logit, a=k, b=n - k + 1):
        log_p, log_q = -np.logaddexp(0, -logit), -np.logaddexp(0, logit)
        if math.exp(log_p) < (a + 1) / (a + b + 2): return log_beta(a, b, log_p, log_q) <= math.log(level)
        return math.exp(log_beta(b, a, log_q, log_p)) >= 1 - level
    if k <= 0: return 0.0, 1.0
    logit = bisect(below, -700.0, 700.0, 60) - 1e-11  # lgamma is off by some 1e-10, which moves p by far less
    return 1 / (1 + math.exp(-logit)), 1 / (1 + math.exp(logit))

# ---- pictures and encoder ----
def resample(pixels, axis, resized, kept, name, eight):  # one axis; sums in the order of pixels give every bit again
    kernels = {"bilinear": (1, lambda x: max(1 - x, 0.0)), "bicubic": (2, lambda x: (1.5 * x - 2.5) * x * x + 1 if x < 1
               else (((x - 5) * x + 8) * x - 4) * -0.5 if x < 2 else 0.0)}
    pixels, rows, start = np.moveaxis(pixels, axis, 0), [], round((resized - kept) / 2)
    source, scale, wide = len(pixels), len(pixels) / resized, max(len(pixels) / resized, 1.0)
    need(name in kernels and kept <= resized, f"interpolation {name} to {resized}, of which {kept} are kept", Declined)
    for place in range(start, start + kept):
        centre, reach = (place + 0.5) * scale, kernels[name][0] * wide
        first, end = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), source)
        weights = [kernels[name][1](abs((at - centre + 0.5) * (1 / wide))) for at in range(first, end)]
        rows.append((place, [1.0]) if source == resized else (first, np.array(weights) / np.cumsum(weights)[-1]))
    table = np.array([np.pad(row[1], (0, max(len(one[1]) for one in rows) - len(row[1]))) for row in rows])
    if eight: table = np.trunc(table * 2.0**22 + np.where(table < 0, -0.5, 0.5))  # fixed point, as Pillow has it
    total = np.zeros((kept,) + pixels.shape[1:])
    for tap, weights in enumerate(table.T):
        total += pixels[np.minimum([row[0] + tap for row in rows], source - 1)] * weights[:, None, None]
    return np.moveaxis(np.clip(np.floor((total + 2.0**21) / 2.0**22), 0, 255) if eight else total, 0, axis)
def prepare(picture, config):  # the tensor in [0, 1] that noise is added to: channels, rows, columns
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
def embed(session, pictures, config, encoder):  # brought to length 1, clamped and scaled onto the ball as the receipt says
    source, bound = config["input"].get("name") or session.get_inputs()[0].name, config["output"]["norm_bound"]
    mean, std = (np.float32(config["input"][part]).reshape(-1, 1, 1) for part in ("mean", "std"))
    parts, wanted = np.array_split(pictures, -(-len(pictures) // 64)), [
        config["output"].get("name") or session.get_outputs()[0].name]
    rows = np.concatenate([session.run(wanted, {source: (part - mean) / std})[0] for part in parts]).astype(float)
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
    with open(os.path.join(*path), "rb") as file: return file.read()
class Gallery:
    def __init__(self, folder):
        other = {"shards.json", "writes.journal"} & set(os.listdir(folder))
        need(not other, f"a gallery with {other}: export it and import it into another folder", Declined)
        stored, self.sigma = np.load(os.path.join(folder, "vectors.npy")), json.loads(read(folder, "manifest.json")).get("sigma")
        items = [json.loads(line) for line in read(folder, "items.jsonl").splitlines()]
        lines = b"".join(canonical([one["identity"], one["label"], one.get("view")]) + b"\n" for one in items)
        self.vectors, self.views = stored.astype(float), len({one.get("view") for one in items})
        self.facts = {"rows": len(stored), "dimension": stored.shape[1], "views": self.views, "items": sha(lines),
                      "vectors": sha(stored.astype("<f4").tobytes())}
        self.names = {one["label"]: None for one in items}
        self.names = {name: number for number, name in enumerate(self.names)}
        self.label = np.array([self.names[one["label"]] for one in items])
        self.unique, self.twin = np.unique(self.vectors, axis=0, return_inverse=True)
    def hide(self, rows):
        whole = sorted({row - row % self.views + view for row in rows for view in range(self.views)})
        need(rows == whole and set(rows) <= set(range(len(self.label))), "the hidden rows are not whole items")
        self.seen = np.setdiff1d(np.arange(len(self.label)), rows)
    def nearest(self, rows):  # distance of each embedding from each label; the last column is a label that no row has
        order = self.seen[np.argsort(self.label[self.seen], kind="stable")]
        held, starts = np.unique(self.label[order], return_index=True)
        near, squares = np.full((len(rows), len(self.names) + 1), np.inf), (self.unique**2).sum(1)
        for at in range(0, len(rows), step := max(1, 2**24 // len(order))):
            squared = (rows[at:at + step]**2).sum(1)[:, None] + squares - 2 * rows[at:at + step] @ self.unique.T
            distance = np.sqrt(np.maximum(squared, 0))[:, self.twin.ravel()[order]]  # equal for equal vectors
            near[at:at + step, held] = np.minimum.reduceat(distance, starts, axis=1)
        return near
def losses(near, answer, slack):  # in how many copies each label is at least as near: counted, at least, at most
    ahead = near - np.minimum(near[:, [answer]], 1e300)
    ahead[ahead == 0] = -np.inf  # a tie is lost for sure: distances of equal vectors are equal
    ahead[:, answer] = np.inf
    return np.array([(ahead <= limit).sum(0) for limit in (0, -slack, slack)])
def votes(near, answer, slack):  # copies that vote for each label, likewise; a tie is no vote for the answer
    near, others = near.copy(), np.delete(near, answer, 1).min(1)
    near[near[:, answer] == others, answer] = np.inf
    close, winner = near <= near.min(1, keepdims=True) + slack, near.argmin(1)
    sure, count = close.sum(1) == 1, lambda cells: np.bincount(cells, minlength=near.shape[1])
    return np.array([count(winner), count(winner[sure]), count(winner[sure]) + close[~sure].sum(0)])

# ---- half-space: the whole-distribution certificate (theory, sections 2 and 12.1) ----
RUNGS = np.array([1, 5, 10, 20, 40, 55, 65, 72, 77, 81, 85, 88, 91, 94, 96, 98, 100, 102, 104, 107, 110, 113, 116, 120, 125,
                  132, 140, 155, 180]) / 100
DEPTHS, SPREAD = np.array([5, 4.2, 3.5, 2.9, 2.4, 1.9, 1.4, .9, .4, -.2, -.8, -1.5]), np.array([0.4, 0.7, 1, 1.35])
def half_space(gallery, answer, pilot, sample, sigma, alpha, bound, clamped, top_k):
    """The radius (None if the mean of the sample retrieves another label), and the tests that the pilot has chosen."""
    V, n, N, k, mean = gallery.vectors, len(sample), len(pilot), gallery.vectors.shape[1], pilot.mean(0)
    right, F = gallery.label[gallery.seen] == answer, bound * (1 + max(1e-12, (k + 16) * EPS))
    positive, negative, error = gallery.seen[right], gallery.seen[~right], F * (k + 8) / (2.0**24 - k - 8)
    gap, used, now = ((V - mean)**2).sum(1), min(N, 256), ((V - sample.mean(0))**2).sum(1)
    if now[negative].min() <= now[positive].min(initial=math.inf): return None, {}
    centred, near = pilot[np.arange(used) * N // used] - mean, positive[np.argsort(gap[positive], kind="stable")][:8]
    def separate(rows, shares, b):  # direction, threshold and range of the score; or what is known without looking
        points, weights, wrong, mixed = V[rows], np.asarray(shares) / 4096, V[b], len(rows) > 1
        centre, largest = weights @ points, np.linalg.norm(V[[*rows, b]], axis=1).max()
        apart = np.linalg.norm(centre - wrong)
        if apart <= max(1e-9 * largest, 1.2e-38): return "never"
        u, spread = (centre - wrong) / apart, mixed * weights @ ((points - centre)**2).sum(1)
        s = (centre + wrong) @ u / 2 + spread / (2 * apart) + EPS * (k + 16) * (2 * largest + spread / apart) + EPS * (
            8 + mixed * 2 * len(rows) * largest / apart) * (F + 2 * largest)
        ends = [min(F, F * (np.linalg.norm(np.maximum(side * u, 0)) + 1e-140)) if clamped else F for side in (-1, 1)]
        return "always" if s < -ends[0] else "never" if s >= ends[1] else (u, s, -ends[0], ends[1])
    def counted(space, places, counts, share):  # the largest radius that counts of scores above thresholds show
        z = np.array([quantile(*lower_bound(int(count), n, alpha / share)) for count in counts])
        z = np.maximum.accumulate((z - 1e-13 * (1 + np.minimum(np.abs(z), 1e300)))[::-1])[::-1]
        (_, s, low, high), widths = space, np.diff([space[2], *places])
        shown = lambda radius: widths @ cdf(z - radius / sigma) + low - 1e-12 * max(-low, high) > s
        return bisect(shown, 0.0, 40 * sigma, 36) if shown(0.0) else -math.inf
    def look(space):  # the pilot's scores: rank, radius of counting, thresholds, cells, points that bets are planned on
        u, s, low, high = space
        scores, nudge, tenth = np.sort(pilot @ u - error), 3 * error * max(-low, high) / F, -(-N // 10)
        atom, floor = N > 2 and scores[2] - scores[0] <= nudge, min(-math.log(alpha) / n, 0.5)
        tail = nudge if atom else np.mean(scores[min(tenth, N - 1)] - scores[:tenth])
        def below(places):
            count, depth = np.searchsorted(scores, places, "right"), (scores[0] - places) / max(tail, 1e-12 * F)
            return np.where(count > 0, count + 0.5, np.maximum(np.exp(-np.maximum(depth, 0)) / 2, 1e-18 * (N + 1))) / (N + 1)
        at = lambda ranks: scores[np.minimum(ranks.astype(int), N - 1)]
        deep, least = scores[0] - tail * np.log(1 + np.array([0, .6, 2.5, 10]) * max(n / N, 1)), quantile(.5 / N, 1 - .5 / N)
        ranks, places = cdf(least + (2.2 - least) * (np.arange(18) + 0.5) / 18) * N, []
        spread = low + np.arange(1, 5) / 5 * (deep[3] - low)
        for place in np.sort(np.float32(np.concatenate([deep, spread, at(ranks)]) - nudge)):
            if low < place < high and (not places or place - places[-1] > np.float32(nudge)): places.append(place)
        edges, mass, count = np.array([low, *places, high]), 0.5 / (N + 1), min(96, N)
        under = (below(edges[:-1] + 2 * nudge) + below(edges[1:])) / 2
        z = np.array([quantile(max(min(1 - q, 1 - floor), 1e-12), min(max(q, floor), 1 - 1e-12)) for q in under])
        points = np.append(scores[0] - tail, at((np.arange(count) + 0.5) / count * N))
        radius = counted(space, edges[1:-1], np.floor(n * (1 - below(edges[1:-1]))), max(len(places), 1))
        return (radius if radius > -math.inf else min(scores.mean() - s, 0) - 1e-300, radius, edges[1:-1], (edges, z),
                (points, np.append(mass, np.full(count, (1 - mass) / count))))
    def wager(space, cells, points, radius):  # what scores are worth (None: no need to look), bets, growth on the pilot
        (edges, z), (scores, mass), shift, widths = cells, points, radius / sigma, np.diff(cells[0])
        with np.errstate(over="ignore", invalid="ignore"):
            kappa = np.exp(shift * z - shift**2 / 2)
            hurdle = space[1] - edges[0] + widths @ (kappa * cdf(z) - cdf(z - shift) + 1e-13 * (1 + kappa))
        if hurdle <= 0: return None, None, math.inf
        if not hurdle < math.inf: return np.zeros_like, np.full(4, 0.99), 0.0
        worth = lambda scores: np.interp(scores, edges, np.append(0, np.cumsum(kappa * widths))) / hurdle
        gain = worth(scores) - 1
        rises = lambda bet: (mass * gain / (1 + bet * gain)).sum() > 0
        if not rises(0.0): return worth, np.array([0.02, 0.05, 0.1, 0.2]), 0.0
        best = 0.99 if rises(0.99) else bisect(rises, 0.0, 0.99, 16)
        return worth, np.minimum(best * SPREAD, 0.99), (mass * np.log1p(best * gain)).sum()
    def mixture(b):  # shares of positives that together have about the largest ratio of mean to deviation
        apart, ahead, weights = V[near] - V[b], (gap[b] - gap[near]) / 2, np.zeros(len(near))
        gram = (apart @ centred.T) @ (centred @ apart.T) / used + 1e-4 * F**2 * apart @ apart.T
        for i in [*range(len(near))] * 60:
            weights[i] = max((ahead[i] - gram[i] @ weights) / max(gram[i, i], 1e-300) + weights[i], 0)
        shares = np.floor(weights / max(weights.sum(), 1e-300) * 4096).astype(int)
        rows, shares = near[shares > 40], shares[shares > 40]
        if len(rows) > 1: shares[np.flatnonzero(shares == shares.max())[-1]] += 4096 - shares.sum()
        return [(rows, shares)] if len(rows) > 1 else []
    def choose(b):  # positives, shares, form and the rest of the test of a dangerous negative
        def hope(row):
            if isinstance(space := separate([row], [4096], b), str): return math.inf if space == "always" else -math.inf
            deviation = np.sqrt(((pilot @ space[0] - error - mean @ space[0])**2).mean())
            return (mean @ space[0] - space[1]) / (deviation + 1e-3 * F)
        found = []
        for choice in [([row], [4096]) for row in sorted(near, key=hope, reverse=True)[:3]] + mixture(b):
            if (space := separate(*choice, b)) == "always": return *choice, space, None
            if space != "never": found.append((choice, space, look(space)))
        if not found: return [], [], "never", None
        choice, space, (_, counting, places, cells, points) = max(found, key=lambda one: one[2][0])
        reaches = lambda radius: n * wager(space, cells, points, radius)[2] >= -math.log(alpha) - math.log(0.3)
        low, high, hopeful = 1e-3 * sigma, 2 * sigma, reaches(1e-3 * sigma)
        while hopeful and reaches(high) and high < 40 * sigma: low, high = high, 2 * high
        centre = bisect(reaches, low, high, 8) if hopeful else -math.inf
        if counting > centre: return *choice, "thresholds", (space, places, len(places))
        return *choice, "betting", (space, cells, points, (centre if hopeful else 0.1 * sigma) * RUNGS)
    def simple(b, row, middle, deviation):  # the test of a negative that looks harmless
        if isinstance(space := separate([int(row)], [4096], b), str): return None, None, space, None
        places = np.unique(np.float32(middle - DEPTHS * deviation)).astype(float)
        return None, None, "thresholds", (space, places[(places > space[2]) & (places < space[3])], 12)
    def passed(space, cells, points, scores, radius):
        if (test := wager(space, cells, points, radius))[0] is None: return True
        logs = np.cumsum(np.log1p(test[1][:, None] * (test[0](scores) - 1)), axis=1) + np.log([[.2], [.3], [.3], [.2]])
        looks = np.logaddexp.reduce(logs[:, np.unique([*range(15, n, 16), n - 1])], axis=0)
        return looks.max() - 1e-5 >= -math.log(alpha)
    wrong, found, least = V[negative], [], math.inf
    for row in near:
        apart, ahead = np.maximum(np.linalg.norm(wrong - V[row], axis=1), 1e-12), (gap[negative] - gap[row]) / 2
        spread = np.sqrt(((centred @ (wrong - V[row]).T)**2).mean(0)) + 1e-3 * apart * F
        middle = (ahead + ((V[row]**2).sum() - (wrong**2).sum(1)) / 2) / apart
        found.append([ahead / spread, np.full(len(wrong), row), middle, spread / apart])
    best = np.take_along_axis(np.array(found), np.argmax([one[0] for one in found], 0)[None, None], 0)[0]
    order, most = np.lexsort((negative, best[0])), max(48, 2 * top_k) * gallery.views
    tests = {int(negative[i]): choose(negative[i]) for i in order[:most]}
    for _, _, form, given in [*tests.values(), *(simple(negative[i], *best[1:, i]) for i in order[most:])]:
        radius, scores = math.inf if form == "always" else -math.inf, sample @ given[0][0] - error if given else None
        if form == "thresholds":
            radius = counted(*given[:2], (scores > given[1][:, None]).sum(1), given[2])
        for rung in given[3] if form == "betting" else []:
            if radius >= least or not passed(*given[:3], scores, rung): break
            radius = rung
        least = min(least, radius)
    return least, tests

# ---- Lipschitz encoders: the ONNX graph in f64, its constant and its rounding (theory, section 14) ----
def integers(data):  # of variable length, each with the place behind it
    value = shift = 0
    for place, byte in enumerate(data, 1):
        value, shift = value | (byte & 127) << shift, shift + 7
        if byte < 128:
            yield value - (value >> 63 << 64), place
            value = shift = 0
def message(data):  # the fields of a protobuf message: lists of integers or of byte strings
    found, data = {}, memoryview(data)
    while data:
        key, place = next(integers(data))
        value, more = next(integers(data[place:])) if key & 7 in (0, 2) else ({1: 8, 5: 4}[key & 7], 0)
        data = data[place + more:]
        if key & 7: value, data = bytes(data[:value]), data[value:]
        found.setdefault(key >> 3, []).append(value)
    return found
def listed(parts):
    return [one for part in parts for one in ([part] if isinstance(part, int) else [one for one, _ in integers(part)])]
@functools.lru_cache(None)
def residual_norm(model, kernel, scale):  # at least that of D^1/2 A D^1/2, |A| the autocorrelations over all offsets
    K, D = graph_of(model)[0][kernel], graph_of(model)[0].get(scale, np.ones(1)).ravel()
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
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), pads[::2], pads[1::2])), K.shape[2:], (2, 3))
    return np.moveaxis(np.tensordot(windows[:, :, ::stride[0], ::stride[1]], K, ((1, 4, 5), (1, 2, 3))), 3, 1)
@functools.lru_cache(None)
def graph_of(model):  # tensors by name, and of each node operator, inputs, output, attributes
    names = lambda one, field: [part.decode() for part in one.get(field, [])]
    graph, tensors, nodes = message(message(model)[7][0]), {}, []
    for one in map(message, graph[5]):
        need(one[2][0] in (1, 7) and 9 in one, "tensors in other files, or not of f32 or integers", Declined)
        kinds = ("<f4", float) if one[2][0] == 1 else ("<i8", int)
        tensors[names(one, 8)[0]] = np.frombuffer(one[9][0], kinds[0]).astype(kinds[1]).reshape(listed(one.get(1, [])))
    for one in map(message, graph[1]):
        said = {names(part, 1)[0]: part[3][0] if 3 in part else listed(part.get(8, [])) for part in map(message, one.get(5, []))}
        need(names(one, 7) in ([], [""]), "operators of another domain", Declined)
        nodes.append((names(one, 4)[0], names(one, 1), names(one, 2)[0], said))
    return tensors, nodes, names(message(graph[12][0]), 1)[0]
def network(model, config, pixels):  # the embedding, its constant L, its forward error at pictures of norm N: (a, b) of a N + b
    need({*config["input"]["std"], 1} == {1} and {*config["input"]["mean"], 0} == {0}, "mean and std without noise", Declined)
    (tensors, nodes, output), one, gamma = graph_of(model), np.array([0.0, 1.0]), lambda terms: terms * EPS / (2 - terms * EPS)
    (x, L, size, error), rest = (pixels[None].astype(float), 1.0, one[::-1], 0 * one), list(nodes)
    at = next(name for name in nodes[0][1] if name not in tensors)
    while rest:  # the graph is one chain of layers
        operator, inputs, name, said = rest.pop(0)
        known, stride, pads = [tensors.get(one) for one in inputs[1:]], said.get("strides", [1, 1]), said.get("pads", [0] * 4)
        need(inputs[0] == at and not any(part is None for part in known), f"the node {name}", Declined)
        if operator == "Conv" and [node[0] for node in rest[:4]] == ["Relu", "Mul", "ConvTranspose", "Sub"]:
            (relu, mul, back, sub), rest = rest[:4], rest[4:]  # x - K^T D relu(K x + b): the same K twice, D at most 2/T
            (K, bias), D = known, tensors[mul[1][1]]
            need(relu[1] == [name] and mul[1][0] == relu[2] and back[1] == [mul[2], inputs[1]] and sub[1] == [at, back[2]] and
                 back[3] == said and set(said) <= {"kernel_shape", "strides", "pads", "group"} and stride == [1, 1] and
                 said.get("group", 1) == 1 and D.shape == (1, len(K), 1, 1) and D.min() >= 0, f"{sub[2]} is no residual layer")
            inner = D * np.maximum(convolve(x, K, stride, pads) + bias.reshape(1, -1, 1, 1), 0)
            turned = [side - 1 - pad for side, pad in zip(K.shape[2:] * 2, pads)]
            value = x - convolve(inner, K[:, :, ::-1, ::-1].swapaxes(0, 1), stride, turned)
            beta, norm, most = residual_norm(model, inputs[1], mul[1][1]), math.sqrt(residual_norm(model, inputs[1], "")), D.max()
            need(beta <= 2.00001 and value.shape == x.shape, f"{sub[2]}: the norm of D^1/2 K, squared, may be {beta}, wanted 2")
            spread = math.sqrt(np.abs(K).sum((1, 2, 3)).max() * np.abs(K).sum((0, 2, 3)).max()) * (1 + K.size * EPS)
            shift, factor, name = np.linalg.norm(bias) * math.sqrt(x[0, 0].size) * one, max(1.0, beta - 1), sub[2]
            first = gamma(K[0].size + 2) * (spread * (size + error) + shift)  # rounding of each step, and its norm
            inner = norm * (size + error) + shift + first
            local = norm * most * (first + gamma(1) * inner) + gamma(K[:, 0].size + 1) * spread * most * inner + 1e-290 * one
            error = error * factor + local + gamma(2) * (size + error + norm * most * inner)
            x, L, size = value, L * factor, size * factor + norm * most * shift
        elif operator in ("Conv", "Gemm") and set(said) <= {"kernel_shape", "strides", "pads", "group", "transB"}:
            (K, bias), group = (known + [np.zeros(1)])[:2], said.get("group", 1)
            K = K if operator == "Conv" else (K if said.get("transB") else K.T)[:, :, None, None]
            K = np.concatenate([np.pad(part, [(0, 0), (i * K.shape[1], (group - 1 - i) * K.shape[1]), (0, 0), (0, 0)])
                                for i, part in enumerate(np.split(K, group))])
            need(K.shape[2] <= stride[0] and K.shape[3] <= stride[1], "overlapping windows outside of residual layers", Declined)
            value = convolve(x.reshape(x.shape + (1,) * (4 - x.ndim)), K, stride, pads)
            norm = np.linalg.norm(K.reshape(len(K), -1), 2) * (1 + 1e-12) + K.size * EPS
            bias = np.broadcast_to(bias.reshape(1, -1, 1, 1), value.shape)
            x, shift = (value + bias).reshape(value.shape[:x.ndim]), np.linalg.norm(bias) * one
            error = norm * error + gamma(K[0].size + 2) * (np.linalg.norm(K) * (size + error) + shift) + 1e-290 * one
            L, size = L * norm, norm * size + shift
        else:
            moves = {"Relu": lambda: np.maximum(x, 0), "Transpose": lambda: x.transpose(said["perm"]),
                     "Flatten": lambda: x.reshape(len(x), -1), "Pad": lambda: np.pad(x, known[0].reshape(2, -1).T), "Reshape":
                     lambda: x.reshape([x.shape[place] if side == 0 else side for place, side in enumerate(known[0])])}
            need(operator in moves and set(said) <= {"perm", "axis"} and said.get("axis", 1) == 1 and len(known) < 2,
                 f"the operator {operator} with {said} without noise", Declined)
            x = moves[operator]()
        at = name
    need(at == (config["output"].get("name") or output), "an output in the middle of the graph", Declined)
    return x.ravel(), L * (1 + 1e-13), error * (1 + 1e-9)
def reach_of(gallery, answer, h, name):  # how far h may move, less the rounding (theory, 14.2, 14.4); None if it is wrong
    right, V = gallery.label[gallery.seen] == answer, gallery.vectors
    distance, right, wrong = np.linalg.norm(V - h, axis=1), gallery.seen[right], gallery.seen[~right]
    near, far, slop, reach = distance[right].min(initial=math.inf), distance[wrong].min(), (len(h) + 16) * EPS, math.inf
    if not near < far: return None
    if name == "lipschitz-margin": return (far - near) / 2 - 2 * slop * (far + near)
    for b in wrong[np.argsort(distance[wrong])]:
        if (distance[b] - near) / 2 * (1 - 1e-6) > reach: break
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
        left, right = (canonical(side.get(key, "nothing")).decode() for side in (found, wanted))
        need(left == right, f"{where}.{key} is {left:.300}, wanted {right:.300}")
def once(pairs):
    need(len(dict(pairs)) == len(pairs), "a field is there twice")
    return dict(pairs)
def settings(config):  # with every default
    usual = {"input": {"channel_order": "rgb", "layout": "nchw"}, "output": {"norm_bound": 1.0},
             "resize": {"order": "cheaper", "resampling": "8-bit"}}
    config = {part: usual.get(part, {}) | config[part] for part in config}
    asked = [config["input"][name] for name in ("channel_order", "layout", "channels")]
    need(asked == ["rgb", "nchw", 3], f"an encoder that takes {asked}", Declined)
    return config
def statement(answer, radius, fixed, given):
    if answer["verdict"] != "certified": return "Nothing is certified."
    label, hidden, noise = answer["label"], ", ".join(map(str, fixed["gallery"]["excluded"])), fixed["noise"]
    cut = radius < math.inf and Decimal(radius).quantize(Decimal("0.0001" if radius >= 0.001 else "1e-9"), ROUND_DOWN)
    change = {"vote": f"makes another label than {label} win the vote of all noisy copies",
              "pairwise": f"keeps {label} from coming before each other label in more than half of all noisy copies"}.get(
        answer["certificate"], f"makes the nearest item of this gallery have another label than {label}")
    return (f"No change of the picture as the encoder gets it ({given['height']} × {given['width']}, pixels scaled to [0, 1]) "
            + (f"with an l2 norm below {cut:f} " if radius < math.inf else "") + change
            + (f" (rows of the gallery hidden from this query: {hidden})" if hidden else "")
            + (f", except with probability {noise['alpha']} over the noise drawn for this answer." if noise else ". This holds "
               "always: it follows from a bound on the encoder that was verified from its weights, and no chance is involved."))
def check(content, picture, model, session, config, gallery):
    """Makes the receipt again, but for what has to be believed and what is compared with a tolerance."""
    receipt = json.loads(content, object_pairs_hook=once, parse_float=lambda number: need(False, f"the number {number}"))
    fixed, opened, answers, noise = receipt["fixed"], receipt["opened"], receipt["answers"], receipt["fixed"]["noise"]
    tie = lambda kind, value: sha(f"retrievalguard receipt {kind}1\n".encode() + canonical(value))
    body = {name: value for name, value in receipt.items() if name not in ("digest", "signature")}
    bound_to = tie("commitment ", {"fixed": fixed, "opened": opened}) if noise else None
    same(receipt, receipt | {"commitment": bound_to, "digest": tie("", body)}, "receipt")
    need(set(fixed["certificates"]) <= set(RETRIEVERS), f"certificates {fixed['certificates']}", Declined)
    need(settings(json.loads(fixed["encoder"]["config"])) == config, "the model config is another")
    pixels = prepare(ImageOps.exif_transpose(Image.open(io.BytesIO(picture))).convert("RGB"), config)
    again = {"picture": {"file": sha(picture), "pixels": sha(pixels.astype("<f4").tobytes())}, "gallery": gallery.facts,
             "encoder": {"model": sha(model), "dimension": gallery.facts["dimension"]}}
    gallery.hide(fixed["gallery"]["excluded"])
    names, bound, drawn = [*gallery.names, None], config["output"]["norm_bound"], []
    if noise:
        sigma, alpha, n, seed = float(noise["sigma"]), float(noise["alpha"]), noise["samples"], int(opened["seed"])
        need(noise["schedule"] == "fixed" and not noise["replan_bets"], "schedules, and bets that are planned again", Declined)
        need(0 < alpha < 1 and gallery.sigma in (None, sigma) and 0 <= seed < 2**128, "alpha, sigma or seed")
        again["noise"], rows, step = {"sigma": text(sigma), "alpha": text(alpha), "target_radius": None}, [], 2**22 // pixels.size + 1
        for stage, name, count in ((1, "pilot", noise["pilot"]), (2, "certify", n)):
            drawn.append({"stage": name, "first": 0, "end": count})
            draw = lambda at: normals(seed, fixed["picture"]["identity"].encode(), stage, range(at, min(at + step, count)),
                                      pixels.size).reshape(-1, *pixels.shape)
            rows.append(np.concatenate([embed(session, pixels + np.float32(sigma) * draw(at), config, fixed["encoder"])
                                        for at in range(0, count, step)]))
        (pilot, near), slack, unit = map(gallery.nearest, rows), 2 * CLOSE * bound, min(sigma, float(np.float32(sigma)))
        mean, found = gallery.nearest(rows[0].mean(0)[None])[0], votes(pilot, -1, slack) - np.arange(len(names)) / 1e6
        if fixed["retriever"] == "pairwise":  # fewest losses, then most votes, then the smaller number
            found = found / 1e6 - np.array([losses(pilot, at, slack).max(1)[[0, 2, 1]] + 1e9 * (found[2, at] < 0.5)
                                            for at in range(len(names))]).T
        likely = mean <= mean.min() + slack if fixed["retriever"] == "mean" else found[2] >= found[1].max()
    else:
        need(not config["output"]["normalise"] and fixed["bound"]["mixtures"] == 1, "mixtures, or embeddings of length 1", Declined)
        (h, L, error), claimed, length = network(model, config, pixels), float(fixed["bound"]["constant"]), np.linalg.norm
        error = error @ [length(pixels.astype(float)) + (length(h) + length(gallery.vectors, axis=1).max()) / L, 1]
        need(abs(claimed - L) <= 1e-6 * L, f"the constant is {claimed}, wanted {L}")
        again["bound"], likely = {"constant": text(claimed)}, np.arange(len(names)) == gallery.nearest(h[None])[0].argmin()
    for part in ("picture", "gallery", "encoder", "noise" if noise else "bound"):
        same(fixed[part], fixed[part] | again[part], part)
    same(fixed, fixed | {"certificates": [answer["certificate"] for answer in answers], "bound" if noise else "noise": None,
                         "retriever": RETRIEVERS[fixed["certificates"][0]]}, "fixed")
    for answer in answers:
        label, counted, verdict, asked = names.index(answer["label"]), answer["counted"], answer["verdict"], fixed["question"]["label"]
        need(likely[label] if asked is None else answer["label"] == (asked if asked in names else None), f"label {answer['label']}")
        radius, own, kept = answer["radius"] and float(answer["radius"].replace("unbounded", "inf")), [], {}
        close, above = 1e-6, 1e-9  # how much below and above its own the checker accepts a radius
        low = lambda right, level: quantile(*lower_bound(int(right), n, level))
        def copies(entries, found, what):
            count = np.zeros(len(names), int)
            for one in entries: count[names.index(one["label"])] = one["copies"]
            outside = np.flatnonzero((count < found[1]) | (found[2] < count))
            need(not len(outside), f"{what}: {[(names[i], int(count[i]), *map(int, found[1:, i])) for i in outside]}")
            return count, [{"label": names[i], "copies": int(count[i])} for i in sorted(np.flatnonzero(count), key=names.__getitem__)]
        if answer["certificate"] == "pairwise":
            count, kept["losses"] = copies(counted["losses"], losses(near, label, slack), "losses")
            own = [unit * low(n - count.max(), alpha) * (1 - 1e-12) if 2 * count.max() < n else None]
        elif answer["certificate"] == "vote":
            first, given = votes(pilot, label, slack), counted["votes"]
            count, rivals = copies([*given["rivals"], {"label": names[label], "copies": given["right"]}], votes(near, label, slack), "votes")
            score = {"majority": lambda right, rival: low(right, alpha), "runner-up":
                     lambda right, rival: (low(right, alpha / 2) + low(n - rival, alpha / 2)) / 2}
            scaled = lambda votes: min(int(votes / len(pilot) * n + 0.5), n)
            pairs = [(scaled(first[i, label]), scaled(np.delete(first[j], label).max())) for i, j in ((0, 0), (1, 2), (2, 1))]
            rules, (right, rival) = [max(score, key=lambda rule: score[rule](*pair)) for pair in pairs], (
                count[label], np.delete(count, label).max())
            need(given["rule"] in rules and count.sum() == n, f"{given['rule']} of {count.sum()} votes, wanted {rules} of {n}")
            kept["votes"] = {"right": int(right), "rule": given["rule"], "rivals": [one for one in rivals if one["label"] != names[label]]}
            own = [unit * score[given["rule"]](right, rival) * (1 - 1e-12) if right > rival else None]
        elif noise:
            close, above, kept["tests"], random = 1e-5, 1e-5, counted["tests"], np.random.default_rng(0)
            given = {test["row"]: (test["form"], {one["row"]: one["share"] for one in test["positives"]}) for test in kept["tests"]}
            for attempt in range(9):  # what the last digits decide may come out either way
                moved = [part + attempt * 1e-6 * bound * random.uniform(-1, 1, part.shape) for part in rows]
                found, tests = half_space(gallery, label, *moved, unit, alpha, bound,
                                          fixed["encoder"]["components"] == "non-negative", noise["top_k"])
                agree = found is None or set(tests) == set(given) and all(
                    form == given[row][0] and {int(one) for one in rows_of} == set(given[row][1]) and all(
                        abs(share - given[row][1][int(one)]) <= 41 for one, share in zip(rows_of, shares))
                    for row, (rows_of, shares, form, _) in tests.items())
                own += [found] if agree else []
                if agree and (radius is None or found is not None and abs(found - radius) <= close * radius): break
            need(own, "the tests of dangerous rows are not those that the pilot chooses")
        else:
            kept["bound"], stated = counted["bound"], np.array([*map(float, counted["bound"]["embedding"])])
            need(stated.shape == h.shape and length(stated - h) <= 1e-6 * length(h), "the embedding is another")
            same(kept["bound"], kept["bound"] | {"constant": text(claimed)}, "bound")
            need(error / 9 <= (told := float(kept["bound"]["forward_error"])) <= error * 9, f"the rounding is {told}, wanted {error}")
            reach = reach_of(gallery, label, h, answer["certificate"])
            own = [None if reach is None else (reach - 2 * error - 4 * EPS * (abs(reach) + 2 * error)) / L * (1 - 4 * EPS)]
        told = [("misretrieved" if one is None else "certified" if one > 0 else "abstained", one) for one in own]
        need(any(verdict == name and (radius is None or one == radius or one * (1 - close) <= radius <= one * (1 + above))
                 for name, one in told), f"{verdict} {radius}, wanted {told[:3]}")
        same(answer, {"certificate": answer["certificate"], "label": answer["label"], "verdict": verdict, "decision": None,
                      "samples": n if noise else 0, "radius": text(radius) if verdict == "certified" else None,
                      "statement": statement(answer, radius, fixed, config["input"]), "counted": kept | {"steps": counted["steps"]}},
             "answer")
    same(receipt, {"receipt": 1, "fixed": fixed, "opened": noise and {"seed": str(seed), "salt": opened["salt"]}, "drawn": drawn,
                   "answers": answers, **{name: receipt[name] for name in ("commitment", "digest", "signature")}}, "receipt")
    return ", ".join(f"{one['certificate']} {one['label']} {one['verdict']} {one['radius']}" for one in answers)
def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("receipt", help="a receipt, or a folder of them")
    for name, what in (("model", "ONNX file, `encoder.toml` beside it"), ("gallery", "its folder"), ("picture", "or a folder of them")):
        parser.add_argument("--" + name, required=True, help=what)
    given, worst, runs = parser.parse_args(), 0, []
    walk = lambda path: [path] if not os.path.isdir(path) else sorted(
        os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    pictures = {sha(read(path)): path for path in walk(given.picture)}
    for path in walk(given.receipt):
        try:
            if not runs:
                config = settings(tomllib.loads(read(os.path.dirname(given.model), "encoder.toml").decode()))
                runs = [read(given.model), onnxruntime.InferenceSession(given.model), config, Gallery(given.gallery)]
            wanted = json.loads(read(path))["fixed"]["picture"]["file"]
        except Exception as reason: wanted, status, said = None, 2, f"cannot be used: {type(reason).__name__}: {reason}"
        try:
            if wanted: need(wanted in pictures, "no picture has the digest of the receipt")
            if wanted: status, said = 0, "verified: " + check(read(path), read(pictures[wanted]), *runs)
        except (Declined, OSError) as reason: status, said = 2, f"cannot be checked here: {reason}"
        except Exception as reason: status, said = 1, f"refused: {type(reason).__name__ * (type(reason) != Refused)} {reason}"
        print(f"{path}: {said}", flush=True)
        worst = max(worst, status)
    return worst
if __name__ == "__main__":
    sys.exit(main())
