"""What `jaxcal audit` found, as tables for people and as one object for programs."""

import math
from typing import Any, NamedTuple

import jaxcal
from jaxcal.cli import bootstrap, choice, event
from jaxcal.cli.console import table


class Result(NamedTuple):
    """Everything that an audit found; the tables and the JSON are two views of it."""

    estimates: bootstrap.Estimates
    fit: Any
    choice: choice.Choice
    intervals: bootstrap.Intervals | None
    event: dict[str, event.Estimate]
    tests: dict[str, event.Test]
    subject: str
    remarks: list[str]


def quantities(result: Result) -> list[str]:
    """Names of the estimates that exist: only temperature scaling has a temperature."""
    return [q for q in bootstrap.Estimates._fields if q != "temperature" or result.choice.scales]


def overview(args, data, result: Result) -> str:
    """The table of the decomposition, under a line that says what was read."""
    n, k = data.logits.shape
    name = f"{args.loss.replace('-', ' ')}{' loss' if args.loss != 'log' else ' loss, nats'}"
    how = "scaling by T" if result.choice.scales else "the calibrator"
    meaning = {
        "risk": f"mean {name}",
        "calibration": f"removed by {how}",
        "refinement": f"left after {how}",
        "sharpness": "uncertainty - refinement",
        "uncertainty": "loss of class frequencies",
        "temperature": "above 1: over-confident",
        "accuracy": "",
    }
    rows = []
    for quantity in quantities(result):
        text = meaning[quantity]
        value, lower, upper = ends(result, quantity)
        interval = "" if lower is None or math.isnan(lower) else f"[{_show(lower)}, {_show(upper)}]"
        rows.append((quantity, _show(value), interval, text))
    weight = "" if data.weights is None else f", total weight {data.weights.sum():,.6g}"
    folds = f", {result.choice.folds}-fold refinement" if result.choice.folds else ""
    calibrator = "" if result.choice.scales else f", calibrator {result.choice.name}"
    title = f"{args.file}: {n:,} rows{weight}, {k} classes{folds}{calibrator}"
    return title + "\n\n" + table(("", "estimate", "95 % interval", "meaning"), rows, left=(0, 3))


def event_table(result: Result) -> str:
    """The table of calibration errors and tests of the event, the top label or a class."""
    rows = []
    for name, (value, lower, upper, meaning) in result.event.items():
        interval = "" if lower is None or math.isnan(lower) else f"[{_show(lower)}, {_show(upper)}]"
        shown = "none" if math.isnan(value) else _show(value)
        rows.append((_spelled(name), shown, interval, meaning))
    for name, test in result.tests.items():
        shown = "none" if math.isnan(test.p_value) else f"p = {test.p_value:.2g}" if test.p_value else "p < 1e-38"
        rows.append((f"test, {name}", shown, "", test.meaning))
    return f"calibration of {result.subject}\n\n" + table(
        ("", "estimate", "95 % interval", "meaning"), rows, left=(0, 3)
    )


def _spelled(name: str) -> str:
    return name.replace("auroc", "AUROC").replace("ece", "ECE").replace("observed_", "observed/").replace("_", " ")


def ends(result: Result, quantity: str) -> tuple[float, float | None, float | None]:
    """An estimate and the ends of its interval, None without resamples."""
    value = float(getattr(result.estimates, quantity))
    if result.intervals is None:
        return value, None, None
    return value, getattr(result.intervals.lower, quantity), getattr(result.intervals.upper, quantity)


def _show(value: float) -> str:
    """Four digits, or three where zeros or a power of ten stand before them: a row must fit into 80 columns."""
    digits = 4 if value == 0 or abs(value) >= 1e-3 else 3
    return f"{value + 0.0:#.{digits}g}"  # + 0.0: no "-0.000"


def as_json(args, data, result: Result, notes: list[str]) -> dict:
    """The content of `--json`."""
    n, k = data.logits.shape
    estimates = {}
    for quantity in bootstrap.Estimates._fields:
        value, lower, upper = ends(result, quantity)
        estimates[quantity] = {"value": _plain(value), "lower": _plain(lower), "upper": _plain(upper)}
    for name, (value, lower, upper, _) in result.event.items():
        estimates[name] = {"value": _plain(value), "lower": _plain(lower), "upper": _plain(upper)}
    tests = {
        name: {"statistic": _plain(test.statistic), "p_value": _plain(test.p_value), "reliable": test.reliable}
        for name, test in result.tests.items()
    }
    return {
        "file": args.file,
        "n": n,
        "k": k,
        "total_weight": _plain(n if data.weights is None else data.weights.sum()),
        "loss": args.loss,
        "folds": result.choice.folds,
        "calibrator": result.choice.name,
        "comparison": _comparison(result.choice, k),
        "dtype": str(data.logits.dtype),
        "event": args.event,
        "level": 0.95,
        "resamples": args.resamples,
        "failed_resamples": result.intervals.failed if result.intervals else 0,
        "seed": args.seed,
        "estimates": estimates,
        "tests": tests,
        "status": jaxcal.Status(int(result.fit.status)).name,
        "notes": notes,
        "plot": args.plot,
        "fit": args.fit,
    }


def _comparison(chosen: choice.Choice, num_classes: int) -> list[dict] | None:
    """The evidence of `--calibrator auto`, one entry a calibrator; None where one was named."""
    found = chosen.selection
    if found is None:
        return None
    return [
        {
            "calibrator": name,
            "risk": _plain(float(found.risk[i])),
            "standard_error": _plain(float(found.standard_error[i])),
            "difference": _plain(float(found.difference[i])),
            "difference_error": _plain(float(found.difference_error[i])),
            "parameters": choice.parameters(name, num_classes),
            "status": jaxcal.Status(int(found.status[i])).name,
        }
        for i, name in enumerate(found.names)
    ]


def _plain(value: float | None) -> float | str | None:
    """A JSON number: JSON has no infinity (a string here) and no NaN (null here)."""
    if value is None or math.isnan(value):
        return None
    return float(value) if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
