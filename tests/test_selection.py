"""Which calibrator: numbers against NumPy on independently cross-fitted losses, the rule on losses made by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal
from jaxcal.selection import decide

N, K, FOLDS = 60, 3, 3
KEY = jax.random.key(5)
Status = jaxcal.Status


# At module level: a calibrator is compiled once for each function object.
def fit_frequencies(logits, labels, *, weights):
    """A calibrator of one's own, without status: the class frequencies, whatever the logits."""
    counts = jnp.sum(weights[..., None] * jax.nn.one_hot(labels, logits.shape[-1]), axis=-2)
    p = (counts + 1) / jnp.sum(counts + 1, axis=-1, keepdims=True)
    return lambda z: (jnp.log(p)[..., None, :] + jnp.zeros_like(z)).astype(z.dtype)


def fit_halved(logits, labels, *, weights):
    """Another without status, and quickly compiled: temperature 2."""
    return lambda z: jax.nn.log_softmax(z / 2)


def fit_nothing(logits, labels, *, weights):
    return lambda z: jnp.full_like(z, jnp.nan)


def fit_certain(logits, labels, *, weights):
    return lambda z: jnp.where(jnp.argmax(z, axis=-1, keepdims=True) == jnp.arange(K), 0, -jnp.inf).astype(z.dtype)


CHOICES = {"none": jaxcal.fit_identity, "halved": fit_halved, "frequencies": fit_frequencies}


@pytest.fixture(scope="module")
def data():
    """Logits twice too large, labels, whole weights."""
    rng = np.random.default_rng(2)
    truth = 1.5 * rng.standard_normal((N, K))
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(-1)
    return (2 * truth).astype(jax.dtypes.canonicalize_dtype("float64")), labels, rng.integers(1, 4, N).astype(float)


def _select(logits, labels, calibrators=CHOICES, folds=FOLDS, key=KEY, **options):
    return jaxcal.select_calibrator(calibrators, logits, labels, folds=folds, key=key, **options)


def _numpy_losses(logits, labels, weights):
    """Out-of-fold log losses in float64, by `cross_fit` and the formula."""
    rows = [
        np.asarray(jaxcal.cross_fit(c, logits, labels, folds=FOLDS, key=KEY, weights=weights)) for c in CHOICES.values()
    ]
    return -np.stack([np.take_along_axis(r.astype(np.float64), labels[:, None], 1)[:, 0] for r in rows])


@pytest.mark.parametrize("weighted", [False, True], ids=["rows", "weights"])
def test_means_and_standard_errors_are_those_of_the_repeated_rows(data, weighted, eps):
    logits, labels, weights = data
    weights = weights if weighted else None
    found = _select(logits, labels, weights=weights)
    losses = _numpy_losses(logits, labels, weights)
    losses = np.repeat(losses, np.ones(N, int) if weights is None else weights.astype(int), axis=1)
    error = lambda a: a.std(-1, ddof=1) / np.sqrt(a.shape[-1])  # noqa: E731
    best = losses.mean(-1).argmin()
    for got, want in (
        (found.risk, losses.mean(-1)),
        (found.standard_error, error(losses)),
        (found.difference, (losses - losses[best]).mean(-1)),
        (found.difference_error, error(losses - losses[best])),
    ):
        np.testing.assert_allclose(got, want, rtol=64 * eps**0.75, atol=64 * eps)
        assert got.dtype == logits.dtype
    assert found.difference[best] == 0 and found.difference_error[best] == 0
    assert found.names == tuple(CHOICES) and found.name == "halved"
    assert (found.status == 0).all() and found.status.dtype == found.selected.dtype == jnp.int32
    np.testing.assert_allclose(found.fit(logits), jax.nn.log_softmax(logits / 2), rtol=8 * eps)


@pytest.mark.once
def test_the_error_of_the_rule_is_that_of_the_paired_difference():
    # 2 and 4 on the rows in turn is hard and easy; the second is .1 or .3 better everywhere, the third by .2 or .3
    base = np.tile([2.0, 4.0], 50)
    losses = np.stack([base, base - np.repeat([0.1, 0.3], 50), base - np.repeat([0.2, 0.3], 50)])
    rows = [(jnp.asarray(a, jnp.float32), jnp.int32(0)) for a in losses]
    found = decide(rows, ("a", "b", "c"), None, "one-standard-error")
    # by hand: differences .25 and .05; variances of -+.05 about the mean, of .05, times n / (n - 1)
    np.testing.assert_allclose(found.difference, [0.25, 0.05, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.difference_error[:2], 0.05 / np.sqrt(99), rtol=1e-4)
    np.testing.assert_allclose(found.standard_error[0], 1 / np.sqrt(99), rtol=1e-5)
    assert found.difference[1] < found.standard_error[2]  # the classical rule would take b
    assert int(found.selected) == 2
    # and the first whose difference is below its own error: here rows differ by -.2 and .3 in turn
    rows[1] = (jnp.asarray(losses[2] + np.tile([-0.2, 0.3], 50), jnp.float32), jnp.int32(0))
    found = decide(rows, ("a", "b", "c"), None, "one-standard-error")
    np.testing.assert_allclose(found.difference_error[1], 0.25 / np.sqrt(99), rtol=1e-4)
    assert int(found.selected) == 2  # .05 > .0251
    rows[1] = (jnp.asarray(losses[2] + np.tile([-0.29, 0.3], 50), jnp.float32), jnp.int32(0))
    assert int(decide(rows, ("a", "b", "c"), None, "one-standard-error").selected) == 1  # .005 < .0296
    assert int(decide(rows, ("a", "b", "c"), None, "best").selected) == 2


@pytest.mark.parametrize("row", range(5))
def test_one_row_that_differs_is_a_tie(row):
    # d / n is the mean of n differences of which one is d, and its standard error: the rule includes equality
    losses = np.abs(np.random.default_rng(row).normal(size=(50, 30)))
    for of in losses:
        other = of - np.where(np.arange(30) == row, 0.37 * of, 0)
        rows = [(jnp.asarray(a), jnp.int32(0)) for a in (of, other)]
        assert int(decide(rows, ("a", "b"), None, "one-standard-error").selected) == 0


def test_a_difference_below_rounding_is_none():
    of = jnp.ones(1000, jnp.float32)
    rows = [(a, jnp.int32(0)) for a in (of + 2.0**-22, of)]  # two roundings, in every row
    assert int(decide(rows, ("a", "b"), None, "one-standard-error").selected) == 0
    rows = [(a, jnp.int32(0)) for a in (of + 2.0**-12, of)]
    assert int(decide(rows, ("a", "b"), None, "one-standard-error").selected) == 1


@pytest.mark.once
def test_equal_calibrators_the_first_is_chosen(data):
    twice = {"first": fit_halved, "second": fit_halved}
    for rule in ("best", "one-standard-error"):
        assert _select(*data[:2], calibrators=twice, rule=rule).name == "first"


@pytest.mark.once
def test_what_fails_or_costs_infinity_never_wins(data):
    logits, labels, _ = data
    choices = {"nothing": fit_nothing, "certain": fit_certain, "halved": fit_halved}
    for rule in ("best", "one-standard-error"):
        found = _select(logits, labels, calibrators=choices, rule=rule)
        assert found.name == "halved"
    assert np.isnan(found.risk[0]) and found.risk[1] == np.inf and found.difference[1] == np.inf
    assert np.isnan(found.standard_error[:2]).all() and np.isnan(found.difference_error[:2]).all()
    assert found.status.tolist() == [Status.INVALID_INPUT, Status.CONVERGED, Status.CONVERGED]
    del choices["halved"]
    with pytest.raises(ValueError, match=r"no calibrator has a finite out-of-fold loss \(nothing INVALID_INPUT, certa"):
        _select(logits, labels, calibrators=choices)


@pytest.mark.once
def test_an_impossible_event_is_the_end_of_those_that_cannot_avoid_it(data):
    logits, labels, _ = data
    masked = np.array(logits)
    masked[0, labels[0]] = -np.inf
    choices = {
        "none": jaxcal.fit_identity,
        "temperature": jaxcal.fit_temperature,
        "smoothed": jaxcal.laplace(fit_halved),
    }
    found = _select(masked, labels, calibrators=choices)
    assert found.name == "smoothed"
    assert found.status.tolist() == [Status.CONVERGED, Status.IMPOSSIBLE_EVENT, Status.CONVERGED]
    assert found.risk[0] == np.inf and np.isnan(found.risk[1])
    found = _select(logits, labels, calibrators={"temperature": jaxcal.fit_temperature})
    assert found.fit.inverse_temperature == jaxcal.fit_temperature(logits, labels).inverse_temperature


def test_lanes_weights_and_absent_rows(data, eps):
    logits, labels, weights = data
    broken = np.where(np.arange(N) == 4, K, labels)
    dirty, unknown = np.array(logits), np.array(labels)
    dirty[7], unknown[7] = np.nan, -1
    w = np.where(np.arange(N) == 7, 0, weights)
    stack = np.stack([dirty, np.where(np.isnan(dirty), np.nan, 0.5 * dirty)])
    found = _select(stack, np.stack([unknown, broken]), weights=w)
    assert found.fit is None and found.risk.shape == (2, len(CHOICES)) and found.selected.shape == (2,)
    alone = _select(dirty, unknown, weights=w)
    for name in ("risk", "standard_error", "difference", "difference_error"):
        one, lanes = getattr(alone, name), getattr(found, name)
        np.testing.assert_allclose(lanes[0], one, rtol=64 * eps**0.75, atol=64 * eps)
        assert np.isnan(lanes[1][:2]).all()
    assert found.selected[0] == alone.selected == 1
    assert (found.status[1, :2] == Status.INVALID_INPUT).all()
    hidden = _select(logits, labels, weights=w)
    np.testing.assert_array_equal(hidden.risk, alone.risk)
    many = _select(logits, labels, weights=np.stack([w, weights]))  # one set of logits, several of weights
    np.testing.assert_allclose(many.risk[0], alone.risk, rtol=64 * eps**0.75)
    assert many.risk.shape == (2, len(CHOICES))
    with pytest.raises(ValueError, match="one concrete selection"):
        str(found.table())
    assert "CalibratorSelection(" in str(found)


def test_under_jit_vmap_and_grad(data, x64, eps):
    logits, labels, _ = data
    traces = []

    @jax.jit
    def select(z, y):
        traces.append(1)
        return _select(z, y)

    eager, traced = _select(logits, labels), select(logits, labels)
    assert traced.fit is None and traced.name == "halved"
    np.testing.assert_allclose(traced.risk, eager.risk, rtol=16 * eps)
    bad = select(logits, np.where(labels == 0, 5, labels))
    assert len(traces) == 1
    assert np.isnan(bad.risk[:2]).all() and (bad.status[:2] == Status.INVALID_INPUT).all()
    assert jax.vmap(lambda z: _select(z, labels).selected)(np.stack([logits, logits / 2])).shape == (2,)
    slope = jax.jit(jax.grad(lambda z: jnp.sum(_select(z, labels).risk * jnp.arange(1, 4))))(logits)
    assert np.isfinite(slope).all()
    if x64:
        value = lambda z: float(np.sum(np.asarray(select(z, labels).risk) * np.arange(1, 4)))  # noqa: E731
        along = np.random.default_rng(3).standard_normal(logits.shape)
        want = (value(logits + 1e-5 * along) - value(logits - 1e-5 * along)) / 2e-5
        np.testing.assert_allclose(np.sum(np.asarray(slope) * along), want, rtol=1e-6)


@pytest.mark.once
def test_one_row_has_no_standard_error(data):
    logits, labels, _ = data
    one = (np.arange(N) == 0).astype(float)
    losses = [(jaxcal.log_loss(logits / t, labels), jnp.int32(0)) for t in (1.0, 2.0)]
    found = decide(losses, ("a", "b"), jnp.asarray(one), "one-standard-error")
    assert np.isnan(found.standard_error).all() and np.isnan(found.difference_error).all()
    assert int(found.selected) == int(np.argmin(found.risk))


@pytest.mark.once
def test_half_precision_is_computed_in_float32(data):
    logits = jnp.asarray(data[0], jnp.bfloat16)
    found = _select(logits, data[1])
    assert found.risk.dtype == jnp.float32
    # log-probabilities come back from a fit in the dtype of the logits: a rounding of a loss of about 1
    np.testing.assert_allclose(found.risk, _select(data[0], data[1]).risk, atol=2 * float(jnp.finfo("bfloat16").eps))


@pytest.mark.once
def test_the_table_is_aligned_and_marks_the_choice(data):
    lines = str(_select(*data[:2])).splitlines()
    assert len(lines) == 1 + len(CHOICES)
    assert [line.startswith("*") for line in lines] == [False, False, True, False]
    end = lines[0].index("loss") + len("loss")
    assert all(line[end] == " " and line[end - 1] != " " for line in lines)
    assert all(line.endswith("CONVERGED") for line in lines[1:])


@pytest.mark.once
@pytest.mark.parametrize("k", [2, 3])
def test_the_default_calibrators_all_take_part(k):
    z, y = jax.ShapeDtypeStruct((20, k), jnp.float32), jax.ShapeDtypeStruct((20,), jnp.int32)
    choices = jaxcal.default_calibrators(k)
    found = jax.eval_shape(lambda z, y: jaxcal.select_calibrator(None, z, y, key=KEY), z, y)
    assert found.names == tuple(choices) and found.risk.shape == (7,)
    assert all(jaxcal.default_calibrators(k)[name] is choices[name] for name in choices)
    assert jaxcal.default_calibrators(k, loss=jaxcal.brier_loss)["temperature"].keywords == {"loss": jaxcal.brier_loss}


@pytest.mark.once
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"calibrators": [jaxcal.fit_temperature]}, TypeError, "mapping from names"),
        ({"calibrators": {}}, ValueError, "must not be empty"),
        ({"calibrators": {"platt": jaxcal.fit_platt}}, TypeError, r"one_vs_rest\(fit_platt\)"),
        ({"calibrators": {"platt": partial(jaxcal.fit_platt, smooth=False)}}, TypeError, r"one_vs_rest\(fit_platt\)"),
        ({"calibrators": {1: jaxcal.fit_temperature}}, TypeError, "must be strings, got 1"),
        ({"calibrators": {"a": 1}}, TypeError, "calibrator must be a function"),
        ({"rule": "simplest"}, ValueError, "'one-standard-error' or 'best', got 'simplest'"),
        ({"loss": "log"}, TypeError, "ProperLoss"),
        ({"folds": 1}, ValueError, "select_calibrator: folds must be an integer in"),
        ({"key": 0}, TypeError, "key must be a JAX random key"),
    ],
)
def test_arguments_are_checked(data, change, error, message):
    with pytest.raises(error, match=message):
        _select(*data[:2], **change)


@pytest.mark.once
def test_bad_data_are_named(data):
    logits, labels, weights = data
    with pytest.raises(ValueError, match="select_calibrator: labels must be integers .* row 4 has label 3"):
        _select(logits, np.where(np.arange(N) == 4, K, labels), calibrators={"none": jaxcal.fit_identity})
    with pytest.raises(ValueError, match="select_calibrator: weights must be finite and >= 0, got -1.0 in row 2"):
        _select(logits, labels, weights=np.where(np.arange(N) == 2, -1, weights))


def test_identity_is_a_fit(data, tmp_path, eps):
    logits, labels, weights = data
    fit = jaxcal.fit_identity(logits, labels, weights=weights)
    want = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(fit(logits), want, rtol=16 * eps, atol=16 * eps)
    np.testing.assert_array_equal(fit(logits[0]), fit(logits)[0])
    assert fit(logits.astype("float16")).dtype == jnp.float16
    fit.save(tmp_path / "none.npz")
    again = jaxcal.load(tmp_path / "none.npz")
    assert type(again) is jaxcal.IdentityFit and again.status == 0
    np.testing.assert_array_equal(again(logits), fit(logits))
    masked = np.array(logits)
    masked[0, labels[0]] = -np.inf
    assert jaxcal.fit_identity(masked, labels).status == 0  # the map is there, whatever it costs
    lanes = jaxcal.fit_identity(logits, np.stack([labels, np.full(N, K)]))
    assert lanes.status.tolist() == [0, Status.INVALID_INPUT]
    out = np.asarray(lanes(logits))
    assert np.isfinite(out[0]).all() and np.isnan(out[1]).all()
    with pytest.raises(ValueError, match=r"do not broadcast against logits \(3, 60, 3\)"):
        lanes(np.stack([logits] * 3))
    with pytest.raises(ValueError, match="needs logits"):
        lanes(logits[0])
    with pytest.raises(ValueError, match="fit_identity: labels must be integers in"):
        jaxcal.fit_identity(logits, np.full(N, K))
    dirty = np.array(logits)
    dirty[3] = np.nan
    assert jaxcal.fit_identity(dirty, labels, weights=(np.arange(N) != 3).astype(float)).status == 0
