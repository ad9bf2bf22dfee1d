"""What the results say: relative differences of test losses, paired by data set, with intervals."""

from pathlib import Path

import data_sets
import numpy as np
import pandas as pd
from scipy import stats

BASE = "log loss"  # the criterion that the others are compared with
RESULTS = Path(__file__).parent / "results"
SOURCE = {d.name: d.source for d in data_sets.TABLES}


def load(stage: str, folder: Path = RESULTS) -> pd.DataFrame:
    """Rows of a stage with the facts of their units: sizes, classes, times."""
    rows, units = (pd.read_csv(folder / f"{stage}{kind}.csv") for kind in ("", "_units"))
    keys = [name for name in units if name in rows]
    return rows.merge(units.drop(columns="versions"), on=keys)


def relative(rows: pd.DataFrame, unit: list[str], quantity: str = "log loss", base: str = "log loss") -> pd.DataFrame:
    """Difference of a test loss to that of the choice by validation log loss, as a share of the latter.

    Args:
        unit: columns of what is compared within itself: data set, and seed, say. Splits are averaged first.
        quantity: of the compared choices; base: of the choice by log loss.

    Returns:
        A row a unit, a column a criterion.
    """
    means = rows.pivot_table(quantity, unit, "criterion", aggfunc="mean")
    of_base = rows[rows["criterion"] == BASE].groupby(unit)[base].mean()
    return means.sub(of_base, axis=0).div(of_base, axis=0)


def interval(values: pd.Series, clusters: pd.Series | None = None, draws: int = 10_000) -> tuple[float, float]:
    """95 % percentile interval of the mean from a bootstrap of the clusters (seed 0); those that share a table, such as
    the targets of flights, are drawn together."""
    groups = values.groupby(values.index if clusters is None else clusters.to_numpy())
    totals, counts = groups.sum().to_numpy(), groups.count().to_numpy()
    drawn = np.random.default_rng(0).integers(0, len(totals), (draws, len(totals)))
    return tuple(np.quantile(totals[drawn].sum(1) / counts[drawn].sum(1), [0.025, 0.975]))


def compared(values: pd.Series) -> dict:
    """Mean relative difference over data sets, its interval, how many are below 0 and the Wilcoxon test.

    Args:
        values: relative differences indexed by data set.
    """
    low, high = interval(values, pd.Series(values.index.map(SOURCE)))
    moved = values[values != 0]
    p = stats.wilcoxon(moved).pvalue if len(moved) else 1.0
    return {
        "data sets": len(values),
        "mean %": 100 * values.mean(),
        "low %": 100 * low,
        "high %": 100 * high,
        "median %": 100 * values.median(),
        "better": int((values < 0).sum()),
        "worse": int((values > 0).sum()),
        "Wilcoxon p": p,
    }


def tabular(folder: Path = RESULTS) -> pd.DataFrame:
    """Trees and networks together, with a column for the model and for the total number of rows."""
    parts = [load(stage, folder).assign(model=stage) for stage in ("trees", "networks")]
    rows = pd.concat(parts, ignore_index=True)
    rows["all rows"] = rows["train"] + rows["validation"] + rows["test"]
    rows["full"] = rows["validation rows"] == rows["validation"]
    return rows


def headline(rows: pd.DataFrame) -> pd.DataFrame:
    """Choices by refinement against choices by log loss, both with a temperature: a row a model and level."""
    found = []
    full = rows[rows["full"]]
    for (model, level), group in full.groupby(["model", "level"], sort=False):
        for size, part in (("10,000 rows or more", group["all rows"] >= 10_000), ("fewer", group["all rows"] < 10_000)):
            if part.any():
                values = relative(group[part], ["data"])["refinement"]
                found.append({"model": model, "level": level, "data": size} | compared(values))
    return pd.DataFrame(found)


def markdown(table: pd.DataFrame) -> str:
    """The headline as the README shows it."""
    lines = ["| model | chosen among | tables | problems | change of test log loss | better / worse | Wilcoxon p |"]
    lines.append("|---|---|---|---|---|---|---|")
    among = {"default": "epochs", "tuned": "30 configurations and their epochs"}
    for row in table.to_dict("records"):
        change = f"{row['mean %']:+.2f} % [{row['low %']:+.2f}, {row['high %']:+.2f}]"
        counts = f"{row['better']} / {row['worse']}"
        cells = [row["model"], among[row["level"]], row["data"], row["data sets"], change, counts]
        lines.append("| " + " | ".join(map(str, [*cells, f"{row['Wilcoxon p']:.2g}"])) + " |")
    return "\n".join(lines)
