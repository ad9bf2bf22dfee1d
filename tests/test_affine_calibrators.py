"""Vector, matrix, Dirichlet and structured scaling: one solver, held to mpmath, to SciPy and to NumPy.

Compilation is what takes time here. A row of weight 0 is absent, so that data sets of every size are lanes of one
stack, and each calibrator is fitted once, to all of them.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from scipy.optimize import minimize

import jaxcal
from jaxcal import Status

FITS = {
    "vector": jaxcal.fit_vector_scaling,
    "matrix": jaxcal.fit_matrix_scaling,
    "dirichlet": functools.partial(jaxcal.fit_dirichlet, off_diagonal=0.1, intercept=0.1),
    "structured matrix": jaxcal.fit_structured_matrix,
    "structured vector": jaxcal.fit_structured_vector,
}
names = pytest.mark.parametrize("name", FITS)
STRUCTURED = ("structured matrix", "structured vector")
N, K = 24, 3
M8 = np.array(  # the eight rows of conftest.py, whose fixtures a table of lanes cannot use
    [(2, 0.5, -1), (0.2, 1.5, 0.3), (-0.5, 0.1, 2.2), (1, 1.2, -0.3)]
    + [(0, 3, 1), (2.5, -1, 0.4), (-1.5, 0.5, 1), (0.8, 0.6, 0.7)]
)
ORDER = np.array([2, 0, 1])  # of the classes, in the lane "permuted"


def _lanes():
    """Name to logits, labels and weights; rows that a data set lacks hold NaN and the label -1."""
    rng = np.random.default_rng(0)
    z = rng.normal(0, 1.5, (N, K))
    y = np.argmax(z @ [[1, 0.3, 0], [0, 0.7, -0.2], [0, 0, 1.2]] + rng.gumbel(size=z.shape), axis=-1)
    z, ones = z.astype(np.float32).astype(float), np.ones(N)  # one data set in both precisions
    half = np.arange(N) < N // 2
    half_z, half_y = np.where(half[:, None], z, np.nan), np.where(half, y, -1)
    masked = np.where((np.arange(N)[:, None] < 5) & (np.arange(K) == (y[:, None] + 1) % K), -np.inf, z)
    own = np.where((np.arange(N)[:, None] == 4) & (np.arange(K) == y[:, None]), -np.inf, z)
    nan, label, negative = z.copy(), y.copy(), ones.copy()
    nan[3, 1], label[5], negative[7] = np.nan, K, -1

    def few(logits, labels):
        n = len(labels)
        logits = np.concatenate([logits, np.full((N - n, K), np.nan)])
        return logits, np.concatenate([labels, np.full(N - n, -1)]), np.where(np.arange(N) < n, 1.0, 0.0)

    line = z[:, :1] * [1.0, -2.0, 0.5]
    return {
        "plain": (z, y, ones),
        "counts": (half_z, half_y, np.where(half, 1.0 + np.arange(N) % 2 * 2, 0)),
        "repeated": few(*(np.repeat(a[: N // 2], 1 + np.arange(N // 2) % 2 * 2, axis=0)[:N] for a in (z, y))),
        "permuted": (z[:, ORDER], np.argsort(ORDER)[y], ones),
        "offset": (z + 4 * np.arange(N)[:, None] / N, y, ones),
        "M8": few(M8, np.array([0, 1, 2, 0, 2, 0, 1, 2])),
        "M8, other labels": few(M8, np.array([0, 2, 2, 0, 1, 1, 1, 0])),
        "huge": (z * 2.0**40, y, ones),
        "tiny": (z * 2.0**-40, y, ones),
        "separable": (z + 9 * np.eye(K)[y], y, ones),
        "one class": (z, np.ones(N, int), ones),
        "one row": few(z[:1], y[:1]),
        "two rows": few(z[:2], np.array([0, 1])),
        "constant": (np.zeros((N, K)), y, ones),
        "equal rows": (np.zeros((N, K)) + [0.3, -1, 0.1], y, ones),
        "line": (line, y, ones),
        "masked": (masked, y, ones),
        "own class masked": (own, y, ones),
        "NaN": (nan, y, ones),
        "label": (z, label, ones),
        "weight": (z, y, negative),
        "nothing": (z, y, 0 * ones),
    }


LANES = _lanes()
AT = {lane: i for i, lane in enumerate(LANES)}
LOGITS, LABELS, WEIGHTS = (np.stack(a) for a in zip(*LANES.values(), strict=True))
FAILED = {"NaN", "label", "weight", "nothing"}


@pytest.fixture(scope="module")
def fitted():
    """The fit of all lanes by each calibrator, and its forecasts for their rows (absent and bad ones made 0)."""
    found = {}

    def get(name):
        if name not in found:
            logits = jnp.asarray(LOGITS)
            fit = FITS[name](logits, LABELS, weights=jnp.asarray(WEIGHTS))
            forecasts = np.asarray(fit(jnp.where(jnp.isfinite(logits), logits, 0)), np.float64)
            found[name] = jax.tree.map(np.asarray, fit), forecasts
        return found[name]

    return get


def _parameters(fit, lane):
    """W, `(k, k)`, and b in float64."""
    map_ = fit.matrix if hasattr(fit, "matrix") else fit.scale
    map_ = np.asarray(map_[AT[lane]], np.float64)
    return map_ if map_.ndim == 2 else np.diag(map_), np.asarray(fit.bias[AT[lane]], np.float64)


def _log_softmax(z):
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


class Problem:
    """The objective of a calibrator on one lane, in float64 NumPy."""

    def __init__(self, name, lane, temperature=None):
        z, y, w = LANES[lane]
        z, self.y, w = z[w > 0], y[w > 0], w[w > 0]
        self.w, n = w / w.sum(), w.sum()
        if name == "dirichlet":
            z = _log_softmax(z)
        if name in STRUCTURED:
            z = np.log(n / (n + 1) * np.exp(_log_softmax(z / temperature)) + 1 / (n + 1) / K)
        self.x = z
        single, pair = (K / n, K * (K - 1) / n) if name in STRUCTURED else (0.0, 0.0)
        self.diagonal, self.off, self.intercept = single, pair, single
        if name == "dirichlet":
            self.off, self.intercept = 0.1 / (K * (K - 1)), 0.1 / K
        self.free = np.eye(K, dtype=bool) if "vector" in name else np.ones((K, K), bool)

    def loss(self, matrix, bias):
        return -self.w @ _log_softmax(self.x @ matrix.T + bias)[np.arange(len(self.y)), self.y]

    def value(self, matrix, bias):
        away = matrix - np.eye(K)
        strength = np.where(np.eye(K), self.diagonal, self.off)
        return self.loss(matrix, bias) + np.sum(strength * away**2) + self.intercept * np.sum(bias**2)

    def slope(self, matrix, bias):
        residual = self.w[:, None] * (np.exp(_log_softmax(self.x @ matrix.T + bias)) - np.eye(K)[self.y])
        strength = np.where(np.eye(K), self.diagonal, self.off)
        along = residual.T @ self.x + 2 * strength * (matrix - np.eye(K))
        return np.where(self.free, along, 0), residual.sum(0) + 2 * self.intercept * bias

    def best(self):
        """SciPy's minimum."""

        def split(theta):
            matrix = np.zeros((K, K))
            matrix[self.free] = theta[:-K]
            return matrix, theta[-K:]

        def slope(theta):
            along, bias = self.slope(*split(theta))
            return np.concatenate([along[self.free], bias])

        start = np.concatenate([np.eye(K)[self.free], np.zeros(K)])
        return minimize(lambda t: self.value(*split(t)), start, jac=slope, method="BFGS", options={"gtol": 1e-10}).fun


# --- values ---


@names
def test_numbers_of_mpmath(name, fitted, eps):
    """Newton's method in mpmath with 40 digits."""
    fit, forecasts = fitted(name)
    # the solution is as exact as its predictors, which are those of a few steps of rounding
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=512 * eps)
    if name == "vector":
        matrix, bias = _parameters(fit, "M8, other labels")
        close(np.diag(matrix), [0.864450794278999, -0.327289907420721, 1.29860611882682])
        close(bias, [-0.0506713405321047, 0.963333382993254, -0.91266204246115])
        np.testing.assert_allclose(fit.risk[AT["M8, other labels"]], 0.89253396978296, rtol=16 * eps)
    if name == "dirichlet":
        matrix, bias = _parameters(fit, "M8")
        expected = [
            [4.05168192627237, 0.010384455648995, -1.27230431453403],
            [-0.15490230312266, 1.21283608544133, 1.27230431453403],
            [0.15490230312266, -0.010384455648995, 0.784090184566677],
        ]
        close(matrix, expected, atol=4096 * eps)  # some 8 rows a coefficient, whose Hessian has condition 1e3
        close(bias, [0.103067055642894, 0.203679944729243, -0.306747000372137], atol=4096 * eps)
        np.testing.assert_allclose(fit.risk[AT["M8"]], 0.424199306018332, rtol=1024 * eps)
        np.testing.assert_allclose(Problem(name, "M8").value(matrix, bias), 0.483834735661493, rtol=16 * eps)
    if name == "structured vector":
        matrix, bias = _parameters(fit, "M8")
        close(np.diag(matrix), [1.08799013321305, 1.07790780743324, 0.915591440680995])
        close(bias, [0.0514866329966383, -0.0947790719349364, 0.0432924389382981])
        np.testing.assert_allclose(fit.risk[AT["M8"]], 0.757699228376591, rtol=64 * eps)
    if name == "structured matrix":
        matrix, bias = _parameters(fit, "M8")
        expected = [
            [1.11098208988536, -0.0351586327660789, -0.0798449604906402],
            [0.000824841690143527, 1.04014913506133, 0.118367806488919],
            [-0.0563158866328242, 0.0150840652354158, 0.922954308003442],
        ]
        close(matrix, expected)
        close(bias, [0.0181577384965465, -0.052142480866677, 0.0339847423701305])
        np.testing.assert_allclose(fit.risk[AT["M8"]], 0.717177453832633, rtol=64 * eps)
        row = [0.793938489261916, 0.11915343280294, 0.0869080779351443]
        np.testing.assert_allclose(np.exp(forecasts[AT["M8"], 0]), row, rtol=512 * eps)


@names
def test_objective_is_never_above_that_of_scipy(name, fitted, eps):
    fit, _ = fitted(name)
    for lane in ("plain", "permuted", "offset", *(["counts"] if name != "matrix" else [])):  # which separates 12 rows
        assert fit.status[AT[lane]] == Status.CONVERGED, lane
        temperature = fit.tempered.fit.temperature[AT[lane]] if name in STRUCTURED else None
        problem, ours = Problem(name, lane, temperature), _parameters(fit, lane)
        best = problem.best()
        assert problem.value(*ours) <= best * (1 + max(1e-9, 4 * eps)), lane
        np.testing.assert_allclose(fit.risk[AT[lane]], problem.loss(*ours), rtol=64 * eps)
        along, bias = problem.slope(*ours)
        assert max(abs(along).max(), abs(bias).max()) <= 256 * eps and fit.gradient_norm[AT[lane]] <= 256 * eps


@names
def test_forecasts_are_the_map(name, fitted, eps):
    fit, forecasts = fitted(name)
    for lane in ("plain", "permuted", "offset"):
        temperature = fit.tempered.fit.temperature[AT[lane]] if name in STRUCTURED else None
        matrix, bias = _parameters(fit, lane)
        expected = _log_softmax(Problem(name, lane, temperature).x @ matrix.T + bias)
        np.testing.assert_allclose(forecasts[AT[lane]], expected, rtol=64 * eps, atol=64 * eps)
    good = ~np.isnan(fit.risk)
    sums = np.log(np.exp(forecasts[good]).sum(-1))
    np.testing.assert_allclose(sums, 0, atol=4 * eps)


# --- forms of the data ---


@names
def test_weights_are_counts(name, fitted, eps):
    """Absent rows of the lane hold NaN and -1."""
    fit, forecasts = fitted(name)
    for a, b in zip(_parameters(fit, "counts"), _parameters(fit, "repeated"), strict=True):
        np.testing.assert_allclose(a, b, rtol=2048 * eps, atol=2048 * eps)
    np.testing.assert_allclose(fit.risk[AT["counts"]], fit.risk[AT["repeated"]], rtol=64 * eps, atol=eps)


@names
def test_permuted_classes(name, fitted, eps):
    _, forecasts = fitted(name)
    tolerance = 512 * eps
    expected = forecasts[AT["plain"]][:, ORDER]
    np.testing.assert_allclose(forecasts[AT["permuted"]], expected, rtol=tolerance, atol=tolerance)


@names
def test_offsets_of_rows(name, fitted, eps):
    """Vector and matrix scaling read them, as the last layer of a network does."""
    _, forecasts = fitted(name)
    same = np.allclose(forecasts[AT["offset"]], forecasts[AT["plain"]], rtol=512 * eps, atol=512 * eps)
    assert same == (name not in ("vector", "matrix"))


@pytest.mark.parametrize("name", ["dirichlet", *STRUCTURED])
def test_host_float64_keeps_its_digits(name, fitted, eps):
    """Offsets that float32 cannot hold, in the data and in the rows to calibrate."""
    fit = FITS[name](LOGITS + 2.0**26, LABELS, weights=jnp.asarray(WEIGHTS))
    rows = LANES["plain"][0] + 2.0**30
    np.testing.assert_allclose(fit(rows)[0], fitted(name)[1][0], rtol=512 * eps, atol=max(512 * eps, 1e-6))


@pytest.mark.parametrize("name", ["vector", "matrix", *STRUCTURED])
@pytest.mark.parametrize("lane", ["huge", "tiny"])
def test_any_unit_of_the_logits(name, lane, fitted, eps):
    """A power of 2: not a digit is lost. Log-probabilities, which Dirichlet calibration takes, have a unit."""
    fit, forecasts = fitted(name)
    assert fit.status[AT[lane]] == Status.CONVERGED
    np.testing.assert_allclose(forecasts[AT[lane]], forecasts[AT["plain"]], rtol=512 * eps, atol=512 * eps)


@names
def test_what_the_status_says(name, fitted, eps):
    fit, forecasts = fitted(name)
    status = {lane: Status(int(fit.status[i])) for lane, i in AT.items()}
    failed = FAILED | ({"masked", "own class masked"} if name in ("matrix", "dirichlet") else set())
    for lane in failed:
        assert status[lane] == Status.INVALID_INPUT and np.isnan(fit.risk[AT[lane]]), lane
    if name not in ("matrix", "dirichlet"):
        failed.add("own class masked")
        assert status["own class masked"] == Status.IMPOSSIBLE_EVENT
    for lane, i in AT.items():
        if name == "dirichlet" and lane == "tiny":  # log-probabilities that differ by their rounding: 12 or no digits
            continue
        assert np.isnan(forecasts[i]).all() == (lane in failed) and np.isfinite(forecasts[i]).all() == (
            lane not in failed
        )
    if name in STRUCTURED:
        assert all(s == Status.CONVERGED for lane, s in status.items() if lane not in failed)
        return
    for lane in ("separable", "one class", "one row", "two rows"):
        # the largest number of the rows is exp(-36) where their loss is below a rounding
        assert status[lane] == Status.AT_UPPER_BOUND and fit.risk[AT[lane]] <= 2 * eps, lane
    for lane in ("constant", "equal rows"):
        assert status[lane] == Status.NOT_IDENTIFIED, lane
        frequency = np.bincount(LABELS[AT[lane]], minlength=K) / N
        np.testing.assert_allclose(np.exp(forecasts[AT[lane]]), frequency[None] + np.zeros((N, 1)), rtol=256 * eps)
    assert status["line"] == (Status.CONVERGED if name == "dirichlet" else Status.NOT_IDENTIFIED)
    if name == "vector":
        # the infimum of a class that can be told apart, from SciPy on the rest
        assert status["M8"] == Status.AT_UPPER_BOUND
        np.testing.assert_allclose(fit.risk[AT["M8"]], 0.2831, atol=1e-4)


@pytest.mark.parametrize("name", ["vector", *STRUCTURED])
def test_masked_classes(name, fitted, eps):
    fit, _ = fitted(name)
    one = jax.tree.map(lambda a: a[AT["masked"]], fit)
    result = np.asarray(one(jnp.asarray(LANES["masked"][0])))
    masked = np.isneginf(LANES["masked"][0])
    if name == "vector":
        np.testing.assert_array_equal(np.isneginf(result), masked)
    else:
        assert np.isfinite(result).all()
    np.testing.assert_allclose(np.log(np.exp(result.astype(np.float64)).sum(-1)), 0, atol=4 * eps)


@pytest.mark.parametrize("mask", [-1e5, -1e9, -1e20, -3e38])
def test_vector_scaling_with_finite_masks(mask, eps):
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 4, 500)
    logits = np.array([1, 2, 1.5, 1]) * np.eye(4)[labels] + rng.normal(size=(500, 4))
    masked = (rng.random(logits.shape) < 0.2) & ~np.eye(4, dtype=bool)[labels]
    finite = np.where(masked, mask, logits)
    found, expected = (jaxcal.fit_vector_scaling(z, labels) for z in (finite, np.where(masked, -np.inf, logits)))
    assert found.status == expected.status == Status.CONVERGED
    np.testing.assert_allclose(found.scale, expected.scale, rtol=eps**0.6)
    np.testing.assert_allclose([found.risk, jaxcal.risk(found(finite), labels)], expected.risk, rtol=8 * eps)
    turned = finite * np.array([-1, 1, 1, 1])  # the best factor of the first class is negative
    turned[masked] = mask
    lost = jax.jit(jaxcal.fit_vector_scaling)(turned, labels)
    assert lost.status == Status.NOT_CONVERGED and np.isnan(lost.risk) and np.isnan(lost.scale).all()


@pytest.mark.once
@names
def test_errors(name, fitted):
    fit = FITS[name]
    call = f"fit_{name.split()[0]}"

    def message(lane):
        with pytest.raises(ValueError, match=call) as error:  # the only data set of a stack
            fit(*(np.broadcast_to(a, (len(AT), *a.shape)) for a in LANES[lane][:2]), weights=lanes_of(lane))
        return str(error.value)

    def lanes_of(lane):
        return np.broadcast_to(LANES[lane][2], (len(AT), N))

    assert "logits must not be NaN; row 3" in message("NaN")
    assert "labels must be integers in [0, 3)" in message("label") and "has label 3" in message("label")
    assert "weights must be finite and >= 0, got -1.0 in row 7" in message("weight")
    assert "weights are all zero" in message("nothing")
    assert "row 4" in message("own class masked") and "logits_from_probs(p, floor=...)" in message("own class masked")
    if name in ("matrix", "dirichlet"):
        text = message("masked")
        assert "needs finite logits, got -inf in row 0" in text and "fit_structured_matrix" in text
        masked = jnp.asarray([[-jnp.inf, 0.0, 1.0]])
        with pytest.raises(ValueError, match="needs finite logits, got -inf in row 0"):
            jax.tree.map(lambda a: a[0], fitted(name)[0])(masked)
    stack, _ = fitted(name)
    with pytest.raises(ValueError, match="fitted for 3 classes"):
        stack(np.zeros((N, 4)))
    with pytest.raises(ValueError, match="do not broadcast"):
        stack(np.zeros((2, N, K)))
    with pytest.raises(ValueError, match="INVALID_INPUT"):
        jax.tree.map(lambda a: a[AT["NaN"]], stack)(LANES["plain"][0])
    with pytest.raises(ValueError, match="logits of shape"):
        fit(np.zeros(K), np.zeros((), int))
    with pytest.raises(TypeError, match="floating point"):
        fit(np.zeros((N, K), int), LANES["plain"][1])


@pytest.mark.once
def test_options_are_checked():
    z, y, _ = LANES["plain"]
    for value in (-1, np.inf, np.nan, "1"):
        with pytest.raises(ValueError, match="off_diagonal must be a finite number >= 0"):
            jaxcal.fit_matrix_scaling(z, y, off_diagonal=value)
        with pytest.raises(ValueError, match="intercept must be"):
            jaxcal.fit_dirichlet(z, y, intercept=value)
        with pytest.raises(ValueError, match="strength must be"):
            jaxcal.fit_structured_vector(z, y, strength=value)
        with pytest.raises(ValueError, match="tau must be"):
            jaxcal.fit_structured_matrix(z, y, tau=value)


@names
def test_files_and_single_rows(name, fitted, tmp_path):
    fit, _ = fitted(name)
    one = jax.tree.map(lambda a: jnp.asarray(a[0]), fit)
    one.save(tmp_path / "fit.npz")
    z = LANES["plain"][0]
    np.testing.assert_array_equal(jaxcal.load(tmp_path / "fit.npz")(z), one(z))
    np.testing.assert_allclose(one(z[3]), np.asarray(one(z))[3], rtol=1e-5)
    assert one(jnp.asarray(z, jnp.bfloat16)).dtype == jnp.bfloat16


# --- under the transformations of JAX ---


@names
def test_one_compilation_a_shape(name, fitted):
    """Weights of many lanes with one set of logits are another shape, and no other value is."""
    fitted(name)
    bare = getattr(FITS[name], "func", FITS[name])
    module = sys.modules[bare.__module__]
    compiled = module._solve if name in STRUCTURED else module._fit
    before = compiled._cache_size()
    FITS[name](jnp.asarray(LOGITS), LABELS[::-1], weights=jnp.asarray(WEIGHTS))
    assert compiled._cache_size() == before


def test_jit_and_vmap_over_weights(fitted, eps):
    z, y, ones = LANES["plain"]
    weights = np.stack([ones, np.arange(N) % 3, ones])
    weights[2, 0] = np.nan
    fit = jax.jit(jax.vmap(lambda w: jaxcal.fit_structured_matrix(z, y, weights=w)))(weights)
    assert fit.status.tolist() == [0, 0, Status.INVALID_INPUT] and np.isnan(fit.bias[2]).all()
    np.testing.assert_allclose(fit.bias[0], fitted("structured matrix")[0].bias[0], rtol=256 * eps, atol=256 * eps)


@pytest.mark.once
def test_half_precision(fitted):
    z, y, _ = LANES["plain"]
    half = jnp.asarray(z, jnp.bfloat16)
    fit = jaxcal.fit_vector_scaling(half, y)
    assert fit.scale.dtype == fit.risk.dtype == jnp.float32 and fit(half).dtype == jnp.bfloat16
    # the logits have been rounded to 8 bits
    np.testing.assert_allclose(fit.risk, fitted("vector")[0].risk[AT["plain"]], rtol=2**-6)


@pytest.mark.once
@pytest.mark.parametrize("name", FITS)
def test_half_precision_rounds_only_what_comes_in(name):
    z, y, _ = LANES["plain"]
    half = jnp.asarray(z, jnp.bfloat16)
    fit, same = FITS[name](half, y), FITS[name](half.astype(jnp.float32), y)
    np.testing.assert_allclose(fit.risk, same.risk, rtol=1e-6)
    np.testing.assert_array_equal(fit(half), same(half.astype(jnp.float32)).astype(jnp.bfloat16))


@pytest.mark.skipif(not jax.config.jax_enable_x64, reason="finite differences need float64")
@pytest.mark.parametrize("name", ["vector", "dirichlet", "structured matrix"])
def test_derivatives(name):
    """Along one direction of logits and weights: forward, reverse and second, beside Richardson's differences."""
    z, y, _ = LANES["plain"]
    z, w = jnp.asarray(z), jnp.linspace(0.5, 2, N)
    rng = np.random.default_rng(1)
    way = jnp.asarray(rng.normal(size=(N, K))), jnp.asarray(rng.normal(size=N)) / 8
    probe = jnp.asarray(rng.normal(size=(4, K)))
    factors = jnp.asarray(rng.normal(size=(4, K)))

    def value(t):
        fit = FITS[name](z + t * way[0], y, weights=w + t * way[1])
        return jnp.sum(factors * fit(probe)) + fit.risk

    gradient = jax.grad(lambda z, w: value_of(z, w), (0, 1))

    def value_of(z, w):
        fit = FITS[name](z, y, weights=w)
        return jnp.sum(factors * fit(probe)) + fit.risk

    @jax.jit
    def all_of(t):
        first = lambda t: jax.jvp(value, (t,), (1.0,))  # noqa: E731
        if name == "structured matrix":  # one second derivative: it takes long to compile
            (at, slope), (_, second) = jax.jvp(first, (t,), (1.0,))
        else:
            (at, slope), second = first(t), 0.0
        reverse = gradient(z + t * way[0], w + t * way[1])
        return at, slope, sum(jnp.vdot(a, b) for a, b in zip(reverse, way, strict=True)), second

    _, slope, reverse, second = all_of(0.0)
    np.testing.assert_allclose(reverse, slope, rtol=1e-9)
    h = 1e-3
    at = {s: all_of(s * h) for s in (-2, -1, 1, 2)}

    def difference(i):  # error of order h^4
        return (8 * (at[1][i] - at[-1][i]) - (at[2][i] - at[-2][i])) / (12 * h)

    np.testing.assert_allclose(slope, difference(0), rtol=1e-7)
    if name == "structured matrix":
        np.testing.assert_allclose(second, difference(1), rtol=1e-6)


# --- penalties on some coefficients, columns that other columns make up ---


def _penalized_objective(matrix, bias, x, labels, off_diagonal, intercept):
    """In NumPy and float64."""
    matrix, bias, x = (np.asarray(a, np.float64) for a in (matrix, bias, x))
    predictor = x @ matrix.T + bias
    loss = -np.mean(_log_softmax(predictor)[np.arange(len(labels)), labels])
    k = len(bias)
    return loss + off_diagonal * np.mean(matrix[~np.eye(k, dtype=bool)] ** 2) + intercept * np.mean(bias**2)


@pytest.mark.parametrize(
    "column, off_diagonal, intercept",
    [
        ("sums to 0", 0.0, 10.0),
        ("sums to 0", 0.0, 0.01),
        ("sums to 5", 0.0, 10.0),
        ("constant", 0.01, 0.0),
        ("constant", 0.0, 0.1),
    ],
)
def test_penalties_that_leave_dependent_columns_free(column, off_diagonal, intercept):
    """Rounding in a column that others make up must not be fitted: the objective is that of SciPy."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4))
    y = np.argmax(x + [1, 0, 0, -1] + rng.gumbel(size=x.shape), axis=-1)
    if column == "constant":
        x[:, 0] = 3
    else:
        x += (float(column[-1]) - x.sum(1, keepdims=True)) / 4
    x = x.astype(np.float32)
    if column == "sums to 0":  # in float64, too, with the rounding of float32, as the logits of other libraries
        x = x.astype(jnp.zeros(0).dtype)
    fit = jaxcal.fit_matrix_scaling(x, y, off_diagonal=off_diagonal, intercept=intercept)
    assert fit.status == Status.NOT_IDENTIFIED and abs(fit.matrix).max() < 3
    np.testing.assert_allclose(fit.risk, jaxcal.risk(fit(x), y), rtol=16 * np.finfo(fit.risk.dtype).eps)

    def objective(theta):
        return _penalized_objective(theta[:16].reshape(4, 4), theta[16:], x, y, off_diagonal, intercept)

    expected = minimize(objective, np.append(np.eye(4).ravel(), np.zeros(4)), method="BFGS", options={"gtol": 1e-8}).fun
    found = _penalized_objective(fit.matrix, fit.bias, x, y, off_diagonal, intercept)
    assert found <= expected * (1 + 1e-6)


@pytest.mark.parametrize("kind", ["a class is missing", "one class dominates", "biases of 150"])
def test_dirichlet_of_over_confident_classes(kind):
    """The diagonal is free, and columns of log-probabilities are as small as 1e-70: every lane must be fitted."""
    rng = np.random.default_rng(0)
    lanes, n, k = 30, 100, 4
    z = rng.normal(size=(lanes, n, k))
    y = np.argmax(z * rng.uniform(0.3, 2, (lanes, 1, 1)) + rng.gumbel(size=z.shape), axis=-1)
    z = 30 * z
    if kind == "a class is missing":
        y = np.where(y == 0, 1 + rng.integers(0, 3, y.shape), y)
    elif kind == "one class dominates":
        z[..., 0] += 600
    else:
        z += 150 * rng.normal(size=(lanes, 1, k))
    fit = jaxcal.fit_dirichlet(jnp.asarray(z), y)
    assert np.all(fit.status <= Status.NOT_IDENTIFIED)
    frequencies = np.stack([np.bincount(row, minlength=k) for row in y]) / n
    entropy = -np.sum(frequencies * np.log(np.where(frequencies > 0, frequencies, 1)), axis=-1)
    assert np.all(fit.risk < entropy + 0.02)  # W = 0 and b = 0.01 log of the frequencies is among the maps
    np.testing.assert_allclose(fit.risk, jaxcal.risk(fit(jnp.asarray(z)), y), rtol=1e-4)


def _best_of(x, y, off_diagonal, intercept):
    """SciPy's minimum of `_penalized_objective`, in coordinates in which the features have variance one."""
    n, k = x.shape
    mean, share, hot = x.mean(0), np.full((k, k), off_diagonal / (k * (k - 1))), np.eye(k)[y]
    np.fill_diagonal(share, 0)
    turn = np.diag(1 / x.std(0))
    if not off_diagonal:  # uncorrelated, too
        _, size, axes = np.linalg.svd((x - mean) @ turn / n**0.5, full_matrices=False)
        turn = turn @ axes.T / size
    new = (x - mean) @ turn
    scale = abs(x @ np.ones(k)).max()

    def split(theta):
        matrix = theta[: k * k].reshape(k, k) @ turn.T + theta[-1] / scale * np.eye(k)
        return matrix, theta[k * k : -1] - matrix @ mean

    def value_and_slope(theta):
        matrix, bias = split(theta)
        log_p = _log_softmax((x - mean) @ matrix.T + bias + matrix @ mean)
        value = -np.mean(np.sum(hot * log_p, axis=1)) + np.sum(share * matrix**2) + intercept * np.mean(bias**2)
        residual, along = (np.exp(log_p) - hot) / n, 2 * share * matrix - 2 * intercept / k * np.outer(bias, mean)
        by_matrix = along + residual.T @ (x - mean)
        by_bias = residual.sum(0) + 2 * intercept / k * bias
        return value, np.concatenate(
            [(residual.T @ new + along @ turn).ravel(), by_bias, [np.trace(by_matrix) / scale]]
        )

    start = np.zeros(k * k + k + 1)
    options = {"gtol": 1e-9, "maxiter": 5000}
    return minimize(value_and_slope, start, jac=True, method="BFGS", options=options).fun


@pytest.mark.parametrize("kind", ["small", "columns of different scale", "nearly dependent", "offsets"])
def test_ill_conditioned_logits(kind):
    """Penalized, and without penalty where rows have offsets: in either precision the objective is that of SciPy."""
    rng = np.random.default_rng(0)
    lanes, n, k = 8, 200, 4
    z = rng.normal(size=(lanes, n, k))
    y = np.argmax(z * rng.uniform(0.3, 2, (lanes, 1, 1)) + rng.gumbel(size=z.shape), axis=-1)
    if kind == "small":
        z *= 1e-3
    elif kind == "columns of different scale":
        z *= 10 ** rng.uniform(-2, 3, (lanes, 1, k))
    elif kind == "nearly dependent":
        z[..., 0] = z[..., 1] + 1e-3 * z[..., 2]
        z *= 10 ** rng.uniform(0, 2, (lanes, 1, 1))
    else:
        z += 10 ** rng.uniform(3, 4, (lanes, 1, 1)) * rng.normal(size=(lanes, n, 1))
    z = z.astype(np.float32).astype(float)
    if kind == "offsets":
        off_diagonal = intercept = 0.0
        fit, x = jaxcal.fit_matrix_scaling(jnp.asarray(z), y), z
    else:
        off_diagonal = intercept = 1e-3
        fit, x = jaxcal.fit_dirichlet(jnp.asarray(z), y), _log_softmax(z)
    assert np.all(fit.status == Status.CONVERGED) and fit.num_steps.max() < 15
    for i in range(lanes):
        found = _penalized_objective(fit.matrix[i], fit.bias[i], x[i], y[i], off_diagonal, intercept)
        assert found <= _best_of(x[i], y[i], off_diagonal, intercept) + 2e-6, i


@pytest.mark.skipif(not jax.config.jax_enable_x64, reason="float32 has no such numbers")
def test_a_class_that_is_certain_to_127_digits():
    """Its log-probabilities are too small to be fitted, but not constant: nothing may be made of their mean."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(200, 4)) + [0, 0, 0, 300]
    y = np.argmax(z + [300, 300, 300, 0] + rng.gumbel(size=z.shape), axis=-1)
    fit = jaxcal.fit_dirichlet(z, y)
    assert fit.status <= Status.NOT_IDENTIFIED and abs(fit.matrix).max() < 1e3
    frequencies = np.bincount(y) / len(y)
    assert fit.risk < -np.sum(frequencies * np.log(frequencies)) + 0.02


@pytest.mark.parametrize("strength", [1.0, 1e-4])
@pytest.mark.parametrize("n, k", [(30, 3), (100, 3), (10, 2)])
def test_structured_matrix_of_rows_that_are_all_right(n, k, strength):
    """Smoothed one-hot rows, but for a few that are not quite: directions of hardly any spread, under a penalty.

    The optimum is that of the same tempered rows in float64, by Newton's method with the full matrix.
    """
    rng = np.random.default_rng(0)
    z = (2 * rng.normal(size=(20, n, k))).astype(np.float32)
    y = z.argmax(-1)
    fit = jaxcal.fit_structured_matrix(z, y, strength=strength)
    np.testing.assert_array_equal(fit.status, Status.CONVERGED)
    assert fit.num_steps.max() <= 20
    penalty = strength / n * np.where(np.eye(k, k + 1) + (np.arange(k + 1) == k) > 0, k, k * (k - 1))
    eps = float(jnp.finfo(fit.risk.dtype).eps)
    for i in range(5):
        x = np.asarray(fit.tempered(z)[i], float)
        found = np.c_[fit.matrix[i] - np.eye(k), fit.bias[i]].astype(float)
        objective = _penalized_loss(x, y[i], penalty)
        value, slope, curvature = (functools.partial(lambda of, part, t: of(t)[part], objective, m) for m in range(3))
        best = minimize(value, np.zeros(k * (k + 1)), jac=slope, hess=curvature, method="trust-exact", tol=1e-11)
        assert objective(found.ravel())[0] <= best.fun + 16 * eps * abs(best.fun)


def _penalized_loss(x, y, penalty):
    """Value, gradient and second derivatives, in the coefficients `(k * (k + 1),)`, about the identity."""
    n, k = x.shape
    rows = np.c_[x, np.ones(n)]

    def of(t):
        theta = t.reshape(k, k + 1)
        log_p = special.log_softmax(x + rows @ theta.T, axis=1)
        p = np.exp(log_p)
        value = -log_p[np.arange(n), y].mean() + (penalty * theta**2).sum()
        gradient = (p - np.eye(k)[y]).T @ rows / n + 2 * penalty * theta
        shares = np.einsum("na,ab->nab", p, np.eye(k)) - np.einsum("na,nb->nab", p, p)
        curvature = np.einsum("nab,ni,nj->aibj", shares, rows, rows) / n
        return value, gradient.ravel(), curvature.reshape(t.size, t.size) + 2 * np.diag(penalty.ravel())

    return of


# --- many rows: the first step looks at every fifth of them ---


def _every(step, n, inside, outside):
    return np.where(np.arange(n) % step == 0, inside, outside)


@pytest.mark.parametrize("weights", ["none seen", "a few seen", "only seen"])
@pytest.mark.parametrize("outliers", [False, True])
def test_rows_that_the_first_step_does_not_see(weights, outliers, eps):
    rng = np.random.default_rng(3)
    n, k = 1000, 3
    z = rng.normal(0, 1.5, (n, k))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=-1)
    order = np.argsort(y, kind="stable")  # each class in one piece
    z, y = 2 * z[order], y[order]
    if outliers:
        z[1::100] *= 300
    w = {"none seen": _every(5, n, 0, 1), "a few seen": _every(5, n, 1e-3, 1), "only seen": _every(5, n, 1, 0)}[weights]
    fit = jaxcal.fit_matrix_scaling(z, y, weights=w)
    assert fit.status == Status.CONVERGED
    p = np.exp(_log_softmax(z @ np.asarray(fit.matrix).T + np.asarray(fit.bias)))
    slopes = ((p - np.eye(k)[y]) * w[:, None] / w.sum()).T @ np.c_[z, np.ones(n)]
    np.testing.assert_allclose(slopes, 0, atol=eps * np.abs(z[w > 0]).max())


# --- many classes ---


@pytest.mark.skipif(not jax.config.jax_enable_x64, reason="the digits of the two are compared in float64")
def test_conjugate_gradients_and_the_direct_solution(monkeypatch):
    solver = sys.modules["jaxcal.solvers.softmax_regression"]
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(200, 40))
    y = np.argmax(z / 2 + rng.gumbel(size=z.shape), axis=-1)
    found = []
    for limit in (0, 10**6):
        monkeypatch.setattr(solver, "_DIRECT", limit)
        jax.clear_caches()
        found.append(jaxcal.fit_structured_matrix(z, y))
    a, b = found
    assert a.status == b.status == Status.CONVERGED and a.gradient_norm <= 1e-8
    np.testing.assert_allclose(a.risk, b.risk, rtol=1e-12)
    np.testing.assert_allclose(a.matrix, b.matrix, atol=1e-9)


@pytest.mark.once
@pytest.mark.parametrize("name", ["structured vector", pytest.param("structured matrix", marks=pytest.mark.slow)])
def test_a_thousand_classes_and_twenty_rows(name):
    """A million coefficients (slow), and 2,000."""
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(20, 1000))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=-1)
    fit = FITS[name](z, y)
    assert fit.status == Status.CONVERGED
    # penalties of 5e4 off the diagonal and 50 on it leave little but the temperature
    away = fit.matrix - np.eye(1000) if name == "structured matrix" else fit.scale - 1
    assert abs(away).max() < 0.02 and abs(fit.bias).max() < 2e-3
    assert fit.risk < jaxcal.risk(fit.tempered(z), y)
    sums = np.log(np.exp(np.asarray(fit(z), np.float64)).sum(-1))
    np.testing.assert_allclose(sums, 0, atol=4 * np.finfo(np.float32).eps)


# --- what is built on top ---


@names
def test_decompose_and_laplace(name, fitted, eps):
    fit, forecasts = fitted(name)
    parts = jaxcal.decompose(jnp.asarray(LOGITS), LABELS, calibrator=FITS[name], weights=jnp.asarray(WEIGHTS))
    good = ~np.isnan(fit.risk) & np.isfinite(parts.risk)
    assert good[AT["plain"]]
    np.testing.assert_allclose(
        parts.risk[good], (parts.calibration + parts.refinement)[good], rtol=16 * eps, atol=4 * eps
    )
    i = AT["plain"]
    np.testing.assert_allclose(parts.refinement[i], fit.risk[i], rtol=32 * eps)
    smooth = jaxcal.laplace(FITS[name])(LOGITS, LABELS, weights=jnp.asarray(WEIGHTS))
    expected = N / (N + 1) * np.exp(forecasts[i]) + 1 / (N + 1) / K
    np.testing.assert_allclose(np.exp(smooth(LANES["plain"][0])[i]), expected, rtol=64 * eps)


@pytest.mark.once
def test_cross_fit(eps):
    z, y, _ = LANES["plain"]
    out = jaxcal.cross_fit(jaxcal.fit_structured_vector, z, y, folds=3, key=jax.random.key(0))
    np.testing.assert_allclose(jax.nn.logsumexp(out, axis=-1), 0, atol=8 * eps)


@pytest.mark.parametrize("name", ["vector", "structured vector"])
def test_huge_weights_are_those_of_one(name, eps):
    """The sum is finite, its inverse vanishes."""
    rng = np.random.default_rng(3)
    logits, labels = rng.normal(size=(30, 3)), rng.integers(0, 3, 30)
    huge = 2.0 ** (np.log2(float(jnp.finfo(jnp.asarray(1.0).dtype).max)) // 1 - 5)
    large = 2.0**60  # where a penalty, which sees the number of rows, has faded
    one, many = (FITS[name](logits, labels, weights=np.full(30, w)) for w in (large, huge))
    assert one.status == many.status == Status.CONVERGED
    np.testing.assert_allclose(many(logits), one(logits), atol=1e-5 if name == "structured vector" else 64 * eps)


def test_logits_whose_squares_overflow_or_vanish_are_invalid():
    rng = np.random.default_rng(3)
    logits, labels = rng.normal(size=(30, 3)), rng.integers(0, 3, 30)
    limits = jnp.finfo(jnp.asarray(1.0).dtype)
    units = jnp.array([1.0, float(limits.max) ** 0.5, float(limits.tiny) ** 0.5])
    fits = jax.jit(FITS["matrix"])(units[:, None, None] * jnp.asarray(logits), labels)
    np.testing.assert_array_equal(fits.status, [Status.CONVERGED, Status.INVALID_INPUT, Status.INVALID_INPUT])
    assert np.isnan(fits.matrix[1:]).all()
    with pytest.raises(ValueError, match="squares of logits overflow or vanish"):
        FITS["matrix"](jnp.asarray(logits) * units[1], labels)


@pytest.mark.parametrize("name", ["vector", "dirichlet"])
def test_partly_separable_digits_end_in_a_usable_fit(name):
    """40 calibration sets of handwritten digits: some classes are told apart, others not, and the descent is slow."""
    datasets = pytest.importorskip("sklearn.datasets")
    linear_model = pytest.importorskip("sklearn.linear_model")
    x, y = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order] / 16, y[order]
    model = linear_model.LogisticRegression(C=100.0, max_iter=500).fit(x[:800], y[:800])
    rng = np.random.default_rng(1)
    rows = np.stack([800 + rng.permutation(len(y) - 800)[:100] for _ in range(40)])
    logits = model.decision_function(x).astype(np.float32)[rows]
    fit = (jaxcal.fit_dirichlet if name == "dirichlet" else FITS[name])(logits, y[rows])
    assert np.asarray(fit.status).max() <= Status.AT_UPPER_BOUND
    start = jaxcal.fit_temperature(logits, y[rows])
    assert (np.asarray(fit.risk) <= np.asarray(start.risk)).all()


@pytest.mark.parametrize("strength", [1e4, 1e7, 1e10, 1e30])
@pytest.mark.parametrize("off_diagonal", [0.0, 0.1])
def test_strong_penalties_of_the_intercept(strength, off_diagonal, x64):
    # the limit: no intercept, found by SciPy
    rng = np.random.default_rng(0)
    z = rng.normal(0, 2, (60, 3))
    y = (z + rng.gumbel(size=z.shape)).argmax(-1)
    fit = jaxcal.fit_matrix_scaling(jnp.asarray(z), y, intercept=strength, off_diagonal=off_diagonal)

    def objective(w):
        w = w.reshape(3, 3)
        off = (w**2).sum() - (np.diag(w) ** 2).sum()
        return -special.log_softmax(z @ w.T, axis=-1)[np.arange(60), y].mean() + off_diagonal * off / 6

    best = minimize(objective, np.eye(3).ravel(), method="BFGS", options={"gtol": 1e-9}).fun
    assert fit.status == Status.CONVERGED
    assert objective(np.asarray(fit.matrix, float)) == pytest.approx(best, rel=1e-5 if strength == 1e4 else 1e-6)
    gradient = np.asarray(fit.bias, float) * 2 * strength / 3
    p = special.softmax(z @ np.asarray(fit.matrix, float).T, axis=-1)
    expected = -(p - np.eye(3)[y]).mean(0)
    np.testing.assert_allclose(gradient, expected, atol=1e-3 if not x64 else 1e-4)
