"""The study behind `notebooks/refine_then_calibrate.ipynb`: its parts against plain computations, its command in small,
and the table of the README against the stored results."""

import importlib
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
from scipy import optimize, special

ROOT = pathlib.Path(__file__).parent.parent
STUDY = ROOT / "notebooks" / "refine_then_calibrate"

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def _modules_of_the_study(monkeypatch):
    monkeypatch.syspath_prepend(str(STUDY))


def _logits(shape, k, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, shape[-1])
    z = rng.normal(size=(*shape, k)) + 1.5 * np.eye(k)[y]
    return (2 * z).astype(np.float32), y.astype(np.int32)


def _log_loss(z, y):
    return -special.log_softmax(z.astype(float), axis=-1)[np.arange(len(y)), y].mean()


def _temperature_scaled(z, y):
    best = optimize.minimize_scalar(lambda u: _log_loss(u * z, y), bounds=(1e-3, 10), options={"xatol": 1e-10})
    return best.x, best.fun


@pytest.mark.parametrize("k", [2, 4])
def test_criteria_of_padded_blocks(k, monkeypatch):
    import stopping
    from sklearn.metrics import roc_auc_score

    monkeypatch.setattr(stopping, "_BLOCK", 3 * 500 * k)  # blocks of three of the ten lanes
    z, y = _logits((2, 5, 130), k)
    found = stopping.curves(z, y)
    assert set(found) == set(stopping.CRITERIA)
    assert all(curve.shape == (2, 5) for curve in found.values())
    for at in ((0, 0), (1, 2), (1, 4)):
        u, refinement = _temperature_scaled(z[at], y)
        p = special.softmax(z[at].astype(float), axis=-1)
        areas = [roc_auc_score(y == c, p[:, c]) for c in range(k)][k == 2 :]
        expected = {
            "log loss": _log_loss(z[at], y),
            "refinement": refinement,
            "Brier": ((p - np.eye(k)[y]) ** 2).sum(-1).mean(),
            "Brier refinement": ((special.softmax(u * z[at].astype(float), -1) - np.eye(k)[y]) ** 2).sum(-1).mean(),
            "error": (p.argmax(-1) != y).mean(),
            "1 - AUROC": 1 - np.mean(areas),
        }
        for name, value in expected.items():
            assert found[name][at] == pytest.approx(value, rel=2e-5), name
        assert found[stopping.FOLDS][at] > refinement  # out of fold


def test_scores_of_a_choice():
    import stopping

    z, y = _logits((130,), 3)
    test, y_test = _logits((900,), 3, seed=1)
    found = stopping.scores(z, y, test, y_test)
    u, _ = _temperature_scaled(z, y)
    p = special.softmax(u * test.astype(float), -1)
    of_class = p[np.arange(900), y_test]
    assert found["T"] == pytest.approx(1 / u, rel=1e-4)
    assert found["log loss unsmoothed"] == pytest.approx(_log_loss(u * test, y_test), rel=2e-5)
    assert found["log loss"] == pytest.approx(-np.log((130 * of_class + 1 / 3) / 131).mean(), rel=2e-5)
    assert found["log loss as it is"] == pytest.approx(_log_loss(test, y_test), rel=2e-5)
    assert found["error"] == pytest.approx((p.argmax(-1) != y_test).mean(), abs=1e-6)


def test_choices_are_the_earliest_minima():
    import stopping

    curve = np.array([[3.0, 2.0, np.nan, 2.0], [np.nan] * 4, [5.0, 1.0, 1.0, 4.0], [1.0, 9.0, 9.0, 9.0]])
    assert stopping.choose(curve) == (2, 1)
    assert stopping.choose(curve[3:]) == (0, 0)


def test_a_comparison_uses_only_the_rows_it_was_given():
    import stopping

    z, y = _logits((3, 4, 200), 2)
    test, y_test = _logits((3, 4, 300), 2, seed=1)
    rows = stopping.compare(z, y, lambda c, e: test[c, e], y_test, [100, 200])
    assert len(rows) == 2 * (len(stopping.LOSSES) + len(stopping.CRITERIA))
    for row in rows:
        of = stopping.curves(z[..., : row["validation rows"], :], y[: row["validation rows"]], (row["criterion"],))
        curve = of[row["criterion"]]
        first, last = (0, 1) if row["level"] == "default" else (1, 3)
        c, e = row["configuration"], row["epoch"]
        assert first <= c < last and curve[c, e] == curve[first:last].min() == pytest.approx(row["value"])
        assert row["log loss as it is"] == pytest.approx(_log_loss(test[c, e], y_test), rel=2e-5)


@pytest.mark.parametrize(("side", "stride"), [(8, 1), (28, 2), (8, 2)])
def test_patches_make_a_convolution(side, stride):
    import networks

    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, side, side, 3)).astype(np.float32)
    w = rng.normal(size=(3, 3, 3, 4)).astype(np.float32)
    expected = jax.lax.conv_general_dilated(
        x, w, (stride, stride), [(1, 1), (1, 1)], dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    found = networks._patches(x, stride) @ w.reshape(27, 4)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_stack_trains_each_network_as_optax_does(optimizer):
    import data_sets
    import networks

    rng = np.random.default_rng(0)
    parts = [data_sets.Part(rng.normal(size=(n, 5)).astype(np.float32), rng.integers(0, 3, n)) for n in (96, 40, 40)]
    split = data_sets.Split(*parts)
    recipe = networks.Recipe("mlp", (8,), 32, 3, optimizer, "step")
    rates, decays = jnp.array([1e-2, 3e-3]), jnp.array([0.0, 0.1])
    keys = jax.random.split(jax.random.key(0), 2)
    logits, test = networks.train_stack(recipe, networks.Knobs(rates, 0 * rates, decays), keys, split, 3)
    assert logits.shape == (2, 3, 40, 3)
    for i in range(2):
        schedule = optax.piecewise_constant_schedule(rates[i], {3: 0.1, 6: 0.1})  # 3 batches an epoch
        if optimizer == "adamw":
            plain = optax.adamw(schedule, weight_decay=decays[i])
        else:
            plain = optax.chain(optax.add_decayed_weights(decays[i]), optax.sgd(schedule, momentum=0.9))
        params = networks._start(recipe, keys[i], (5,), 3)
        state = plain.init(params)
        for epoch in range(3):
            key = jax.random.fold_in(keys[0], epoch)  # the order of the rows is the first network's
            for rows in jax.random.permutation(key, 96).reshape(3, 32):
                x, y = split.train.x[rows], split.train.y[rows]

                def loss(params, x=x, y=y):
                    log_p = jax.nn.log_softmax(networks._forward(recipe, params, x))
                    return -log_p[jnp.arange(len(y)), y].mean()

                updates, state = plain.update(jax.grad(loss)(params), state, params)
                params = optax.apply_updates(params, updates)
            expected = networks._forward(recipe, params, split.validation.x)
            np.testing.assert_allclose(logits[i, epoch], expected, rtol=1e-3, atol=2e-4)
        np.testing.assert_allclose(test(i, 2), networks._forward(recipe, params, split.test.x), rtol=1e-3, atol=2e-4)


def test_refinement_as_objective():
    import networks

    recipe = networks.Recipe("mlp", (), objective=-1.0)
    z, y = _logits((300,), 3)
    params = [(jnp.eye(3), jnp.zeros(3))]
    found = networks._objective(recipe, params, jnp.asarray(z), jnp.asarray(y), 0.0, None)
    assert found == pytest.approx(_temperature_scaled(z, y)[1], rel=2e-5)


def test_splits_are_disjoint_and_have_the_stated_sizes():
    import data_sets

    data = data_sets.tabular_split("weather rain", 0)
    assert [len(part.y) for part in data.codes] == [8000, 2000, 10_000]
    small = data_sets.tabular_split("chile vote", 0)
    assert [len(part.y) for part in small.codes] == [1555, 389, 487]
    for of in (data, small):
        for a, b in zip(of.codes, of.scaled, strict=True):
            np.testing.assert_array_equal(a.y, b.y)
            assert np.isfinite(a.x).all() and np.isfinite(b.x).all()
    features, labels = data_sets.table("chile vote")
    rows = np.sort(np.concatenate([part.x[:, 6] for part in small.codes]))
    np.testing.assert_array_equal(rows, np.sort(features.iloc[:, 6].to_numpy(np.float32)))
    assert len({d.name for d in data_sets.TABLES}) == len(data_sets.TABLES) >= 12


def test_a_unit_that_was_cut_off_is_written_once(tmp_path):
    from results import Results

    results = Results(tmp_path, "stage")
    results.add({"data": "a", "split": 0}, [{"x": 1.5}, {"x": 2.5}], {"seconds": 1})
    # the rows of another were written, but not that it was finished
    table = pd.read_csv(tmp_path / "stage.csv")
    pd.concat([table, pd.DataFrame([{"data": "a", "split": 1, "x": 9.0}])]).to_csv(tmp_path / "stage.csv", index=False)
    again = Results(tmp_path, "stage")
    assert again.has({"data": "a", "split": 0}) and not again.has({"data": "a", "split": 1})
    again.add({"data": "a", "split": 1}, [{"x": 3.5}], {"seconds": 2})
    assert pd.read_csv(tmp_path / "stage.csv")["x"].tolist() == [1.5, 2.5, 3.5]
    assert not list(tmp_path.glob("*.part"))


def test_relative_differences_with_intervals():
    import summary

    losses = {"log loss": [1.0, 1.2, 2.0], "refinement": [0.9, 1.1, 2.5]}
    rows = pd.DataFrame(
        [
            {"data": data, "split": split, "criterion": criterion, "log loss": value}
            for criterion, values in losses.items()
            for data, split, value in zip(("a", "a", "b"), (0, 1, 0), values, strict=True)
        ]
    )
    found = summary.relative(rows, ["data"])["refinement"]
    assert found.to_dict() == pytest.approx({"a": 1.0 / 1.1 - 1, "b": 0.25})
    # two clusters, of values 1, 1 and 0: a bootstrap mean is 1, 2/3 or 0, with probabilities 1/4, 1/2, 1/4
    clustered = summary.interval(pd.Series([1.0, 1.0, 0.0]), pd.Series(["x", "x", "y"]))
    assert clustered == (0.0, 1.0)
    values = pd.Series(np.random.default_rng(0).normal(1.0, 1.0, 400))
    half = 1.96 * values.std() / 20
    np.testing.assert_allclose(summary.interval(values), values.mean() + np.array([-half, half]), atol=0.2 * half)


@pytest.mark.parametrize("stage", ["trees", "networks", "vision", "objectives", "temperatures"])
def test_stored_results_are_of_this_study(stage):
    import summary

    study = importlib.import_module("tabular" if stage in ("trees", "networks") else stage)
    units = pd.read_csv(summary.RESULTS / f"{stage}_units.csv")
    named = pd.DataFrame(study.units(False))
    keys = list(named)
    assert len(units) == len(units.drop_duplicates(keys)) == len(units.merge(named)) == len(named)
    rows = pd.read_csv(summary.RESULTS / f"{stage}.csv")
    assert len(rows.merge(units[keys])) == len(rows)
    assert len(rows.drop_duplicates(keys)) == len(units)


def test_half_of_the_tables_are_large():
    import data_sets

    large = [d.name for d in data_sets.TABLES if len(data_sets.table(d.name)[1]) >= 10_000]
    assert len(large) >= len(data_sets.TABLES) / 2


def test_the_readme_shows_the_table_of_the_results():
    import summary

    table = summary.markdown(summary.headline(summary.tabular()))
    assert table in (ROOT / "README.md").read_text(encoding="utf-8")


def _command(*arguments):
    environment = os.environ | {"JAX_ENABLE_X64": "0"}
    done = subprocess.run(
        [sys.executable, str(STUDY), *map(str, arguments)], capture_output=True, text=True, timeout=900, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_in_small(tmp_path):
    pytest.importorskip("xgboost")
    assert "2 units are missing" in _command("trees", "networks", "--quick", "--minutes", 0, "--results", tmp_path)
    assert _command("--quick", "--results", tmp_path).endswith("complete\n")
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert _command("--quick", "--results", tmp_path) == "complete\n"
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    for stage in ("trees", "networks", "vision", "objectives", "temperatures"):
        rows, units = (pd.read_csv(tmp_path / f"{stage}{kind}.csv") for kind in ("", "_units"))
        assert len(rows) >= len(units) > 0 and np.isfinite(rows["log loss"]).all()

    import summary

    table = summary.headline(summary.tabular(tmp_path))
    assert (table["low %"] <= table["mean %"]).all() and (table["mean %"] <= table["high %"]).all()
