"""Reference values for the modules `normal` and `binomial`.

Run from the crate's directory:

    python3 tests/reference/make_normal_binomial.py

Needs Python 3.9 or later and mpmath 1.3 or later (gmpy2 makes it faster, not different). Writes `normal.tsv` and
`binomial.tsv` beside this file, in about half a minute.

Every input is printed so that it reads back as the same double, and every value is computed at that double exactly, not
at the decimal number it stands for. The binomial tails come from exact term ratios summed as integers, a method that
shares nothing with the continued fraction of the crate; for few trials they are checked against mpmath's incomplete
beta function as well.
"""

from pathlib import Path

from mpmath import betainc, erfc, erfinv, findroot, log, loggamma, mp, mpf, nstr, sqrt

mp.dps = 70
DIGITS = 32
FOLDER = Path(__file__).resolve().parent

LEVELS = [0.5, 0.05, 0.01, 0.01 / 30, 1e-6, 1e-12]
TRIALS = [1, 2, 5, 10, 100, 1_000, 10_000, 100_000, 1_000_000]
HUGE_TRIALS = 4_000_000_000


def show(value):
    return nstr(value, DIGITS, min_fixed=0, max_fixed=0)


def write(name, header, rows):
    text = "# Written by make_normal_binomial.py; see there for the method.\n# " + "\t".join(header) + "\n"
    text += "".join("\t".join(row) + "\n" for row in rows)
    (FOLDER / name).write_text(text, encoding="ascii")


def distribution(x):
    return erfc(-mpf(x) / sqrt(2)) / 2


def lower_quantile(p):
    """The x with distribution(x) = p, for an mpf 0 < p <= 1/2."""
    if p > mpf("1e-3"):
        return sqrt(2) * erfinv(2 * p - 1)
    tail = log(1 / p)
    start = -sqrt(2 * tail - log(4 * mp.pi * tail))
    root = findroot(lambda x: log(distribution(x)) - log(p), start, tol=mpf(10) ** -120)
    assert abs(distribution(root) / p - 1) < mpf(10) ** -55
    return root


def normal_rows():
    points = [step / 4 for step in range(-152, 153)]
    points += [-37.0471, -37.5193, -25.3, -14.933337, -8.2095362, -5.9978, -0.7, -1e-3, -1e-9, -1e-300]
    points += [0.1, 0.3, 1 / 3, 8.2095362]
    for x in points:
        yield "distribution", repr(x), show(distribution(x)), show(distribution(-mpf(x)))
    tails = [10.0**-power for power in range(1, 21)] + [10.0**-power for power in range(25, 301, 25)]
    tails += [0.5, 0.49999999999999994, 0.4999999, 0.49, 0.4, 0.3, 0.25, 0.2, 0.15, 0.05, 0.025]
    tails += [0.01 / 30, 2.0**-53, 3e-17, 7e-301]
    for tail in tails:
        quantile = show(-lower_quantile(mpf(tail)))
        # `below` gives p itself, `above` gives 1 - p: both name the probability by its small side.
        yield "below", repr(tail), "-" + quantile if float(quantile) != 0 else quantile, repr(1 - tail)
        yield "above", repr(tail), quantile, repr(1 - tail)


def log_choose(n, k):
    return loggamma(n + 1) - loggamma(k + 1) - loggamma(n - k + 1)


def tail_series(successes, trials, odds):
    """P(Bin >= successes) divided by P(Bin = successes), by exact term ratios in fixed point."""
    shift = 260
    odds = int(mp.floor(odds * mpf(2) ** shift))
    term = 1 << shift
    total = term
    for count in range(successes, trials):
        term = ((term * odds) >> shift) * (trials - count) // (count + 1)
        total += term
        if term.bit_length() < shift - 210 and count > successes + 2:
            break
    return mpf(total) / mpf(2) ** shift


def log_small_tail(successes, trials, p):
    """ln P(Bin >= successes) and its derivative in ln(p/(1-p)), for 0 < successes and p not far above the mean."""
    q = 1 - p
    series = tail_series(successes, trials, p / q)
    log_point = log_choose(trials, successes) + successes * log(p) + (trials - successes) * log(q)
    return log_point + log(series), successes * q / series


def lower_bound(successes, trials, level):
    """The p with P(Bin(trials, p) >= successes) = level, and 1 - p."""
    level = mpf(level)
    if successes == 0:
        return mpf(0), mpf(1)
    if successes == trials:
        p = mp.exp(log(level) / trials)
        return p, -mp.expm1(log(level) / trials)
    # Starts left of the root, from where Newton's method on a concave function climbs without passing it.
    theta = (log(level) - log_choose(trials, successes)) / successes
    while True:
        p = 1 / (1 + mp.exp(-theta))
        log_tail, slope = log_small_tail(successes, trials, p)
        step = (log(level) - log_tail) / slope
        theta += step
        if abs(step) < mpf(10) ** -28:
            break
    p, q = 1 / (1 + mp.exp(-theta)), 1 / (1 + mp.exp(theta))
    if trials <= 1_000:
        again = betainc(successes, trials - successes + 1, 0, p, regularized=True)
        assert abs(again / level - 1) < mpf(10) ** -40, (successes, trials, level)
    return p, q


def counts(trials):
    chosen = {0, 1, 2, trials // 100, trials // 10, trials // 2, trials * 9 // 10, trials * 99 // 100, trials - 1, trials}
    return sorted(count for count in chosen if count <= trials)


def bound_rows():
    cases = [(trials, count, level) for trials in TRIALS for count in counts(trials) for level in LEVELS]
    huge_counts = (1, 40_000, HUGE_TRIALS // 2, HUGE_TRIALS - 1)
    cases += [(HUGE_TRIALS, count, level) for count in huge_counts for level in (0.5, 0.01 / 30, 1e-12)]
    for trials, count, level in cases:
        lower, lower_complement = lower_bound(count, trials, level)
        upper_complement, upper = lower_bound(trials - count, trials, level)
        values = (lower, lower_complement, upper, upper_complement)
        yield ("bounds", str(trials), str(count), repr(level), *map(show, values))
    for trials, count in ((5, 2), (1_000, 1), (1_000, 900), (100_000, 50_000)):
        for level in (0.6, 0.9):
            # P(Bin >= count) = level is P(failures >= trials - count + 1) = 1 - level, a small tail again.
            lower_complement, lower = lower_bound(trials - count + 1, trials, 1 - mpf(level))
            upper, upper_complement = lower_bound(count + 1, trials, 1 - mpf(level))
            values = (lower, lower_complement, upper, upper_complement)
            yield ("bounds", str(trials), str(count), repr(level), *map(show, values))


def tails(successes, trials, p):
    """P(Bin >= successes) and P(Bin < successes)."""
    if successes == 0:
        return mpf(1), mpf(0)
    if successes >= (trials + 1) * p:
        upper = mp.exp(log_small_tail(successes, trials, p)[0])
        return upper, 1 - upper
    lower = mp.exp(log_small_tail(trials - successes + 1, trials, 1 - p)[0])
    return 1 - lower, lower


def tail_rows():
    cases = [(1, 1, 0.3), (5, 0, 0.2), (5, 5, 0.2), (5, 3, 0.5), (10, 9, 1e-30), (10, 1, 1e-30), (100, 100, 0.001)]
    for trials in (100, 1_000, 10_000, 100_000, 1_000_000, HUGE_TRIALS):
        for p in (1e-3, 0.1, 0.5, 0.875, 0.999):
            deviation = (trials * p * (1 - p)) ** 0.5
            for scores in (-30, -8, -3, -1, 0, 0.5, 2, 6, 20, 35):
                count = round(trials * p + scores * deviation)
                if 0 < count <= trials and not (trials == HUGE_TRIALS and abs(scores) < 6):
                    cases.append((trials, count, p))
    for trials, count, p in cases:
        upper, lower = tails(count, trials, mpf(p))
        if min(upper, lower) > mpf("1e-300"):
            yield "tails", str(trials), str(count), repr(p), show(upper), show(lower)


if __name__ == "__main__":
    write("normal.tsv", ("kind", "input", "value", "complement"), normal_rows())
    write(
        "binomial.tsv",
        ("bounds: trials, successes, level, lower, 1 - lower, upper, 1 - upper; tails: trials, successes, p, P(>=), P(<)",),
        [*bound_rows(), *tail_rows()],
    )
