"""Tables: boosted trees and networks, a default and random configurations, stopped and chosen by every criterion."""

import time

import data_sets
import networks
import stopping
import trees


def units(quick: bool) -> list[dict]:
    """Every data set in a first split, then in a second, ...: the study is balanced wherever it is interrupted."""
    names = ("affairs",) if quick else tuple(d.name for d in data_sets.TABLES)
    return [{"data": name, "split": split} for split in range(1 if quick else 5) for name in names]


def _sizes(n: int) -> list[int]:
    return [*(size for size in (100, 300, 1000) if size < 0.8 * n), n]


def _run(train, unit: dict, quick: bool) -> tuple[list[dict], dict]:
    data = data_sets.tabular_split(unit["data"], unit["split"], *((1500, 1000) if quick else ()))
    start = time.perf_counter()
    logits, test = train(data, unit["split"])
    trained = time.perf_counter() - start
    split = data.codes
    rows = stopping.compare(logits, split.validation.y, test, split.test.y, _sizes(len(split.validation.y)))
    facts = {
        "classes": data.num_classes,
        "features": len(data.categorical),
        "train": len(split.train.y),
        "validation": len(split.validation.y),
        "test": len(split.test.y),
        "epochs": logits.shape[1],
        "training seconds": round(trained, 1),
    }
    return rows, facts


def run_trees(unit: dict, quick: bool) -> tuple[list[dict], dict]:
    count, rounds = (3, 50) if quick else (30, 500)
    rows, facts = _run(lambda data, seed: trees.train(data, seed, count, rounds), unit, quick)
    for row in rows:
        row["epoch"] = int(trees.looked_at(rounds)[row["epoch"]])
    return rows, facts | {"epochs": rounds}


def run_networks(unit: dict, quick: bool) -> tuple[list[dict], dict]:
    count, epochs = (3, (10, 10)) if quick else (30, (100, 200))
    rows, facts = _run(lambda data, seed: networks.train(data, seed, count, epochs), unit, quick)
    for row in rows:
        row["epoch"] += 1
    return rows, facts
