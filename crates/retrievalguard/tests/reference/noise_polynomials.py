"""Fits the polynomials of `src/noise/gaussian.rs` and prints them with their worst relative errors.

Least squares of the relative error at Chebyshev nodes, 40 digits (mpmath). Coefficients are rounded to f32 one at
a time, lowest order first; the others are fitted again around the rounded ones, so rounding is part of the fit.

    python3 noise_polynomials.py
"""

import struct

from mpmath import cos, log1p, matrix, mp, mpf, pi, qr_solve, sin, sqrt

mp.dps = 40
NODES = 64
GRID = 20000


def to_f32(value):
    return mpf(struct.unpack("f", struct.pack("f", float(value)))[0])


def relative_error(target, coefficients, point):
    return sum(c * point**k for k, c in enumerate(coefficients)) / target(point) - 1


def fit(name, target, lower, upper, count, fixed=()):
    fixed = list(fixed)
    nodes = [(lower + upper) / 2 + (upper - lower) / 2 * cos(pi * (2 * i + 1) / (2 * NODES)) for i in range(NODES)]
    while len(fixed) < count:
        rows = [[node**k / target(node) for k in range(len(fixed), count)] for node in nodes]
        right = [-relative_error(target, fixed, node) for node in nodes]
        solution, _ = qr_solve(matrix(rows), matrix(right))
        fixed.append(to_f32(solution[0]))
    grid = [lower + (upper - lower) * mpf(i) / GRID for i in range(GRID + 1)]
    worst = max(abs(relative_error(target, fixed, point)) for point in grid)
    print(f"{name}: worst relative error {float(worst):.2e} in exact arithmetic")
    print(f"[{', '.join(f'{float(c):.9e}' for c in fixed)}]\n")


def logarithm(f):
    return -2 * log1p(f) / f if f else mpf(-2)


def sine(square):
    y = sqrt(square)
    return sin(pi / 4 * y) / y if y else pi / 4


def cosine(square):
    return cos(pi / 4 * sqrt(square))


if __name__ == "__main__":
    third = mpf(1) / 3
    fit("-2 ln(1 + f) / f", logarithm, -third, third, 9, [mpf(-2)])
    fit("sin(pi y / 4) / y, in y^2", sine, mpf(0), mpf(1), 4)
    fit("cos(pi y / 4), in y^2", cosine, mpf(0), mpf(1), 5, [mpf(1)])
