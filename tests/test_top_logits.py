"""Histories of the largest logits of each row, against `decompose` of all logits."""

import jax
import numpy as np
import pytest

import jaxcal
from jaxcal import Status

N, K, M = 400, 1000, 16
FIELDS = ("risk", "calibration", "refinement", "sharpness", "uncertainty")


def _data(lanes=()):
    """Three epochs of next-token-like logits `(3, *lanes, N, K)`, T = 0.8, 1.5, 2.5, and labels."""
    rng = np.random.default_rng(0)
    truth = -1.3 * np.log(1 + np.arange(K)) + 1.5 * rng.normal(size=(N, K))
    noise = rng.normal(size=(3, *lanes, N, K))
    units = np.reshape([0.8, 1.5, 2.5], (3, *(1,) * (len(lanes) + 2)))
    return (units * (truth + 0.2 * noise)).astype(np.float32), np.argmax(truth + rng.gumbel(size=(N, K)), axis=-1)


def _history(z, labels, top=M, **options):
    history = jaxcal.History(labels, top=top, **options)
    for logits in z:
        history.record(logits)
    return history


@pytest.mark.parametrize("lanes", [(), (2,)])
def test_numbers_and_top_classes_are_exact(lanes):
    z, labels = _data(lanes)
    history = _history(z, labels)
    stacked = np.moveaxis(z, 0, -3)
    expected = jaxcal.decompose(stacked, labels)
    assert history.kept == "top"
    np.testing.assert_allclose(history.array("refinement"), expected.refinement, rtol=2e-6)

    top = history.top()
    assert top.logits.shape == (*lanes, 3, N, M) and top.logits.dtype == np.float32
    np.testing.assert_array_equal(top.classes, np.argsort(-stacked, axis=-1, kind="stable")[..., :M])
    log_p = jax.nn.log_softmax(stacked)
    take = lambda a: np.take_along_axis(np.asarray(a), top.classes, axis=-1)  # noqa: E731
    np.testing.assert_allclose(top.log_probabilities(), take(log_p), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        top.log_probabilities(calibrated=True), take(expected.fit(stacked)), rtol=1e-4, atol=1e-5
    )

    found = history.decompose()  # the rest weighs 0.2 of the calibrated forecasts here
    assert (1 - np.exp(top.log_probabilities(calibrated=True)).sum(-1).mean(-1) > 0.15).all()
    for field in FIELDS:
        np.testing.assert_allclose(getattr(found, field), getattr(expected, field), atol=4e-6, err_msg=field)
    np.testing.assert_allclose(found.fit.temperature, expected.fit.temperature, rtol=2e-5)
    np.testing.assert_array_equal(found.status, Status.CONVERGED)


def test_other_weights():
    """Half of the rows, where T moves by 4 %; and a choice of rows by which it moves by 15 %."""
    z, labels = _data()
    history = _history(z, labels)
    hits = z[1].argmax(-1) == labels
    for weights, moved, of_t, of_refinement in (
        (np.arange(N) % 2, 0.04, 1.2e-4, 1e-5),
        (np.where(hits, 1.0, 0.4), 0.15, 1.2e-3, 3e-4),
    ):
        weights = weights.astype(np.float32)
        found, expected = history.decompose(weights=weights), jaxcal.decompose(z, labels, weights=weights)
        change = abs(np.log(expected.fit.temperature / history.array("temperature")))
        np.testing.assert_allclose(change, moved, rtol=0.15)
        np.testing.assert_allclose(found.risk, expected.risk, rtol=2e-6)
        np.testing.assert_allclose(found.uncertainty, expected.uncertainty, rtol=2e-6)
        np.testing.assert_allclose(found.fit.temperature, expected.fit.temperature, rtol=of_t)
        np.testing.assert_allclose(found.refinement, expected.refinement, atol=of_refinement)
    # a bootstrap: weights with lanes of their own
    weights = np.random.default_rng(1).poisson(1.0, (5, 1, N)).astype(np.float32)
    found, expected = history.decompose(weights=weights), jaxcal.decompose(z, labels, weights=weights)
    assert found.refinement.shape == (5, 3)
    np.testing.assert_allclose(found.refinement, expected.refinement, atol=3e-5)


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_few_classes_most_of_the_probability_outside(offset):
    # rows whose largest number is the summary of the rest
    for seed in range(6):
        rng = np.random.default_rng(seed)
        z = rng.normal(0, 2, (60, 50)).astype(np.float32)
        labels = (z + rng.gumbel(size=z.shape)).argmax(-1)
        history = _history([z + np.float32(offset)], labels, top=8)
        found = history.decompose()
        np.testing.assert_allclose(found.fit.temperature, history.array("temperature"), rtol=2e-4)
        np.testing.assert_allclose(found.refinement, history.array("refinement"), rtol=2e-6)


def test_what_cannot_be_had_is_said():
    z, labels = _data()
    history = _history(z, labels)
    with pytest.raises(ValueError, match=r"only the 16 largest logits of a row are kept: history.top\(\)"):
        history.logits()
    split = {"folds": 5, "key": jax.random.key(0)}
    for options, name in (({"loss": jaxcal.brier_loss}, "loss"), (split, "folds, key")):
        with pytest.raises(ValueError, match=f"^{name}: of the 16 largest logits"):
            history.decompose(**options)
    np.testing.assert_array_equal(history.decompose(loss=jaxcal.log_loss).risk, history.decompose().risk)
    with pytest.raises(ValueError, match="all logits are kept"):
        jaxcal.History(labels).top()
    with pytest.raises(ValueError, match="logits are not kept"):
        jaxcal.History(labels, top=3).top()
    for top in (0, 2.5, True):
        with pytest.raises(ValueError, match="top must be an integer >= 1"):
            jaxcal.History(labels, top=top)
    with pytest.raises(ValueError, match="top must be less than the number of classes, 1000, got 1000"):
        jaxcal.History(labels, top=K).record(z[0])
    with pytest.raises(ValueError, match="no usable data"):
        history.decompose(weights=np.zeros(N))
    # among the rows that are right any sharper forecast is better: not within half and twice the temperature of all
    right = (z[1].argmax(-1) == labels).astype(np.float32)
    found = history.decompose(weights=right)
    assert found.status.tolist() == [Status.NOT_CONVERGED] * 3 and np.isnan(found.refinement).all()
    np.testing.assert_allclose(found.risk, jaxcal.risk(z, labels, weights=right), rtol=2e-6)


def test_masks_offsets_and_epochs_that_failed():
    z, labels = _data()
    z = z + np.linspace(-30, 30, N, dtype=np.float32)[:, None]
    z[:, np.arange(N), (labels + 1) % K] = -np.inf
    z[:, 0, np.arange(K) > 8] = -np.inf  # less than m classes left
    labels[0] = 3
    history = _history(z, labels)
    expected = jaxcal.decompose(z, labels)
    np.testing.assert_allclose(history.decompose().refinement, expected.refinement, atol=1e-5)

    history.record(np.full_like(z[0], np.nan))
    z[0, 5, labels[5]] = -np.inf
    history.record(z[0])
    found = history.decompose()
    assert found.status.tolist() == [0, 0, 0, Status.INVALID_INPUT, Status.IMPOSSIBLE_EVENT]
    assert np.isnan(found.risk[3]) and found.risk[4] == found.refinement[4] == np.inf
    weights = (np.arange(N) != 5).astype(np.float32)  # without the row that failed
    found = history.decompose(weights=weights)
    np.testing.assert_allclose(found.risk[4], jaxcal.risk(z[0], labels, weights=weights), rtol=2e-6)

    constant = _history(np.zeros((1, N, 30), np.float32), labels % 30, top=4).decompose()
    assert constant.status.tolist() == [Status.NOT_IDENTIFIED] and constant.fit.temperature == 1
    np.testing.assert_allclose(constant.refinement, np.log(30), rtol=1e-6)


@pytest.mark.parametrize("mask", [-1e4, -1e9, -1e16, -3e38])
def test_finite_masks_are_masks(mask):
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 6, 300)
    logits = 1.5 * np.eye(6)[labels] + rng.normal(size=(300, 6))
    masked = (rng.random(logits.shape) < 0.3) & ~np.eye(6, dtype=bool)[labels]
    masked[0] = np.arange(6) != labels[0]
    history = _history(np.where(masked, mask, logits)[None].astype(np.float32), labels, top=2)
    weights = rng.poisson(1.0, (20, 1, 300))
    expected = jaxcal.decompose(np.where(masked, -np.inf, logits), labels)
    np.testing.assert_allclose(history.decompose().refinement, expected.refinement, rtol=2e-6)
    found = history.decompose(weights=weights).refinement
    others = _history(np.where(masked, -np.inf, logits)[None].astype(np.float32), labels, top=2)
    np.testing.assert_allclose(found, others.decompose(weights=weights).refinement, rtol=2e-6)


def test_the_budget_counts_what_is_kept():
    z, labels = _data()
    size = N * (8 * M + 20) + 4
    history = _history(z[:2], labels, budget=2 * size)
    assert sum(a.nbytes for a in jax.tree.leaves(history.top())) == 2 * size < z[0].nbytes / 10
    with pytest.warns(UserWarning, match="logits exceed the budget"):
        history.record(z[2])
    assert history.kept == "nothing" and history.steps == [0, 1, 2]
