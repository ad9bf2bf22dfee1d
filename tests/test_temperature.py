"""fit_temperature: the optimum, on ordinary and hostile data, under every transformation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from scipy.optimize import brentq

import jaxcal
from jaxcal import Status

N, K = 2000, 10  # one shape for all hostile data: one compilation


def _reference(logits, labels, weights=None):
    """Mean log loss and its slope in u, in float64 NumPy, and the root of the slope by scipy."""
    z, y = np.asarray(logits, np.float64), np.asarray(labels)
    w = np.ones(len(y)) if weights is None else np.asarray(weights, np.float64)
    z, y, w = z[w > 0], y[w > 0], w[w > 0] / w.sum()
    d = z - z.max(-1, keepdims=True)
    masked, own = np.isinf(d), d[np.arange(len(y)), y]

    def loss_and_slope(u):
        e = np.where(masked, 0, np.exp(u * np.where(masked, 0, d)))
        s = e.sum(-1)
        mean_gap = (e * np.where(masked, 0, d)).sum(-1) / s
        return w @ (np.log(s) - u * own), w @ (mean_gap - own)

    # the root lies between the first two of a geometric grid at which the (increasing) slope changes sign
    grid = np.log(1e-9 / -d[~masked].min()) + np.arange(200) * 0.5
    high = next(i for i, x in enumerate(grid) if loss_and_slope(np.exp(x))[1] > 0)
    u = np.exp(brentq(lambda x: loss_and_slope(np.exp(x))[1], grid[high - 1], grid[high], xtol=1e-14, rtol=1e-14))
    return u, loss_and_slope


def _logits(rng, scale=3.0, n=N, k=K):
    z = scale * rng.standard_normal((n, k))
    return z, np.argmax(z / (0.5 * scale) + rng.gumbel(size=z.shape), -1)


def _plain(rng):
    return *_logits(rng), None


def _scaled(factor):
    def make(rng):
        z, y = _logits(rng)
        return z * factor, y, None

    return make


def _offset(rng):
    z, y = _logits(rng)
    return z + 1e4 * rng.standard_normal((N, 1)), y, None


def _masked(value):
    def make(rng):
        z, y = _logits(rng)
        mask = rng.random(z.shape) < 0.3
        mask[np.arange(N), y] = False
        return np.where(mask, value, z), y, None

    return make


def _never_seen(rng):
    z, y = _logits(rng, k=K - 3)
    return np.concatenate([z, rng.standard_normal((N, 3))], -1), y, None


def _outlier(rng):
    z, y = _logits(rng)
    z[7], z[7, (y[7] + 1) % K] = 0, 1e4
    return z, y, None


def _one_error(rng):
    z, _ = _logits(rng)
    y = z.argmax(-1)
    y[5] = (y[5] + 1) % K
    return z, y, None


def _sorted(rng):
    z, y = _logits(rng)
    order = np.argsort(z.argmax(-1) == y, kind="stable")
    return z[order], y[order], None


def _heavy_tailed(rng):
    z = np.exp(4 * rng.standard_normal((N, K)))
    return z, np.argmax(z + rng.gumbel(size=z.shape), -1), None


def _weighted(rng):
    z, y = _logits(rng)
    return z, y, rng.random(N) * (rng.random(N) < 0.5)


def _three_weights(rng):
    z, y = _logits(rng)
    w = np.zeros(N)
    wrong = np.flatnonzero(z.argmax(-1) != y)[0]
    w[[wrong, 77, 1200]] = 1, 5, 5
    return z, y, w


def _tiny_weights(rng):
    z, y = _logits(rng)
    return z, y, 1e-30 * rng.random(N)


HOSTILE = {
    "plain": _plain,
    **{f"times {f:g}": _scaled(f) for f in (1e-30, 1e-6, 1e6, 1e15)},
    "offset 1e4": _offset,
    "masked": _masked(-np.inf),
    "masked with -1e9": _masked(-1e9),
    "classes never seen": _never_seen,
    "an outlier of 1e4": _outlier,
    "one error": _one_error,
    "errors first": _sorted,
    "heavy tails": _heavy_tailed,
    "weighted": _weighted,
    "three weights": _three_weights,
    "weights of 1e-30": _tiny_weights,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_reaches_the_float64_optimum(name, x64):
    dtype = np.float64 if x64 else np.float32
    z, y, w = HOSTILE[name](np.random.default_rng(0))
    z, w = z.astype(dtype), None if w is None else w.astype(dtype)
    fit = jaxcal.fit_temperature(jnp.asarray(z), jnp.asarray(y), weights=w)
    best, loss_and_slope = _reference(z, y, w)
    u, lowest = float(fit.inverse_temperature), loss_and_slope(best)[0]
    assert int(fit.status) == Status.CONVERGED
    assert abs(u / best - 1) < (1e-9 if x64 else 1e-4)
    assert loss_and_slope(u)[0] / lowest - 1 < (1e-12 if x64 else 1e-9)
    # the reported loss is a float mean of 2,000 terms, each rounded to one eps of max(term, 1)
    assert abs(float(fit.risk) - lowest) < 8 * np.finfo(dtype).eps * max(lowest, 1)


@pytest.mark.parametrize("shape", [(37, 3), (600, 40)])
def test_other_shapes_reach_the_optimum(shape, x64):
    z, y = _logits(np.random.default_rng(1), n=shape[0], k=shape[1])
    z = z.astype(np.float64 if x64 else np.float32)
    fit = jaxcal.fit_temperature(jnp.asarray(z), jnp.asarray(y))
    assert abs(float(fit.inverse_temperature) / _reference(z, y)[0] - 1) < (1e-9 if x64 else 1e-4)


def test_reference_values(m8, x64):
    # mpmath, 40 digits
    fit = jaxcal.fit_temperature(*m8)
    rtol = 1e-12 if x64 else 1e-5
    np.testing.assert_allclose(float(fit.temperature), 1.0816110045900151548, rtol=rtol)
    np.testing.assert_allclose(float(fit.inverse_temperature), 0.92454680634379286778, rtol=rtol)
    np.testing.assert_allclose(float(fit.risk), 0.77612008225523837431, rtol=rtol)
    row = np.exp(np.asarray(fit(m8[0])[0]))
    np.testing.assert_allclose(row, [0.7620192093738481, 0.1904046520330056, 0.04757613859314627], rtol=rtol)
    brier = jaxcal.fit_temperature(*m8, loss=jaxcal.brier_loss)
    np.testing.assert_allclose(float(brier.temperature), 1.28386219361322913, rtol=1e-11 if x64 else 1e-5)
    np.testing.assert_allclose(float(brier.risk), 0.479838474236664081, rtol=rtol)


def test_binary_temperature_of_d10(d10, x64):
    # mpmath: beta = 0.8959015078122821, mean log loss 0.5361898005915139
    fit = jaxcal.fit_temperature(jaxcal.binary_logits(jaxcal.log_odds(d10[0])), d10[1])
    np.testing.assert_allclose(float(fit.inverse_temperature), 0.8959015078122821, rtol=1e-12 if x64 else 1e-5)
    np.testing.assert_allclose(float(fit.risk), 0.5361898005915139, rtol=1e-14 if x64 else 1e-6)


def test_closed_form():
    # four equal scores of 2, three positive: sigmoid(2u) = 3/4
    fit = jaxcal.fit_temperature(jaxcal.binary_logits(jnp.full(4, 2.0)), jnp.array([1, 1, 1, 0]))
    np.testing.assert_allclose(float(fit.inverse_temperature), np.log(3) / 2, rtol=1e-6)
    np.testing.assert_allclose(float(fit.risk), 0.562335144618808, rtol=1e-6)


def test_brier_returns_the_global_of_two_minima(x64):
    # margins with minima at u = .279 (half Brier .22870647) and ln(3)/.02 (.20833333), by a dense grid
    margins = np.array([4, 4, 4, -4] + [0.02] * 6 + [-0.02] * 2)
    z, y = jaxcal.binary_logits(jnp.asarray(margins)), jnp.ones(12, int)
    fit = jaxcal.fit_temperature(z, y, loss=jaxcal.half_brier_loss)
    np.testing.assert_allclose(float(fit.inverse_temperature), np.log(3) / 0.02, rtol=1e-9 if x64 else 1e-4)
    np.testing.assert_allclose(float(fit.risk), 5 / 24, rtol=1e-6)
    local = jaxcal.risk(0.27913281 * z, y, loss=jaxcal.half_brier_loss)
    np.testing.assert_allclose(float(local), 0.22870647, rtol=1e-6)
    # with one more confident error the other valley wins; the witness is a dense grid
    margins = jnp.asarray([4, 4, 4, -4, 4, 4, 4, 4] + [0.02, -0.02] * 4)
    z, y = jaxcal.binary_logits(margins), jnp.ones(16, int)
    fit = jaxcal.fit_temperature(z, y, loss=jaxcal.half_brier_loss)
    grid = np.exp(np.linspace(-5, 8, 4001))
    losses = jax.vmap(lambda u: jaxcal.risk(u * z, y, loss=jaxcal.half_brier_loss))(jnp.asarray(grid))
    assert float(fit.risk) <= float(losses.min()) * (1 + 1e-6)
    np.testing.assert_allclose(float(fit.inverse_temperature), grid[int(losses.argmin())], rtol=5e-3)


@pytest.mark.parametrize("loss", [jaxcal.brier_loss, jaxcal.spherical_loss], ids=repr)
@pytest.mark.parametrize("seed", range(4))
def test_no_temperature_of_a_dense_grid_is_better(loss, seed):
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((40, 3)) * np.exp(2 * rng.standard_normal((40, 1)))  # rows of very different gaps
    z, y = jnp.asarray(z), jnp.asarray(rng.integers(0, 3, 40))
    fit = jaxcal.fit_temperature(z, y, loss=loss)
    grid = jnp.exp(jnp.linspace(-12.0, 12.0, 3001))
    losses = jax.vmap(lambda u: jaxcal.risk(u * z, y, loss=loss))(grid)
    assert float(fit.risk) <= float(losses.min()) * (1 + 4 * float(jnp.finfo(z.dtype).eps))


LOSSES = [jaxcal.log_loss, jaxcal.brier_loss]


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_anti_informative_logits(m8, loss):
    z, y = m8
    fit = jaxcal.fit_temperature(-3 * jax.nn.one_hot(y, 3) + 0 * z, y, loss=loss)
    assert int(fit.status) == Status.AT_LOWER_BOUND
    assert float(fit.inverse_temperature) == 0 and float(fit.temperature) == np.inf
    masked = jnp.asarray([[1.0, 2.0, -jnp.inf]])
    np.testing.assert_allclose(np.exp(fit(masked)), [[0.5, 0.5, 0.0]], rtol=1e-6)


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        ([[0.0, 1.0]] * 4, [1, 0, 1, 0]),
        ([[0.0, 2.0]] * 10, [0, 1] * 5),
        ([[1.0, 0.0, -1.0, -jnp.inf]] * 3, [0, 1, 2]),
        ([[1.0, 0.0, -1.0], [-1.0, 2.0, -1.0]], [0, 0]),
    ],
)
def test_balanced_logits_say_nothing(logits, labels):
    """The mean logit of the labels is that of the rows exactly: the convex loss has its minimum at u = 0."""
    fit = jaxcal.fit_temperature(jnp.array(logits), jnp.array(labels))
    assert int(fit.status) == Status.AT_LOWER_BOUND and float(fit.inverse_temperature) == 0
    more = jaxcal.fit_temperature(jnp.array(logits).at[0, labels[0]].add(0.1), jnp.array(labels))
    assert int(more.status) == Status.CONVERGED and float(more.inverse_temperature) > 1e-3


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("ties", [False, True])
def test_perfect_accuracy_stops_at_the_smallest_sufficient_u(loss, ties, eps):
    z, _ = _logits(np.random.default_rng(3), n=50, k=4)
    y = jnp.asarray(z.argmax(-1))
    if ties:
        z[0] = [1, 1, 0, -2]  # infimum: half a bit more on one row of fifty
        y = y.at[0].set(0)
    z = jnp.asarray(z)
    fit = jaxcal.fit_temperature(z, y, loss=loss)
    infimum = {"log_loss": np.log(2) / 50, "brier_loss": 0.5 / 50}[loss.name] if ties else 0.0
    u = float(fit.inverse_temperature)
    assert int(fit.status) == Status.AT_UPPER_BOUND
    assert np.isfinite(u) and bool(jnp.isfinite(fit(z)).all())
    excess = lambda u: float(jaxcal.risk(u * z, y, loss=loss)) - infimum  # noqa: E731
    rounding = eps * infimum  # of the subtraction
    assert excess(u) <= eps + rounding
    assert excess(0.9 * u) > eps - rounding


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_constant_rows_leave_the_temperature_at_one(loss):
    z = jnp.asarray([[1.0, 1.0, 1.0], [-5.0, -5.0, -jnp.inf]])
    fit = jaxcal.fit_temperature(z, jnp.array([2, 0]), loss=loss)
    assert int(fit.status) == Status.NOT_IDENTIFIED
    assert float(fit.temperature) == 1
    np.testing.assert_allclose(np.exp(fit(z)), [[1 / 3] * 3, [0.5, 0.5, 0]], rtol=1e-6)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_weights_are_counts(loss, eps):
    rng = np.random.default_rng(4)
    z, y = _logits(rng, n=60, k=3)
    z, counts = jnp.asarray(z), rng.integers(0, 4, 60)
    weighted = jaxcal.fit_temperature(z, jnp.asarray(y), weights=counts, loss=loss)
    repeated = jaxcal.fit_temperature(jnp.repeat(z, counts, 0), jnp.asarray(np.repeat(y, counts)), loss=loss)
    np.testing.assert_allclose(weighted.temperature, repeated.temperature, rtol=eps**0.75 * 20)
    np.testing.assert_allclose(weighted.risk, repeated.risk, rtol=8 * eps)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_rows_of_weight_zero_are_absent(m8, loss, eps):
    z, y = m8
    rows = jnp.asarray([[jnp.nan] * 3, [jnp.inf, 0, 0], [-jnp.inf] * 3])
    padded_z, padded_y = (
        jnp.concatenate([z, rows.astype(z.dtype)]),
        jnp.concatenate([y, jnp.array([-1, 99, 0], y.dtype)]),
    )
    w = jnp.asarray([1.0] * 8 + [0.0] * 3)

    def temperature(z, w, y):
        return jaxcal.fit_temperature(z, y, weights=w, loss=loss).temperature

    fit = jax.value_and_grad(temperature, argnums=(0, 1))
    full, slopes = fit(padded_z, w, padded_y)
    harmless, harmless_slopes = fit(padded_z.at[8:].set(0), w, padded_y.at[8:].set(0))
    assert full == harmless
    for ours, theirs in zip(slopes, harmless_slopes, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert not ours[8:].any()
    np.testing.assert_allclose(full, temperature(z, w[:8], y), rtol=eps**0.75)


def test_batch_axes_broadcast_and_agree_with_single_fits(eps):
    rng = np.random.default_rng(5)
    z, y = _logits(rng, n=80, k=4)
    z = jnp.asarray(np.stack([z * s for s in (0.1, 1.0, 30.0)]))[:, None]  # (3, 1, n, k)
    y = jnp.asarray(y)
    w = jnp.asarray(rng.integers(1, 4, (2, 80)).astype(float))  # (2, n)
    fit = jaxcal.fit_temperature(z, y, weights=w)
    assert fit.temperature.shape == fit.status.shape == fit.num_steps.shape == (3, 2)
    single = [[jaxcal.fit_temperature(z[i, 0], y, weights=w[j]).temperature for j in range(2)] for i in range(3)]
    np.testing.assert_allclose(fit.temperature, single, rtol=eps**0.75)
    assert fit(z).shape == (3, 2, 80, 4)
    mapped = jax.vmap(lambda z: jax.vmap(lambda w: jaxcal.fit_temperature(z[0], y, weights=w))(w))(z)
    np.testing.assert_allclose(mapped.temperature, fit.temperature, rtol=eps**0.75)


def test_a_bad_lane_spoils_only_itself(m8):
    z, y = m8
    lanes = jnp.stack([z, z.at[2, 0].set(jnp.nan), z.at[3, y[3]].set(-jnp.inf), -3 * jax.nn.one_hot(y, 3) + 0 * z, z])
    fit = jaxcal.fit_temperature(lanes, y)
    expected = [
        Status.CONVERGED,
        Status.INVALID_INPUT,
        Status.IMPOSSIBLE_EVENT,
        Status.AT_LOWER_BOUND,
        Status.CONVERGED,
    ]
    assert fit.status.tolist() == [int(s) for s in expected]
    np.testing.assert_array_equal(np.isnan(fit.temperature), [False, True, True, False, False])
    np.testing.assert_array_equal(fit.risk[1:3], [np.nan, np.inf])
    assert fit.temperature[0] == fit.temperature[4]
    with pytest.raises(ValueError, match="INVALID_INPUT in lane"):
        fit.check()


@pytest.mark.parametrize("k", [5, 40, 300])
@pytest.mark.parametrize("own", [False, True], ids=["another class", "own class"])
def test_nan_anywhere_spoils_its_lane(k, own):
    # vectorized maxima of a compiled program may forget NaN
    rng = np.random.default_rng(0)
    z = np.stack([2 * rng.normal(size=(60, k))] * 3)
    y = (z[0] + rng.gumbel(size=z[0].shape)).argmax(-1)
    z[1, 3, y[3] if own else y[3] - 1] = np.nan
    fit = jaxcal.fit_temperature(jnp.asarray(z), y)
    assert fit.status.tolist() == [Status.CONVERGED, Status.INVALID_INPUT, Status.CONVERGED]
    parts = jaxcal.decompose(jnp.asarray(z), y)
    for value in (fit.risk, fit.temperature, parts.risk, parts.refinement, jaxcal.accuracy(jnp.asarray(z), y)):
        assert np.isnan(value).tolist() == [False, True, False]


def test_brier_accepts_a_masked_own_class(m8):
    z, y = m8
    fit = jaxcal.fit_temperature(z.at[3, y[3]].set(-jnp.inf), y, loss=jaxcal.brier_loss)
    assert int(fit.status) == Status.CONVERGED and np.isfinite(float(fit.risk))


BAD = {
    "NaN": (lambda z, y: (z.at[4, 1].set(jnp.nan), y, None), "row 4 is"),
    "+inf": (lambda z, y: (z.at[4, 1].set(jnp.inf), y, None), r"\+inf.*row 4"),
    "all -inf": (lambda z, y: (z.at[4].set(-jnp.inf), y, None), "every class; row 4"),
    "label k": (lambda z, y: (z, y.at[6].set(3), None), r"\[0, 3\).*row 6 has label 3"),
    "label -1": (lambda z, y: (z, y.at[6].set(-1), None), "row 6 has label -1"),
    "impossible": (lambda z, y: (z.at[1, 1].set(-jnp.inf), y, None), "row 1 .*logits_from_probs.*laplace"),
    "negative weight": (lambda z, y: (z, y, jnp.ones(8).at[3].set(-1)), "got -1.0 in row 3"),
    "NaN weight": (lambda z, y: (z, y, jnp.ones(8).at[3].set(jnp.nan)), "got nan in row 3"),
    "no weight": (lambda z, y: (z, y, jnp.zeros(8)), "all zero"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_values_raise_eagerly_and_are_flagged_under_jit(m8, name):
    make, message = BAD[name]
    z, y, w = make(*m8)
    with pytest.raises(ValueError, match=message):
        jaxcal.fit_temperature(z, y, weights=w)
    fit = jax.jit(lambda z, y, w: jaxcal.fit_temperature(z, y, weights=w))(z, y, w)
    assert int(fit.status) >= Status.INVALID_INPUT
    assert np.isnan(float(fit.temperature)) and not np.isfinite(float(fit.risk))
    assert bool(jnp.isnan(jax.jit(lambda fit, z: fit(z))(fit, m8[0])).all())


def test_static_mistakes_raise_at_once(m8):
    z, y = m8
    with pytest.raises(TypeError, match="floating point"):
        jaxcal.fit_temperature(y[:, None] * jnp.ones((1, 3), int), y)
    with pytest.raises(TypeError, match="labels must be integers"):
        jaxcal.fit_temperature(z, y.astype(float))
    with pytest.raises(ValueError, match="class indices"):
        jaxcal.fit_temperature(z, jax.nn.one_hot(y, 3, dtype=int))
    with pytest.raises(ValueError, match="binary_logits"):
        jaxcal.fit_temperature(z[:, :1], y)
    with pytest.raises(ValueError, match=r"labels must have shape"):
        jaxcal.fit_temperature(z, y[:5])
    with pytest.raises(ValueError, match="weights must have shape"):
        jaxcal.fit_temperature(z, y, weights=jnp.ones(5))
    with pytest.raises(ValueError, match="not be empty"):
        jaxcal.fit_temperature(z[:0], y[:0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32(m8, dtype):
    z = m8[0].astype(dtype)
    fit, same = jaxcal.fit_temperature(z, m8[1]), jaxcal.fit_temperature(z.astype(jnp.float32), m8[1])
    assert fit.temperature.dtype == fit.risk.dtype == jnp.float32
    assert fit.temperature == same.temperature
    assert fit(z).dtype == z.dtype


def test_one_trace_a_shape(m8):
    z, y = m8
    traces = []

    @jax.jit
    def fit(z, y):
        traces.append(z.shape)
        return jaxcal.fit_temperature(z, y).temperature

    for factor in (1.0, 2.0, -3.0):
        fit(factor * z, y)
    assert traces == [z.shape]


def test_probabilities_sum_to_one(m8, eps):
    fit = jaxcal.fit_temperature(*m8)
    log_p = fit(100 * m8[0] + 1e3)
    np.testing.assert_allclose(np.asarray(jax.nn.logsumexp(log_p, axis=-1)), 0, atol=4 * eps)


def _xlogy_loss():
    return jaxcal.proper_loss(lambda p: -jnp.sum(jax.scipy.special.xlogy(p, p)), name="xlogy")


@pytest.mark.parametrize("masked", [False, True])
def test_an_unbounded_proper_loss_finds_what_log_loss_finds(masked, x64):
    z, y = _logits(np.random.default_rng(6), n=200, k=3)
    z, y = jnp.asarray(z), jnp.asarray(y)
    if masked:
        z, y = z.at[:, 2].set(-jnp.inf), jnp.minimum(y, 1)
    general, direct = jaxcal.fit_temperature(z, y, loss=_xlogy_loss()), jaxcal.fit_temperature(z, y)
    assert int(general.status) == Status.CONVERGED
    np.testing.assert_allclose(general.temperature, direct.temperature, rtol=1e-9 if x64 else 1e-4)
    np.testing.assert_allclose(general.risk, direct.risk, rtol=1e-12 if x64 else 1e-6)


def test_a_proper_loss_with_masked_rows_has_the_derivatives_of_log_loss(eps):
    z = jnp.asarray([[2.0, 0, -jnp.inf], [0, 1, 0], [1, 0.5, 0], [0, 0.2, 2]])
    y = jnp.asarray([0, 1, 1, 2])

    def slopes(loss):
        return jax.grad(lambda z: jaxcal.fit_temperature(z, y, loss=loss).temperature)(z)

    np.testing.assert_allclose(slopes(_xlogy_loss()), slopes(jaxcal.log_loss), rtol=eps**0.5, atol=eps**0.5)


@pytest.mark.parametrize("loss", LOSSES[:2], ids=repr)
def test_finite_masks_are_masks(loss, eps):
    rng = np.random.default_rng(5)
    n, k, sizes, shares = 200, 4, [1e4, 1e7, 1e9, 1e11, 1e20, 3e38], [1 / 200, 0.2, 0.9]
    labels = rng.integers(0, k, (len(sizes), len(shares), 8, n))
    logits = 1.2 * np.eye(k)[labels] + rng.normal(size=(*labels.shape, k))
    masked = rng.random(logits.shape) < np.reshape(shares, (-1, 1, 1, 1))
    masked[..., 0, -1] = True
    masked &= ~np.eye(k, dtype=bool)[labels]
    finite = np.where(masked, -np.reshape(sizes, (-1, 1, 1, 1, 1)), logits)
    found, expected = (jaxcal.decompose(z, labels, loss=loss) for z in (finite, np.where(masked, -np.inf, logits)))
    assert (expected.status == Status.CONVERGED).all() and (found.status == Status.CONVERGED).all()
    np.testing.assert_allclose(found.refinement, expected.refinement, rtol=30 * eps)
    np.testing.assert_allclose(found.fit.temperature, expected.fit.temperature, rtol=30 * eps**0.75)

    def gradient(z):
        return jax.grad(lambda z: jnp.sum(jaxcal.fit_temperature(z, labels[:, 0, 0], loss=loss).temperature))(z)

    by_finite, by_infinite = (np.asarray(gradient(z[:, 0, 0])) for z in (finite, np.where(masked, -np.inf, logits)))
    unmasked = ~masked[:, 0, 0]
    np.testing.assert_allclose(by_finite[unmasked], by_infinite[unmasked], atol=1e3 * eps**0.75 / n)


@pytest.mark.parametrize("kind", ["two rows", "entries", "rows"])
def test_no_temperature_is_better_for_gaps_of_many_sizes(kind, eps):
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 8, (2000, 12))
    logits = rng.uniform(0, 3, (2000, 1, 1)) * np.eye(8)[labels] + rng.normal(size=(2000, 12, 8))
    if kind == "two rows":
        logits[:, :2] *= 10 ** rng.uniform(1, 12, (2000, 1, 1))
    elif kind == "entries":
        logits = np.exp(logits * rng.uniform(1, 6, (2000, 1, 1)))
    else:
        logits *= 10 ** rng.uniform(-6, 6, (2000, 12, 1))
    logits = np.asarray(jnp.asarray(logits), np.float64)  # as rounded
    fit = jaxcal.fit_temperature(logits, labels)
    gaps = logits - np.take_along_axis(logits, labels[..., None], axis=-1)
    grid = np.exp(np.linspace(-35, 35, 141))
    best = np.min([special.logsumexp(u * gaps, axis=-1).mean(-1) for u in (0, *grid)], axis=0)
    assert (fit.status < Status.NOT_CONVERGED).all()
    assert (fit.risk <= best + 40 * eps * np.maximum(best, 1)).all()
    at_fit = special.logsumexp(np.asarray(fit.inverse_temperature)[:, None, None] * gaps, axis=-1).mean(-1)
    np.testing.assert_allclose(fit.risk, at_fit, rtol=40 * eps, atol=40 * eps)


def test_finite_masks_where_nothing_else_informs(eps, x64):
    rng = np.random.default_rng(6)
    labels = rng.integers(0, 3, 200)
    mask = -1e300 if x64 else -1e38
    logits = np.pad(-np.eye(3)[labels] + 0.1 * rng.normal(size=(200, 3)), ((0, 0), (0, 1)), constant_values=mask)
    fit = jaxcal.fit_temperature(logits, labels)
    assert fit.status == Status.AT_LOWER_BOUND
    np.testing.assert_allclose([fit.risk, jaxcal.risk(fit(logits), labels)], np.log(3), rtol=8 * eps)


@pytest.mark.parametrize("weight", [1e9, 1e18, 1e25])
def test_one_dominant_weight(weight, x64):
    # one row of margin 1 against eleven of -1/2: u = log(m)-ish, from the balance m/(1+e^u) = 5.5/(1+e^(-u/2))
    margins = jnp.asarray([1.0] + [-0.5] * 11)
    fit = jaxcal.fit_temperature(jaxcal.binary_logits(margins), jnp.ones(12, int), weights=[weight] + [1.0] * 11)
    u = brentq(lambda u: np.log(weight) - np.logaddexp(0, u) - np.log(5.5) + np.logaddexp(0, -u / 2), 0, 200)
    assert int(fit.status) == Status.CONVERGED
    np.testing.assert_allclose(fit.inverse_temperature, u, rtol=1e-9 if x64 else 1e-4)


def test_what_is_no_loss_is_named(m8):
    for call in (jaxcal.fit_temperature, jaxcal.decompose, jaxcal.risk):
        with pytest.raises(TypeError, match="loss must be a jaxcal.ProperLoss"):
            call(*m8, loss="brier")
