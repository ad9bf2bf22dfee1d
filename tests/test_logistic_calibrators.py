"""Platt scaling, beta calibration and quadratic scaling: one solver, held to mpmath, SciPy and scikit-learn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

import jaxcal
from jaxcal import Status

FITS = {
    "platt": jaxcal.fit_platt,
    "platt, y": functools.partial(jaxcal.fit_platt, smooth=False),
    "beta": jaxcal.fit_beta,
    "beta, am": functools.partial(jaxcal.fit_beta, variant="am"),
    "beta, ab": functools.partial(jaxcal.fit_beta, variant="ab"),
    "quadratic": jaxcal.fit_quadratic,
    "quadratic, ridge": functools.partial(jaxcal.fit_quadratic, ridge=0.1),
}
fits = pytest.mark.parametrize("fit", FITS.values(), ids=FITS.keys())
N = 60


@pytest.fixture
def data():
    """Scores, outcomes and whole weights of three lanes; the second is anti-informative."""
    rng = np.random.default_rng(0)
    score = rng.normal(0, 2, (3, N))
    sign = np.array([1.0, -1.0, 0.3])[:, None]
    outcomes = (rng.random((3, N)) < 1 / (1 + np.exp(-sign * score - 0.3))).astype(int)
    return jnp.asarray(score), outcomes, rng.integers(0, 4, (3, N))


def parameters(fitted):
    """All numbers that a fit predicts with."""
    names = [n for n in ("slope", "level", "a", "b", "c", "coefficients") if hasattr(fitted, n)]
    return jnp.concatenate([jnp.ravel(getattr(fitted, n)) for n in names])


# --- values ---


def test_ten_forecasts(d10, eps):
    """Maxima of the likelihood from mpmath with 40 digits; Platt's agrees with scikit-learn to 9 digits."""
    p, y = d10
    score = jaxcal.log_odds(p)
    close = functools.partial(np.testing.assert_allclose, rtol=64 * eps)
    platt = jaxcal.fit_platt(score, y)
    close(platt.slope, 0.5667732678613071)
    close(platt.intercept, 0.1663809759281463)
    close(platt.risk, 0.6158559193114933)
    raw = jaxcal.fit_platt(p, y)
    close(raw.slope, 2.922352476789459)
    close(raw.intercept, -1.299924564860477)
    close(raw.risk, 0.6225623101114765)
    affine = jaxcal.fit_platt(score, y, smooth=False)
    close(affine.slope, 0.946328155739028)
    close(affine.intercept, 0.2849119443218132)
    beta = jaxcal.fit_beta(score, y)
    close([beta.a, beta.b, beta.c], [0.9678261942820528, 0.9195174697847823, 0.3249261601364891], rtol=256 * eps)
    close(beta.risk, 0.5293083356369906)
    am = jaxcal.fit_beta(score, y, variant="am")
    close([am.a, am.b, am.c], [0.946328155739028, 0.946328155739028, 0.2849119443218132])
    quadratic = jaxcal.fit_quadratic(score, y)
    expected = [0.3029975919971298, 0.9386708686466677, -0.01453345283652096]
    close(quadratic.coefficients, expected, rtol=256 * eps, atol=64 * eps)
    close(quadratic.risk, 0.5292418474808292)


def _objective(name, score, y, w):
    """Loss, start, bounds and the map from parameters to log-odds."""
    p = 1 / (1 + np.exp(-score))
    features = {
        "platt": [np.ones_like(score), score],
        "platt, y": [np.ones_like(score), score],
        "beta": [np.ones_like(score), np.log(p), -np.log1p(-p)],
        "beta, am": [np.ones_like(score), score],
        "beta, ab": [np.log(2 * p), -np.log(2 * (1 - p))],
        "quadratic": [np.ones_like(score), score, score**2],
        "quadratic, ridge": [np.ones_like(score), score, score**2],
    }[name]
    x = np.stack(features, axis=-1)
    ones, zeros = (w * y).sum(), (w * (1 - y)).sum()
    t = np.where(y, (ones + 1) / (ones + 2), 1 / (zeros + 2)) if name == "platt" else y
    identity = np.array([0.0, 1.0, 0.0])

    def loss(theta):
        eta = x @ theta
        mean = np.sum(w * (np.logaddexp(0, eta) - t * eta)) / w.sum()
        return mean + 0.1 * np.sum((theta - identity) ** 2) if name == "quadratic, ridge" else mean

    free = (None, None)
    bounds = {"beta": [free, (0, None), (0, None)], "beta, am": [free, (0, None)], "beta, ab": [(0, None)] * 2}
    return loss, x, bounds.get(name, [free] * x.shape[1])


@pytest.mark.parametrize("name", FITS)
def test_loss_is_never_above_that_of_scipy(name, data, eps):
    score, outcomes, weights = data
    fitted = FITS[name](score, outcomes, weights=weights)
    assert (fitted.status == Status.CONVERGED).all()
    p = np.asarray(fitted(score), np.float64)
    for i in range(3):
        s, y, w = np.asarray(score[i], np.float64), outcomes[i], weights[i].astype(float)
        loss, x, bounds = _objective(name, s, y, w)
        best = minimize(loss, np.full(x.shape[1], 0.1), bounds=bounds, method="L-BFGS-B", options={"ftol": 1e-15})
        theta = np.linalg.lstsq(x, np.log(p[i]) - np.log1p(-p[i]), rcond=None)[0]  # as the fit predicts
        assert loss(theta) <= best.fun + max(1e-9, 4 * eps) * abs(best.fun)


def test_platt_without_targets_is_logistic_regression(data):
    score, outcomes, weights = data
    fitted = jaxcal.fit_platt(score, outcomes, weights=weights, smooth=False)
    rows = np.asarray(score, np.float64)
    for i in range(3):
        peer = LogisticRegression(C=np.inf, tol=1e-10).fit(rows[i, :, None], outcomes[i], weights[i])
        np.testing.assert_allclose(fitted.slope[i], peer.coef_[0, 0], rtol=1e-4)
        np.testing.assert_allclose(fitted.intercept[i], peer.intercept_[0], rtol=1e-4)


def test_beta_is_non_decreasing_where_the_free_optimum_is_not(data):
    """The second lane is anti-informative: everything is mapped to the frequency."""
    score, outcomes, _ = data
    fitted = jaxcal.fit_beta(score, outcomes)
    assert (fitted.a >= 0).all() and (fitted.b >= 0).all() and fitted.a[1] == fitted.b[1] == 0
    np.testing.assert_allclose(fitted(score[1])[1], outcomes[1].mean(), rtol=1e-6)


# --- forms of the data ---


@fits
def test_weights_are_counts_and_absent_rows_hold_anything(fit, data, eps):
    score, outcomes, weights = (np.array(a[0]) for a in data)
    dirty, other = score.copy(), outcomes.copy()
    dirty[weights == 0], other[weights == 0] = np.nan, 7
    weighted = fit(dirty, other, weights=weights)
    repeated = fit(np.repeat(score, weights), np.repeat(outcomes, weights))
    np.testing.assert_allclose(parameters(weighted), parameters(repeated), rtol=512 * eps, atol=512 * eps)


@fits
def test_lanes_jit_and_vmap(fit, data, eps):
    score, outcomes, weights = data
    stacked = fit(score, outcomes, weights=weights)
    close = functools.partial(np.testing.assert_allclose, rtol=512 * eps, atol=512 * eps)
    new = jnp.linspace(-4, 4, 5).astype(score.dtype)
    for i in range(3):
        close(fit(score[i], outcomes[i], weights=weights[i])(new), stacked(new)[i])
    count = 0

    @jax.jit
    def compiled(score, outcomes, weights):
        nonlocal count
        count += 1
        return fit(score, outcomes, weights=weights)

    close(compiled(score, outcomes, weights)(new), stacked(new))
    compiled(score + 1, outcomes, weights)
    assert count == 1
    mapped = jax.vmap(lambda s, y, w: fit(s, y, weights=w)(new))(score, outcomes, weights)
    close(mapped, stacked(new))
    assert stacked.log_probabilities(new).shape == (3, 5, 2)
    sums = jax.nn.logsumexp(stacked.log_probabilities(new), axis=-1)
    close(sums, 0, atol=4 * eps)


@pytest.mark.parametrize("offset, scale", [(1e4, 1.0), (0.0, 1e-20), (-3e5, 1e15)])
def test_platt_in_any_unit(data, eps, offset, scale):
    score, outcomes, _ = (np.asarray(a[0], np.float64) for a in data)
    plain = jaxcal.fit_platt(score, outcomes)
    moved = (scale * (score + offset)).astype(jnp.zeros(1).dtype)
    fitted = jaxcal.fit_platt(moved, outcomes)
    # what is left of the digits of the scores themselves
    tolerance = 64 * eps * max(1, abs(offset))
    np.testing.assert_allclose(fitted(moved), plain(score), rtol=tolerance, atol=tolerance)


@fits
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(fit, data, dtype):
    score, outcomes, _ = data
    half = score[0].astype(dtype)
    result = fit(half, outcomes[0])(half)
    expected = fit(half.astype(jnp.float32), outcomes[0])(half.astype(jnp.float32))
    assert result.dtype == dtype
    np.testing.assert_allclose(result.astype(jnp.float32), expected, rtol=2 * float(jnp.finfo(dtype).eps))


# --- degenerate and bad data ---


@fits
@pytest.mark.parametrize(
    ("score", "outcomes"),
    [
        ([0.7], [1]),
        ([0.7, 0.7, 0.7], [0, 1, 1]),
        ([0.7, 0.7], [0, 0]),
        ([-1.0, 2.0], [0, 1]),
        ([-1.0, 2.0], [1, 0]),
        ([-1.0, 0.0, 2.0, 3.0], [0, 0, 1, 1]),
        ([-1.0, 0.5, 0.5, 2.0], [0, 0, 1, 1]),
        ([-30.0, 30.0, 30.0], [0, 1, 0]),
    ],
)
def test_degenerate_data_are_usable(fit, score, outcomes):
    score, outcomes = np.array(score), np.array(outcomes)
    fitted = fit(score, outcomes)
    assert fitted.status < Status.NOT_CONVERGED
    assert np.isfinite(parameters(fitted)).all() and np.isfinite(fitted.risk)
    p = np.asarray(fitted(score))
    assert ((p >= 0) & (p <= 1)).all()
    # never worse than one forecast for all
    frequency = outcomes.mean()
    constant = -np.mean(np.where(outcomes == 1, np.log(max(frequency, 1e-300)), np.log(max(1 - frequency, 1e-300))))
    log_p = np.asarray(fitted.log_probabilities(score))[np.arange(len(score)), outcomes]
    if fit not in (FITS["platt"], FITS["quadratic, ridge"], FITS["beta, ab"]):  # biased towards a half or the identity
        assert -log_p.mean() <= constant + 1e-5


def test_what_the_status_says():
    status = lambda fitted: Status(int(fitted.status))  # noqa: E731
    apart, same = (np.array([-1.0, 0.0, 2.0, 3.0]), np.array([0, 0, 1, 1])), (np.ones(4), np.array([0, 1, 1, 0]))
    assert status(jaxcal.fit_platt(*apart)) == Status.CONVERGED
    assert status(jaxcal.fit_platt(*apart, smooth=False)) == Status.AT_UPPER_BOUND
    assert status(jaxcal.fit_beta(*apart)) == status(jaxcal.fit_quadratic(*apart)) == Status.AT_UPPER_BOUND
    assert status(jaxcal.fit_quadratic(*apart, ridge=0.1)) == Status.CONVERGED
    assert status(jaxcal.fit_platt(*same)) == status(jaxcal.fit_beta(*same)) == Status.NOT_IDENTIFIED
    np.testing.assert_allclose(jaxcal.fit_platt(*same)(np.array([-9.0, 9.0])), 0.5, rtol=1e-6)


@pytest.mark.parametrize("fit", [jaxcal.fit_beta, jaxcal.fit_quadratic])
def test_certain_forecasts(fit, data, eps):
    score, outcomes, _ = (np.array(a[0]) for a in data)
    more = fit(np.append(score, [np.inf, -np.inf]), np.append(outcomes, [1, 0]))
    np.testing.assert_allclose(parameters(more), parameters(fit(score, outcomes)), rtol=1024 * eps)
    np.testing.assert_array_equal(more(np.array([-np.inf, np.inf])), [0, 1])
    # two more rows of loss 0
    np.testing.assert_allclose(more.risk, fit(score, outcomes).risk * N / (N + 2), rtol=64 * eps)
    alone = fit(np.array([np.inf, -np.inf]), np.array([1, 0]))
    assert alone.risk == 0 and alone.status == Status.NOT_IDENTIFIED
    wrong = np.append(score, np.inf), np.append(outcomes, 0)
    with pytest.raises(ValueError, match=f"score inf in row {N} is certain of what did not happen.*floor="):
        fit(*wrong)
    wrong = jax.jit(fit)(*wrong)
    assert wrong.status == Status.IMPOSSIBLE_EVENT and np.isnan(parameters(wrong)).all()
    with pytest.raises(ValueError, match="IMPOSSIBLE_EVENT"):
        wrong(score)


def test_certain_forecasts_beside_a_penalty(data, eps):
    """They count in the mean: the objective is that of all rows, by SciPy."""
    score, outcomes, _ = (np.array(a[0], float) for a in data)
    more, happened = np.append(score, [np.inf] * 20 + [-np.inf] * 30), np.append(outcomes, [1] * 20 + [0] * 30)
    fit = jaxcal.fit_quadratic(more.astype(np.asarray(data[0]).dtype), happened, ridge=0.1)

    def objective(c):
        eta = c[0] + c[1] * score + c[2] * score**2
        losses = np.logaddexp(0, eta) - outcomes * eta
        return losses.sum() / len(more) + 0.1 * (c[0] ** 2 + (c[1] - 1) ** 2 + c[2] ** 2)

    best = minimize(objective, [0.0, 1.0, 0.0], tol=1e-12)
    assert objective(np.asarray(fit.coefficients, float)) <= best.fun * (1 + 64 * eps)
    loss = -np.asarray(fit.log_probabilities(more.astype(np.asarray(data[0]).dtype)), float)
    np.testing.assert_allclose(fit.risk, loss[np.arange(len(more)), happened.astype(int)].mean(), rtol=256 * eps)
    alone = jaxcal.fit_quadratic(np.array([np.inf, -np.inf]), np.array([1, 0]), ridge=0.1)
    np.testing.assert_allclose(alone.coefficients, [0, 1, 0], atol=16 * eps)
    assert alone.status == Status.CONVERGED and alone.risk <= 4 * eps


@pytest.mark.parametrize("lift", [jaxcal.one_vs_rest, jaxcal.one_vs_one])
def test_an_impossible_event_of_one_class_is_named(lift):
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(60, 3))
    y = (z + rng.gumbel(size=z.shape)).argmax(-1)
    z[9, y[9]] = -np.inf
    with pytest.raises(ValueError, match="row 9 gives its own class"):
        lift(jaxcal.fit_beta)(z, y)
    assert jax.jit(lift(jaxcal.fit_beta))(z, y).status == Status.IMPOSSIBLE_EVENT


@fits
def test_bad_input(fit, data):
    score, outcomes, _ = data
    bad = score.at[1, 3].set(jnp.nan)
    fitted = fit(bad, outcomes)
    assert fitted.status[1] == Status.INVALID_INPUT and np.isnan(fitted(score)[1]).all()
    np.testing.assert_array_equal(fitted(score)[0], fit(score, outcomes)(score)[0])
    for value, error in ((bad[1], "finite number, got nan in row 3"),):
        with pytest.raises(ValueError, match=error):
            fit(value, outcomes[1])
    with pytest.raises(ValueError, match="outcomes must be 0 or 1, got 2.0 in row 0"):
        fit(score[0], np.full(N, 2))
    with pytest.raises(ValueError, match="weights must be finite"):
        fit(score[0], outcomes[0], weights=np.full(N, -1.0))
    with pytest.raises(ValueError, match="binary_logits"):
        fit(jnp.zeros((N, 2)), outcomes[0])
    with pytest.raises(ValueError, match="scores must not be NaN"):
        fit(score[0], outcomes[0])(jnp.array([jnp.nan]))
    with pytest.raises(TypeError, match="floating point"):
        fit(outcomes[0], outcomes[0])


def test_bad_options(d10):
    with pytest.raises(ValueError, match="variant"):
        jaxcal.fit_beta(*d10, variant="abc")
    with pytest.raises(ValueError, match="ridge"):
        jaxcal.fit_quadratic(*d10, ridge=-1)


# --- derivatives, files, and what is built on top ---


@pytest.mark.skipif(not jax.config.jax_enable_x64, reason="finite differences need float64")
@fits
def test_derivatives(fit, data):
    score, outcomes, _ = data
    lane = 2 if fit is FITS["beta"] else 0
    score, outcomes = score[lane], outcomes[lane]
    weights = jnp.linspace(0.5, 2, N)
    new = jnp.array([-1.0, 0.4, 2.0])
    value = lambda s, w: jnp.sum(jnp.array([1.0, -2.0, 0.5]) * fit(s, outcomes, weights=w)(new))  # noqa: E731
    for argument in (0, 1):
        gradient = jax.grad(value, argument)(score, weights)
        forward = jax.jacfwd(value, argument)(score, weights)
        np.testing.assert_allclose(forward, gradient, rtol=1e-9, atol=1e-12)
        for i in (0, 17):
            h = 1e-5
            step = jnp.zeros(N).at[i].set(h)
            moved = [(score + s * step, weights) if argument == 0 else (score, weights + s * step) for s in (1, -1)]
            difference = (value(*moved[0]) - value(*moved[1])) / (2 * h)
            np.testing.assert_allclose(gradient[i], difference, rtol=1e-5, atol=1e-9)


@fits
def test_saved_fits_predict_the_same(fit, data, tmp_path):
    score, outcomes, _ = data
    fitted = fit(score, outcomes)
    fitted.save(tmp_path / "fit.npz")
    np.testing.assert_array_equal(jaxcal.load(tmp_path / "fit.npz")(score), fitted(score))


@fits
def test_one_against_rest(fit, m8, eps):
    logits = jnp.concatenate([m8[0], m8[0] + 0.1, m8[0][::-1]])
    labels = np.concatenate([m8[1], m8[1][::-1], m8[1][::-1]])
    result = jaxcal.cross_fit(jaxcal.one_vs_rest(fit), logits, labels, folds=3, key=jax.random.key(0))
    np.testing.assert_allclose(jax.nn.logsumexp(result, axis=-1), 0, atol=8 * eps)
    parts = jaxcal.decompose(logits, labels, calibrator=jaxcal.one_vs_rest(fit))
    np.testing.assert_allclose(parts.risk, parts.calibration + parts.refinement, rtol=4 * eps)
    with pytest.raises(TypeError, match="one_vs_rest"):
        jaxcal.decompose(logits, labels, calibrator=fit)
