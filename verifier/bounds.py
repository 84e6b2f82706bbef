"""Clopper-Pearson bounds, and the whole-distribution certificate of half-spaces (theory, sections 2 and 12.1)."""
import functools, math
from statistics import NormalDist
import numpy as np
from lipschitz import EPS
RUNGS = np.array([1, 5, 10, 20, 40, 55, 65, 72, 77, 81, 85, 88, 91, 94, 96, 98, 100, 102, 104, 107, 110, 113, 116, 120,
                  125, 132, 140, 155, 180]) / 100
DEPTHS, SPREAD = np.array([5, 4.2, 3.5, 2.9, 2.4, 1.9, 1.4, .9, .4, -.2, -.8, -1.5]), np.array([0.4, 0.7, 1, 1.35])
cdf = np.vectorize(lambda z: math.erfc(-z / math.sqrt(2)) / 2, otypes=[float])

def bisect(holds, low, high, rounds):  # the lower end of the place where `holds` ends
    for _ in range(rounds):
        low, high = (middle, high) if holds(middle := (low + high) / 2) else (low, middle)
    return low

def quantile(p, q):  # the normal score of p, from the smaller of p and q = 1 - p
    if min(p, q) <= 0: return -math.inf if p <= 0 else math.inf
    return NormalDist().inv_cdf(p) if p < q else -NormalDist().inv_cdf(q)

@functools.lru_cache(None)
def lower_bound(k, n, level):  # Clopper-Pearson: p, rounded down, and 1 - p with P(Bin(n, p) >= k) = level
    if k <= 0: return 0.0, 1.0
    wins = np.arange(k, n + 1)
    ways = np.array([math.lgamma(n + 1) - math.lgamma(j + 1) - math.lgamma(n - j + 1) for j in wins])
    tail = lambda logit: np.exp(ways - wins * np.logaddexp(0, -logit) - (n - wins) * np.logaddexp(0, logit)).sum()
    logit = bisect(lambda logit: tail(logit) <= level, -700.0, 700.0, 60) - 1e-11  # lgamma is off by some 1e-10
    return 1 / (1 + math.exp(-logit)), 1 / (1 + math.exp(logit))

def half_space(gallery, answer, pilot, sample, sigma, alpha, bound, clamped, top_k):
    """The radius (None if the mean of the sample retrieves another label), and the tests that the pilot has chosen."""
    V, n, N, k, mean = gallery.vectors, len(sample), len(pilot), gallery.vectors.shape[1], pilot.mean(0)
    right, F = gallery.label[gallery.seen] == answer, bound * (1 + max(1e-12, (k + 16) * EPS))
    positive, negative, error = gallery.seen[right], gallery.seen[~right], F * (k + 8) / (2.0**24 - k - 8)
    gap, used, now = ((V - mean)**2).sum(1), min(N, 256), ((V - sample.mean(0))**2).sum(1)
    if now[negative].min() <= now[positive].min(initial=math.inf): return None, {}
    centred, near = pilot[np.arange(used) * N // used] - mean, positive[np.argsort(gap[positive], kind="stable")][:8]
    def separate(rows, shares, b):  # direction, threshold and range of the score; or what is known without looking
        weights, mixed, largest = np.asarray(shares) / 4096, len(rows) > 1, np.linalg.norm(V[[*rows, b]], axis=1).max()
        centre = weights @ V[rows]
        apart = np.linalg.norm(centre - V[b])
        if apart <= max(1e-9 * largest, 1.2e-38): return "never"
        u, spread = (centre - V[b]) / apart, mixed * weights @ ((V[rows] - centre)**2).sum(1)
        s = (centre + V[b]) @ u / 2 + spread / (2 * apart) + EPS * (k + 16) * (2 * largest + spread / apart) + EPS * (
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
        atom, least = N > 2 and scores[2] - scores[0] <= nudge, quantile(0.5 / N, 1 - 0.5 / N)
        tail = nudge if atom else np.mean(scores[min(tenth, N - 1)] - scores[:tenth])
        def below(places):  # a guess of the share of scores there
            count, depth = np.searchsorted(scores, places, "right"), (scores[0] - places) / max(tail, 1e-12 * F)
            rare = np.maximum(np.exp(-np.maximum(depth, 0)) / 2 / (N + 1), 1e-18)
            return np.where(count > 0, (count + 0.5) / (N + 1), rare)
        at = lambda ranks: scores[np.minimum(ranks.astype(int), N - 1)]
        deep, places, count = scores[0] - tail * np.log(1 + np.array([0, 0.6, 2.5, 10]) * max(n / N, 1)), [], min(96, N)
        ranks = cdf(least + (2.2 - least) * (np.arange(18) + 0.5) / 18) * N
        for place in np.sort(np.float32(np.r_[deep, low + np.arange(1, 5) / 5 * (deep[3] - low), at(ranks)] - nudge)):
            if low < place < high and (not places or place - places[-1] > np.float32(nudge)): places.append(place)
        edges = np.array([low, *places, high])
        q = np.maximum((below(edges[:-1] + 2 * nudge) + below(edges[1:])) / 2, min(-math.log(alpha) / n, 0.5))
        z = np.array([quantile(max(1 - one, 1e-12), min(one, 1 - 1e-12)) for one in q])
        points = np.append(scores[0] - tail, at((np.arange(count) + 0.5) / count * N)), np.append(
            0.5, np.full(count, (N + 0.5) / count)) / (N + 1)
        radius = counted(space, edges[1:-1], np.floor(n * (1 - below(edges[1:-1]))), max(len(places), 1))
        rank = radius if radius > -math.inf else min(scores.mean() - s, 0) - 1e-300
        return rank, radius, edges[1:-1], (edges, z), points
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
        space, places = separate([int(row)], [4096], b), np.unique(np.float32(middle - DEPTHS * deviation))
        return [row], [4096], *((space, None) if isinstance(space, str) else (
            "thresholds", (space, places[(places > space[2]) & (places < space[3])].astype(float), 12)))
    def passed(space, cells, points, scores, radius):
        if (test := wager(space, cells, points, radius))[0] is None: return True
        logs = np.cumsum(np.log1p(test[1][:, None] * (test[0](scores) - 1)), axis=1) + np.log([[.2], [.3], [.3], [.2]])
        looks = np.logaddexp.reduce(logs[:, np.unique([*range(15, n, 16), n - 1])], axis=0)
        return looks.max() - 1e-5 >= -math.log(alpha)
    # of the nearest positives, the one that looks safest against each negative: ratio, row, middle, deviation
    found = []
    for row in near:
        apart = V[negative] - V[row]
        length, middle = np.maximum(np.linalg.norm(apart, axis=1), 1e-12), (gap[negative] - gap[row]) / 2
        spread = np.sqrt(((centred @ apart.T)**2).mean(0)) + 1e-3 * length * F
        at = (middle - ((V[negative]**2).sum(1) - V[row] @ V[row]) / 2) / length
        found.append([middle / spread, np.full(len(apart), row), at, spread / length])
    best = np.take_along_axis(np.array(found), np.argmax([one[0] for one in found], 0)[None, None], 0)[0]
    order, most, least = np.lexsort((negative, best[0])), max(48, 2 * top_k) * gallery.views, math.inf
    tests = {int(negative[i]): choose(negative[i]) for i in order[:most]}
    for _, _, form, given in [*tests.values(), *(simple(negative[i], *best[1:, i]) for i in order[most:])]:
        radius, scores = math.inf if form == "always" else -math.inf, sample @ given[0][0] - error if given else None
        if form == "thresholds": radius = counted(*given[:2], (scores > given[1][:, None]).sum(1), given[2])
        for rung in given[3] if form == "betting" else []:
            if radius >= least or not passed(*given[:3], scores, rung): break
            radius = rung
        least = min(least, radius)
    return least, {b: (form, dict(zip(map(int, rows), shares))) for b, (rows, shares, form, _) in tests.items()}
