"""How the house is built: imports point down, optional packages stay inside functions, importing is light."""

import ast
import pathlib
import subprocess
import sys

import pytest

import jaxcal
import theory

PACKAGES = [pathlib.Path(package.__file__).parent for package in (jaxcal, theory)]
FILES = [file for package in PACKAGES for file in sorted(package.rglob("*.py"))]

# A module may import modules of its own floor and of those below it.
THEORY_FLOORS = [
    {"precision", "continuation", "sample_spectrum"},
    {"spectra", "gaussian"},
    {"solution", "lanes", "limits", "max_margin"},
    {"fixed_point"},
    {"logistic", "square_loss"},
    {"curves", "simulation"},
    {"minima"},
    {"plots", "cli", "__main__"},
]
FLOORS = [
    {"status", "solvers", "checks"},
    {"inputs", "losses", "savage", "resampling"},
    {"calibrators", "cross_fit"},
    {"metrics"},
    {"decomposition", "selection"},
    {"early_stopping", "streaming", "bootstrap", "top_logits"},
    {"boosting", "history", "plots", "sklearn", "cli", "__main__"},
]
FLOOR = {
    package: {name: level for level, names in enumerate(floors) for name in names}
    for package, floors in (("jaxcal", FLOORS), ("theory", THEORY_FLOORS))
}
RUNTIME = {"jax", "jaxlib", "numpy", "optax", "scipy", "mpmath"}


def _name(file: pathlib.Path) -> str:
    """Dotted name of the package's file, e.g. jaxcal.metrics.binned."""
    package = next(p for p in PACKAGES if p in file.parents)
    parts = [package.name, *file.relative_to(package).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", node) for alias in node.names)


@pytest.mark.parametrize("file", FILES, ids=_name)
def test_imports_point_down(file):
    name = _name(file)
    own = name.split(".")
    for target, _ in _imports(ast.parse(file.read_text())):
        parts = target.split(".")
        assert not (own[0] == "jaxcal" and parts[0] == "theory"), f"{name} imports {target}"
        if own[0] != parts[0] or len(own) == 1:
            continue
        # the package itself is everything, so only the leaves may import it
        floors = FLOOR[own[0]]
        level = floors.get(parts[1], 0) if len(parts) > 1 else max(floors.values())
        assert level <= floors[own[1]], f"{name} imports {target}, which is on a higher floor"


def test_every_module_has_a_floor():
    for package, floors in FLOOR.items():
        assert {_name(f).split(".")[1] for f in FILES if _name(f).startswith(f"{package}.")} == set(floors)


@pytest.mark.parametrize("file", FILES, ids=_name)
def test_only_runtime_packages_at_module_level(file):
    tree = ast.parse(file.read_text())
    inside = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
    for target, node in _imports(tree):
        root = target.split(".")[0]
        allowed = RUNTIME | {"jaxcal", "theory"} | ({"sklearn"} if _name(file).startswith("jaxcal.sklearn") else set())
        if id(node) not in inside and root not in allowed:
            assert root in sys.stdlib_module_names, f"{_name(file)} imports {target} at module level"


@pytest.mark.parametrize("file", [f for f in FILES if not _name(f).startswith("jaxcal.sklearn")], ids=_name)
def test_nothing_imports_the_estimators(file):
    assert not [t for t, _ in _imports(ast.parse(file.read_text())) if t.startswith("jaxcal.sklearn")]


@pytest.mark.parametrize("file", FILES, ids=_name)
def test_no_assert_no_print_no_bare_except(file):
    for node in ast.walk(ast.parse(file.read_text())):
        assert not isinstance(node, ast.Assert)
        assert not (isinstance(node, ast.ExceptHandler) and node.type is None)
        assert not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print")


def test_importing_is_light_and_changes_nothing():
    heavy = ["scipy.stats", "matplotlib", "sklearn", "pandas", "torch", "rich", "optax", "theory"]
    code = (
        "import jax, sys; before = jax.config.values.copy(); import jaxcal; "
        f"print([m for m in {heavy!r} if m in sys.modules], before == jax.config.values)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] True"


@pytest.mark.parametrize("package", [jaxcal, theory])
def test_the_public_surface_is_what_init_lists(package):
    tree = ast.parse(pathlib.Path(package.__file__).read_text())
    exported = {alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert exported == set(package.__all__) and list(package.__all__) == sorted(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)
