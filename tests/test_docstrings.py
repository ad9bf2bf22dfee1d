"""Every example in a docstring runs and prints what it says; every public name has one."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import jaxcal
import theory

MODULES = [
    module.name
    for package in (jaxcal, theory)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, verbose=False)
    assert result.failed == 0


def test_examples_were_found():
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = sum(len(test.examples) for name in MODULES for test in finder.find(importlib.import_module(name)))
    assert examples > 50


@pytest.mark.parametrize(
    ("package", "name"), [(p, n) for p in (jaxcal, theory) for n in p.__all__ if inspect.isfunction(getattr(p, n))]
)
def test_public_functions_are_documented(package, name):
    text = inspect.getdoc(getattr(package, name))
    for section in ("Args:", "Examples:", "Returns:"):
        assert section in text, f"{name} has no {section}"
