"""Reference values and derivatives of `theory.solve_logistic`, `solve_ridge` and `solve_lda`, by mpmath alone.

    python make_theory_reference.py [sweep] [derivatives]

writes `theory_sweep.json` and `theory_derivatives.json` next to this file. Points that a file already holds are kept,
so that an interrupted run can be resumed; delete a file to make it anew. Nothing is imported from the package, and no
numerical method is shared with it:

- Expectations over the spectrum are Gauss hypergeometric functions of mpmath (the package sums over atoms). Their
  values must satisfy three identities, see `Spectrum.moments`.
- The three equations of logistic regression are integrated over the proximal point x by the trapezoid rule under a sinh
  map. The interval is found by scanning the integrands for where they fall below 10^-digits of their peaks, and the
  number of nodes doubles until the sums stand still. The root is found on this grid and must satisfy the equations on a
  second grid, with another centre, another stretch and 1.37 times as many nodes.
- Newton's method in the logarithms of (eta, gamma, tau), its Jacobian by differences at the working precision, starts
  from a double-precision continuation in lambda that is part of this script (Gauss-Jacobi nodes for the spectrum).
- Ridge regression and LDA: the root tau by Newton's method, moments as above.
- Inputs are the exact binary numbers of the stored floats, the shift 1e-3 as well; the separation is
  c = rho / sqrt(E[1/s]) with rho = sqrt(2) erfinv(1 - 2 e*).

Sweep: 40 digits; both grids hold the equations to 1e-30 and their roots agree to 1e-27. Derivatives: 60 digits and
central differences of step h = 1e-12 x,

    f_i  = (f(+i) - f(-i)) / 2h_i,    f_ii = (f(+i) - 2 f + f(-i)) / h_i^2,
    f_ij = (f(+i+j) + f(-i-j) - f(+i) - f(-i) - f(+j) - f(-j) + 2 f) / 2 h_i h_j,

whose error is of order h^2. Every point of the stencil is solved on the two grids of its centre, which stay fixed, and
the two roots must agree to 1e-42, that is to 1e-17 in a second derivative. First and unmixed second derivatives are
repeated with twice the step, which shows the error of the differences: at most 1e-16 of |f / x| and |f / x^2|.

Every entry keeps the largest residual on either grid, and the largest disagreement of their roots.
"""

import json
import random
import sys
from pathlib import Path

import numpy as np
from mpmath import mp, mpf
from scipy.optimize import root
from scipy.special import expit, roots_jacobi

HERE = Path(__file__).parent
INPUTS = ("regularization", "ratio", "bayes_error", "alpha", "beta")
SHIFT = 1e-3
OUTPUTS = ("eta", "gamma", "tau", "kappa", "mean", "variance", "alignment", "norm")
SWEEP_DIGITS, DERIVATIVE_DIGITS = 40, 60
STEP = mpf(10) ** -12
PAIRS = [(i, j) for i in range(5) for j in range(i, 5)]


# The points


def _log_uniform(rng, low, high):
    return float(f"{low * (high / low) ** rng.random():.6g}")


def sweep_points():
    """200 random points of the box and its 32 corners."""
    rng = random.Random(20240611)
    box = ((1e-10, 1e6), (0.01, 100), (1e-4, 0.49), (0.3, 30), (0.3, 30))
    points = [tuple(_log_uniform(rng, *side) for side in box) for _ in range(200)]
    corners = [tuple(float(side[(k >> i) & 1]) for i, side in enumerate(box)) for k in range(32)]
    return [("logistic", p) for p in points + corners]


def derivative_points():
    """20 random points for logistic regression, and the first three of them for ridge regression and LDA."""
    rng = random.Random(7031)
    box = ((1e-6, 1e2), (0.01, 100), (1e-4, 0.49), (0.3, 30), (0.3, 30))
    points = [tuple(_log_uniform(rng, *side) for side in box) for _ in range(20)]
    return [("logistic", p) for p in points] + [(model, p) for model in ("ridge", "lda") for p in points[:3]]


# Expectations over the spectrum


class Spectrum:
    """s = shift + u with u ~ Beta(alpha, beta)."""

    def __init__(self, alpha, beta):
        self.alpha, self.beta, self.shift = mpf(alpha), mpf(beta), mpf(SHIFT)

    def power(self, j, k, z):
        """E[u^j / (1 - z u)^k]."""
        a, g = self.alpha, self.alpha + self.beta
        return mp.rf(a, j) / mp.rf(g, j) * mp.hyp2f1(k, a + j, g + j, z)

    def inverse_mean(self):
        """E[1/s]."""
        return self.power(0, 1, -1 / self.shift) / self.shift

    def moments(self, lam, tau):
        """E[1/t], E[s/t], E[s/t^2] and E[s^2/t^2] with t = lam + tau s."""
        eps = self.shift
        edge = lam + tau * eps
        z = -tau / edge
        h1, u1 = (self.power(j, 1, z) / edge for j in range(2))
        h2, u2, uu2 = (self.power(j, 2, z) / edge**2 for j in range(3))
        k1 = u1 + eps * h1
        q1 = u2 + eps * h2
        q2 = uu2 + 2 * eps * u2 + eps**2 * h2
        tol = mpf(10) ** (8 - mp.dps)
        for total, parts in ((1, tau * k1 + lam * h1), (h1, tau * q1 + lam * h2), (k1, tau * q2 + lam * q1)):
            assert abs(parts / total - 1) < tol, "the hypergeometric functions break an identity"
        return h1, k1, q1, q2


def squared_separation(error, spectrum):
    """c^2."""
    return 2 * mp.erfinv(1 - 2 * mpf(error)) ** 2 / spectrum.inverse_mean()


def order_parameters(unknowns, lam, ratio, signal, spectrum):
    """kappa, m and v for log(eta, gamma, tau)."""
    eta, gamma, tau = (mp.exp(u) for u in unknowns)
    h1, k1, q1, q2 = spectrum.moments(lam, tau)
    return ratio * k1, eta * signal * h1, eta**2 * signal * q1 + gamma * ratio * q2


# Integrals over the proximal point


class Grid:
    """Nodes x = centre + stretch sinh(u) with equidistant u, and what does not depend on (kappa, m, v)."""

    def __init__(self, low, high, centre, stretch, count):
        self.x, self.s, self.weights = [], [], [[] for _ in range(5)]
        # more digits, for short intervals: sinh near 0 is a difference of exponentials here
        with mp.extradps(20):
            self._fill(mpf(low), mpf(high), mpf(centre), mpf(stretch), count)

    def _fill(self, low, high, centre, stretch, count):
        low, high = (mp.asinh((end - centre) / stretch) for end in (low, high))
        h = (high - low) / (count - 1)
        factor = e = mp.exp(h)
        for i in range(count):
            # e^u at the nodes; renewed from time to time, so that rounding does not grow
            e = mp.exp(low + i * h) if i % 64 == 0 else e * factor
            x = centre + stretch * (e - 1 / e) / 2
            width = h * stretch * (e + 1 / e) / 2
            t = mp.exp(x)
            s = 1 / (1 + t)
            bend = t * s * s
            self.x.append(x)
            self.s.append(s)
            for row, value in zip(self.weights, (s, s * bend, s * s, s * s * bend, bend), strict=True):
                row.append(width * value)

    def sums(self, kappa, mean, variance):
        """E s, E s^2 and E[s (1-s) / (1 + kappa s (1-s))] for x - kappa s ~ N(mean, variance)."""
        scale = -1 / (2 * variance)
        density = [mp.exp(scale * (x - kappa * s - mean) ** 2) for x, s in zip(self.x, self.s, strict=True)]
        a, ad, b, bd, d = (mp.fdot(row, density) for row in self.weights)
        norm = mp.sqrt(2 * mp.pi * variance)
        return (a + kappa * ad) / norm, (b + kappa * bd) / norm, d / norm


def support(kappa, mean, variance, digits):
    """Interval of x outside which all three integrands are below 10^-digits of their peaks, by scanning."""
    r = mean + np.sqrt(variance) * np.linspace(-45, 30, 30001)
    low, high = r.copy(), r + kappa
    for _ in range(200):
        middle = (low + high) / 2
        above = middle - kappa * expit(-middle) > r
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    x = (low + high) / 2
    log_s, log_c = -np.logaddexp(0, x), -np.logaddexp(0, -x)
    log_n = -((r - mean) ** 2) / (2 * variance)  # in R: the factor 1 + kappa d is dR/dx
    shrink = np.log1p(kappa * np.exp(log_s + log_c))
    keep = np.zeros(len(x), bool)
    for values in (log_s + log_n, 2 * log_s + log_n, log_s + log_c + log_n - shrink):
        keep |= values > values.max() - (digits * np.log(10) + 5)
    assert not keep[0] and not keep[-1]
    first, last = np.flatnonzero(keep)[[0, -1]]
    centre = x[np.argmax(log_s + log_n)]
    return x[first - 1], x[last + 1], float(np.clip(centre, 0, np.log1p(kappa)))


def two_grids(kappa, mean, variance):
    """A grid on which doubling the nodes changes nothing, and a different one."""
    low, high, centre = support(float(kappa), float(mean), float(variance), mp.dps)
    count, before = 300, None
    while True:
        grid = Grid(low, high, centre, 5, count)
        now = grid.sums(kappa, mean, variance)
        if before and max(abs(a / b - 1) for a, b in zip(now, before, strict=True)) < mpf(10) ** (6 - mp.dps):
            return grid, Grid(low, high, centre + 0.7, 7, int(1.37 * count))
        before, count = now, 2 * count
        assert count < 200_000


# Roots


def float_start(lam, ratio, signal, alpha, beta):
    """log(eta, gamma, tau) in double precision, by continuation in lambda."""
    node, weight = roots_jacobi(300, beta - 1, alpha - 1)
    values, weight = SHIFT + (1 + node) / 2, weight / weight.sum()

    def equations(unknowns, lam):
        eta, gamma, tau = np.exp(unknowns)
        t = lam + tau * values
        kappa = ratio * np.sum(weight * values / t)
        mean = eta * signal * np.sum(weight / t)
        variance = eta**2 * signal * np.sum(weight * values / t**2) + gamma * ratio * np.sum(weight * (values / t) ** 2)
        if not 0 < variance < 1e200:
            return np.full(3, 1e3)
        sd = np.sqrt(variance)
        # the ends of the interval and a place for the nodes to be dense, by bisection
        target = np.array([mean - 14 * sd, min(mean, 0), mean + 9 * sd])
        a, b = target, target + kappa
        for _ in range(100):
            c = (a + b) / 2
            above = c - kappa * expit(-c) > target
            a, b = np.where(above, a, c), np.where(above, c, b)
        centre = np.clip(b[1], 0, np.log1p(kappa))
        u = np.linspace(*np.arcsinh((b[[0, 2]] - centre) / 3), 3000)
        x = centre + 3 * np.sinh(u)
        s = expit(-x)
        bend = s * expit(x)
        n = 3 * np.cosh(u) * (u[1] - u[0]) * np.exp(-((x - kappa * s - mean) ** 2) / (2 * variance))
        n /= np.sqrt(2 * np.pi * variance)
        mass = s * n * (1 + kappa * bend)
        sums = np.array([mass.sum(), (mass * s).sum(), (bend * n).sum()])
        return np.log(np.maximum(sums, 1e-300)) - unknowns

    top = np.log10(max(1e4 * max(ratio, 1), lam))
    places = np.linspace(top, np.log10(lam), 2 + int(8 * (top - np.log10(lam))))
    path = [np.log([0.5, 0.25, 0.25])]
    for place in places:
        guess = path[-1] if len(path) < 3 else 2 * path[-1] - path[-2]
        found = root(equations, guess, args=(10**place,), tol=1e-12)
        assert np.max(np.abs(found.fun)) < 1e-6, (place, found.message)
        path.append(found.x)
    return [mpf(float(x)) for x in path[-1]]


class Root:
    """Newton's method with a Jacobian by differences, kept for neighbouring problems."""

    def __init__(self, equations):
        """`equations(unknowns, *args)` gives log(right side) - log(left side)."""
        self.equations = equations
        self.inverse = None

    def renew(self, point, *args):
        h = mpf(10) ** (-mp.dps // 2)
        base = self.equations(point, *args)
        n = len(point)
        jacobian = mp.matrix(n, n)
        for j in range(n):
            moved = self.equations([p + h * (i == j) for i, p in enumerate(point)], *args)
            for i in range(n):
                jacobian[i, j] = (moved[i] - base[i]) / h
        self.inverse = jacobian**-1

    def step(self, residual):
        return self.inverse * mp.matrix(residual)

    def find(self, guess, *args):
        """Point whose residual is below 10^(8 - digits), and this residual."""
        if self.inverse is None:
            self.renew(guess, *args)
        point, last = guess, mp.inf
        for _ in range(60):
            residual = self.equations(point, *args)
            size = max(abs(r) for r in residual)
            if size < mpf(10) ** (8 - mp.dps):
                return point, size
            if size > last * mpf(10) ** -4:
                self.renew(point, *args)
            last = size
            step = self.step(residual)
            point = [p - d for p, d in zip(point, step, strict=True)]
        raise AssertionError("no convergence")


class Logistic:
    """Solutions near one point, all on its two grids."""

    def __init__(self, point):
        lam, ratio, error, alpha, beta = point
        spectrum = Spectrum(alpha, beta)
        signal = squared_separation(error, spectrum)
        guess = float_start(lam, ratio, float(signal), alpha, beta)
        args = (mpf(lam), mpf(ratio), signal, spectrum)
        self.grids = two_grids(*order_parameters(guess, *args))
        self.root = Root(lambda unknowns, *args: self.equations(self.grids[0], unknowns, *args))
        self.unknowns, _ = self.root.find(guess, *args)
        # again, with the grids and the Jacobian of the solution itself
        self.grids = two_grids(*order_parameters(self.unknowns, *args))
        self.root.renew(self.unknowns, *args)
        self.disagreement = self.residual = mpf(0)

    @staticmethod
    def equations(grid, unknowns, *args):
        sums = grid.sums(*order_parameters(unknowns, *args))
        return [mp.log(a) - u for a, u in zip(sums, unknowns, strict=True)]

    def solve(self, point, guess=None):
        """Unknowns and outputs at a point."""
        lam, ratio, error, alpha, beta = (mpf(x) for x in point)
        spectrum = Spectrum(alpha, beta)
        signal = squared_separation(error, spectrum)
        args = (lam, ratio, signal, spectrum)
        unknowns, residual = self.root.find(guess or self.unknowns, *args)
        other = self.equations(self.grids[1], unknowns, *args)
        self.residual = max(self.residual, residual, *(abs(r) for r in other))
        self.disagreement = max(self.disagreement, *(abs(d) for d in self.root.step(other)))
        kappa, mean, variance = order_parameters(unknowns, *args)
        return unknowns, outputs(*(mp.exp(u) for u in unknowns), kappa, mean, variance)


class Square:
    """Ridge regression or LDA near one point."""

    def __init__(self, model, point):
        self.model = model
        self.residual = self.disagreement = mpf(0)
        self.root = Root(self.equations)
        lam, ratio, _, alpha, beta = (mpf(x) for x in point)
        spectrum = Spectrum(alpha, beta)
        low, high = mpf(-60), mpf(0)
        while high - low > mpf(10) ** -6:
            middle = (low + high) / 2
            above = self.equations([middle], lam, ratio, spectrum)[0] > 0
            low, high = (middle, high) if above else (low, middle)
        self.unknowns = [low]
        self.unknowns, _ = self.solve(point)

    @staticmethod
    def equations(unknowns, lam, ratio, spectrum):
        _, k1, _, _ = spectrum.moments(lam, mp.exp(unknowns[0]))
        return [-mp.log(1 + ratio * k1) - unknowns[0]]

    def solve(self, point, guess=None):
        lam, ratio, error, alpha, beta = (mpf(x) for x in point)
        spectrum = Spectrum(alpha, beta)
        signal = squared_separation(error, spectrum)
        unknowns, residual = self.root.find(guess or self.unknowns, lam, ratio, spectrum)
        self.residual = max(self.residual, residual)
        tau = mp.exp(unknowns[0])
        h1, k1, q1, q2 = spectrum.moments(lam, tau)
        kappa = ratio * k1
        mean = signal * h1
        variance = (signal * q1 + ratio * q2) / (1 - ratio * tau**2 * q2)
        eta = mpf(1)
        if self.model == "ridge":
            eta = 1 / (1 + kappa + mean)
            mean, variance = eta * mean, eta**2 * variance
        # for which v = eta^2 c^2 E[s/t^2] + gamma r E[s^2/t^2]
        gamma = (variance - eta**2 * signal * q1) / (ratio * q2)
        if self.model == "ridge":  # gamma = E[s(x)^2] for the square loss, s(x) = 1 - x
            assert abs(tau**2 * ((1 - mean) ** 2 + variance) / gamma - 1) < mpf(10) ** (20 - mp.dps)
        return unknowns, outputs(eta, gamma, tau, kappa, mean, variance)


def outputs(eta, gamma, tau, kappa, mean, variance):
    return [eta, gamma, tau, kappa, mean, variance, 2 * mean / mp.sqrt(variance), mp.sqrt(variance)]


def differences(problem, point):
    """Values, gradients and second derivatives, each a list over `OUTPUTS`."""
    x = [mpf(v) for v in point]
    h = [STEP * v for v in x]
    centre, value = problem.solve(x)

    def at(*moves, guess=None):
        moved = list(x)
        for i, times in moves:
            moved[i] += times * h[i]
        return problem.solve(moved, guess)

    plus, minus = ([at((i, sign)) for i in range(5)] for sign in (1, -1))
    first, second = [], {}
    for i in range(5):
        up, down = plus[i][1], minus[i][1]
        first.append([(a - b) / (2 * h[i]) for a, b in zip(up, down, strict=True)])
        second[i, i] = [(a + b - 2 * f) / h[i] ** 2 for a, b, f in zip(up, down, value, strict=True)]
        twice = at((i, 2))[1], at((i, -2))[1]
        for a, b, d, dd, f in zip(*twice, first[i], second[i, i], value, strict=True):
            tol = mpf(10) ** -16 * abs(f)
            assert abs((a - b) / (4 * h[i]) - d) < tol / x[i], "the step is too long"
            assert abs((a + b - 2 * f) / (2 * h[i]) ** 2 - dd) < tol / x[i] ** 2, "the step is too long"
    for i, j in PAIRS:
        if i == j:
            continue
        guess = [[side[i][0][k] + side[j][0][k] - c for k, c in enumerate(centre)] for side in (plus, minus)]
        up, down = at((i, 1), (j, 1), guess=guess[0])[1], at((i, -1), (j, -1), guess=guess[1])[1]
        singles = zip(*(side[k][1] for side in (plus, minus) for k in (i, j)), strict=True)
        second[i, j] = [
            (a + b - sum(four) + 2 * f) / (2 * h[i] * h[j])
            for a, b, four, f in zip(up, down, singles, value, strict=True)
        ]
    return value, first, [second[pair] for pair in PAIRS]


# Files


def _text(values):
    return [mp.nstr(v, 20, min_fixed=0, max_fixed=0) for v in values]


def sweep_entry(model, point):
    mp.dps = SWEEP_DIGITS
    problem = Logistic(point)
    _, values = problem.solve(point)
    assert problem.residual < mpf(10) ** -30 and problem.disagreement < mpf(10) ** -27, (point, problem.disagreement)
    spectrum = Spectrum(*point[3:])
    separation = mp.sqrt(squared_separation(point[2], spectrum))
    entry = {"values": _text(values[:6]), "separation": _text([separation])[0]}
    return entry, problem


def derivative_entry(model, point):
    mp.dps = DERIVATIVE_DIGITS
    problem = Logistic(point) if model == "logistic" else Square(model, point)
    value, first, second = differences(problem, point)
    assert problem.residual < mpf(10) ** -45 and problem.disagreement < mpf(10) ** -42, (point, problem.disagreement)
    entry = {"values": _text(value), "first": [_text(row) for row in first], "second": [_text(row) for row in second]}
    return entry, problem


def write(name, points, make, header):
    path = HERE / name
    done = {}
    if path.exists():
        for entry in json.loads(path.read_text())["points"]:
            done[entry["model"], tuple(entry["inputs"])] = entry
    entries = []
    for number, (model, point) in enumerate(points):
        entry = done.get((model, point))
        if entry is None:
            made, problem = make(model, point)
            entry = {"model": model, "inputs": point, **made}
            entry["residual"], entry["disagreement"] = (mp.nstr(v, 2) for v in (problem.residual, problem.disagreement))
        entries.append(entry)
        later = [done[key] for key in points[number + 1 :] if key in done]
        lines = ",\n  ".join(json.dumps(e) for e in entries + later)
        head = ",\n ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in header.items())
        path.write_text(f'{{{head},\n "points": [\n  {lines}\n ]}}\n')


def main(names):
    common = {"made_by": "make_theory_reference.py", "inputs": INPUTS, "shift": SHIFT}
    if not names or "sweep" in names:
        write("theory_sweep.json", sweep_points(), sweep_entry, {**common, "outputs": OUTPUTS[:6]})
    if not names or "derivatives" in names:
        header = {**common, "outputs": OUTPUTS, "pairs": [[INPUTS[i], INPUTS[j]] for i, j in PAIRS]}
        write("theory_derivatives.json", derivative_points(), derivative_entry, header)


if __name__ == "__main__":
    main(sys.argv[1:])
