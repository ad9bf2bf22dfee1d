"""Early stopping on the refinement in the loops people write: the same three lines in each, marked 1 to 3."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxcal
from jaxcal import early_stopping

PATIENCE, EPOCHS, WIDTH = 5, 60, 64
SIZES = (8, WIDTH, 3)


def _part(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, SIZES[0])).astype(np.float32)
    truth = x @ np.random.default_rng(0).normal(size=(SIZES[0], SIZES[-1]))
    return jnp.asarray(x), jnp.asarray(np.argmax(truth + rng.gumbel(size=truth.shape), axis=-1))


X, Y = _part(60, 1)  # so few that the network learns them by heart
X_VAL, Y_VAL = _part(400, 2)


def _check(state, predict):
    """The loop stopped at the right epoch, and what it kept is the network of that epoch."""
    assert bool(state.stopped) and int(state.step) == int(state.best_step) + PATIENCE + 1 < EPOCHS
    parts = jaxcal.decompose(predict(state.best_params), Y_VAL)
    np.testing.assert_allclose(parts.refinement, state.best_value, rtol=1e-5)
    calibrated = parts.fit(predict(state.best_params))
    np.testing.assert_allclose(jaxcal.risk(calibrated, Y_VAL), state.best_value, rtol=1e-5)


def _weights(key):
    first, second = jax.random.split(key)
    return {
        "hidden": jax.random.normal(first, SIZES[:2]) / SIZES[0] ** 0.5,
        "out": jax.random.normal(second, SIZES[1:]) / WIDTH**0.5,
    }


def _network(params, x):
    return jax.nn.relu(x @ params["hidden"]) @ params["out"]


def test_optax():
    optimizer = optax.adam(0.02)

    @jax.jit
    def train_epoch(params, opt_state):
        gradient = jax.grad(lambda p: jaxcal.risk(_network(p, X), Y))(params)
        updates, opt_state = optimizer.update(gradient, opt_state)
        return optax.apply_updates(params, updates), opt_state

    params = _weights(jax.random.key(0))
    opt_state = optimizer.init(params)
    state = early_stopping.init(params, patience=PATIENCE)  # 1
    for _ in range(EPOCHS):
        params, opt_state = train_epoch(params, opt_state)
        state = early_stopping.update(state, _network(params, X_VAL), Y_VAL, params)  # 2
        if state.stopped:  # 3
            break
    _check(state, lambda params: _network(params, X_VAL))


@pytest.mark.once
def test_seeds_side_by_side_in_one_compiled_loop():
    optimizer = optax.adam(0.02)

    def epoch(carry, _):
        params, opt_state, state = carry
        gradient = jax.grad(lambda p: jaxcal.risk(_network(p, X), Y))(params)
        updates, opt_state = optimizer.update(gradient, opt_state)
        params = optax.apply_updates(params, updates)
        state = early_stopping.update(state, _network(params, X_VAL), Y_VAL, params)
        return (params, opt_state, state), jaxcal.decompose(_network(params, X_VAL), Y_VAL).refinement

    @jax.jit
    @jax.vmap
    def train(key):
        params = _weights(key)
        start = params, optimizer.init(params), early_stopping.init(params, patience=PATIENCE)
        (_, _, state), curve = jax.lax.scan(epoch, start, length=EPOCHS)
        return state, curve

    state, curves = train(jax.random.split(jax.random.key(0), 3))
    np.testing.assert_array_equal(state.best_step, jaxcal.select_epoch(curves, patience=PATIENCE))
    kept = jaxcal.decompose(jax.vmap(lambda p: _network(p, X_VAL))(state.best_params), Y_VAL).refinement
    np.testing.assert_allclose(kept, state.best_value, rtol=1e-5)


@pytest.mark.once
def test_optuna_ends_trials_by_their_refinement():
    optuna = pytest.importorskip("optuna", reason="needs optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    gradient = jax.jit(jax.grad(lambda params: jaxcal.risk(_network(params, X), Y)))
    curves = []

    def objective(trial):
        optimizer = optax.adam(trial.suggest_float("rate", 1e-6, 1.0, log=True))
        params = _weights(jax.random.key(0))
        opt_state = optimizer.init(params)
        state = early_stopping.init(patience=PATIENCE)
        curves.append([])
        for epoch in range(EPOCHS):
            updates, opt_state = optimizer.update(gradient(params), opt_state)
            params = optax.apply_updates(params, updates)
            logits = _network(params, X_VAL)
            curves[-1].append(float(jaxcal.decompose(logits, Y_VAL).refinement))
            state = early_stopping.update(state, logits, Y_VAL)
            trial.report(float(state.best_value), epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
            if state.stopped:
                break
        return float(state.best_value)

    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=1))
    for rate in (0.02, 1e-6):  # the second one learns nothing
        study.enqueue_trial({"rate": rate})
    study.optimize(objective, n_trials=2)
    good, bad = study.trials
    assert good.state == optuna.trial.TrialState.COMPLETE and bad.state == optuna.trial.TrialState.PRUNED
    np.testing.assert_allclose(good.value, min(curves[0]), rtol=1e-6)
    assert len(curves[0]) == np.argmin(curves[0]) + PATIENCE + 1
    for trial, curve in zip(study.trials, curves, strict=True):
        np.testing.assert_allclose(list(trial.intermediate_values.values()), np.minimum.accumulate(curve), rtol=1e-6)
    # pruned at the first epoch at which it was behind the other
    behind = np.minimum.accumulate(curves[1]) > np.minimum.accumulate(curves[0])[: len(curves[1])]
    assert behind[-1] and not behind[1:-1].any()


@pytest.mark.once
def test_flax_nnx():
    nnx = pytest.importorskip("flax.nnx", reason="needs flax")
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Linear(*SIZES[:2], rngs=rngs), nnx.relu, nnx.Linear(*SIZES[1:], rngs=rngs))
    optimizer = nnx.Optimizer(model, optax.adam(0.02), wrt=nnx.Param)

    @nnx.jit
    def train_epoch(model, optimizer):
        optimizer.update(model, nnx.grad(lambda model: jaxcal.risk(model(X), Y))(model))

    state = early_stopping.init(nnx.state(model), patience=PATIENCE)  # 1
    for _ in range(EPOCHS):
        train_epoch(model, optimizer)
        state = early_stopping.update(state, model(X_VAL), Y_VAL, nnx.state(model))  # 2
        if state.stopped:  # 3
            break

    def predict(params):
        nnx.update(model, params)
        return model(X_VAL)

    _check(state, predict)


@pytest.mark.once
def test_flax_linen():
    linen = pytest.importorskip("flax.linen", reason="needs flax")
    model = linen.Sequential([linen.Dense(WIDTH), linen.relu, linen.Dense(SIZES[-1])])
    optimizer = optax.adam(0.02)

    @jax.jit
    def train_epoch(params, opt_state):
        gradient = jax.grad(lambda p: jaxcal.risk(model.apply(p, X), Y))(params)
        updates, opt_state = optimizer.update(gradient, opt_state)
        return optax.apply_updates(params, updates), opt_state

    params = model.init(jax.random.key(0), X)
    opt_state = optimizer.init(params)
    state = early_stopping.init(params, patience=PATIENCE)  # 1
    for _ in range(EPOCHS):
        params, opt_state = train_epoch(params, opt_state)
        state = early_stopping.update(state, model.apply(params, X_VAL), Y_VAL, params)  # 2
        if state.stopped:  # 3
            break
    _check(state, lambda params: model.apply(params, X_VAL))


@pytest.mark.once
def test_equinox():
    eqx = pytest.importorskip("equinox", reason="needs equinox")
    model = eqx.nn.MLP(SIZES[0], SIZES[-1], WIDTH, 1, key=jax.random.key(0))
    optimizer = optax.adam(0.02)

    @eqx.filter_jit
    def train_epoch(model, opt_state):
        gradient = eqx.filter_grad(lambda model: jaxcal.risk(jax.vmap(model)(X), Y))(model)
        updates, opt_state = optimizer.update(gradient, opt_state)
        return eqx.apply_updates(model, updates), opt_state

    opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    state = early_stopping.init(model, patience=PATIENCE)  # 1
    for _ in range(EPOCHS):
        model, opt_state = train_epoch(model, opt_state)
        state = early_stopping.update(state, jax.vmap(model)(X_VAL), Y_VAL, model)  # 2
        if state.stopped:  # 3
            break
    _check(state, lambda model: jax.vmap(model)(X_VAL))
