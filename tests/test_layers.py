"""Imports go strictly downward, and siblings on one layer never import each other."""

import ast
import functools
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1] / "gdpjax"
MODULES = sorted(ROOT.rglob("*.py"))
LAYERS = {
    "_core": set(),
    "_composition": {"_core"},
    "tradeoff": {"_core", "_composition"},
    "ledger": {"_core"},
    "clipping": {"_core"},
    "correlated": {"_core"},
    "sampling": {"_core", "ledger", "correlated"},
    "mechanisms": {"_core", "tradeoff", "ledger"},
    "transforms": {"_core", "clipping", "ledger", "correlated", "sampling"},
    "accounting": {"_core", "_composition", "tradeoff", "ledger", "mechanisms"},
    "optimizers": {"_core", "sampling", "transforms"},
    "auditing": {"_core", "accounting", "clipping", "ledger", "sampling", "tradeoff", "transforms"},
    "training": {
        "_core",
        "correlated",
        "optimizers",
        "clipping",
        "sampling",
        "accounting",
        "tradeoff",
        "ledger",
        "mechanisms",
        "transforms",
    },
    "nnx": {"_core", "clipping", "training"},
    "plotting": {"_core", "accounting", "tradeoff", "ledger"},
    "reporting": {"_core", "accounting", "tradeoff", "ledger", "training", "plotting"},
    "sweeps": {"_core", "accounting", "ledger", "sampling", "training", "plotting"},
    "cli": {
        "_core",
        "accounting",
        "tradeoff",
        "ledger",
        "plotting",
        "auditing",
        "clipping",
        "sampling",
        "transforms",
        "reporting",
        "sweeps",
    },
}
PUBLIC_ONLY = ("experiments", "benchmarks", "examples")


def names_of(node: ast.stmt) -> list[str]:
    """Return the modules that an import may mean: ``from a import b`` means a, and b if that is a module of a."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        parts = [f"{node.module}.{alias.name}" for alias in node.names]
        return [node.module or "", *parts]
    return []


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imported_modules(path: pathlib.Path) -> list[str]:
    """Return the modules of gdpjax that a module imports anywhere."""
    names = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
        names.extend(names_of(node))
    return [name for name in names if name == "gdpjax" or name.startswith("gdpjax.")]


# The places of the experiments from the bottom: each imports only what stands above it in this list, or in itself.
EXPERIMENTS = (
    "config",
    "tables",
    "progress",
    "data",
    "models",
    "train",
    "sweeps",
    "figures",
    "paper",
    "recipes",
    "correlated",
    "language",
    "demo",
    "cli",
    "__main__",
)
STUDIES = {"paper", "recipes", "correlated", "language"}
"""Studies use the places below them, and do not import each other."""


def experiments_imported(path: pathlib.Path) -> set[str]:
    """Return the places of the experiments that a module imports."""
    places = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "experiments":
            names = [f"experiments.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        places |= {name.split(".")[1] for name in names if name.startswith("experiments.")}
    return places


def test_imports_of_the_experiments_go_down() -> None:
    """A place of the experiments imports those above it in the list, and all places are described."""
    folder = ROOT.parent / "experiments"
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder).parts[0].removesuffix(".py")
        if place == "__init__":
            continue
        below = set(EXPERIMENTS[: EXPERIMENTS.index(place)]) | {place}
        if place in STUDIES:
            below -= STUDIES - {place}
        not_below = experiments_imported(path) - below
        assert not not_below, f"{path} imports {not_below}"

    description = (folder / "__init__.py").read_text()
    for place in EXPERIMENTS:
        if place != "__main__":
            assert f"`{place}`" in description


def part_of(path: pathlib.Path) -> str:
    """Return the part of the package that a module belongs to, such as "clipping"."""
    relative = path.relative_to(ROOT)
    return relative.parts[0].removesuffix(".py")


def test_imports_go_down() -> None:
    """A module imports its own part and those below it."""
    for path in MODULES:
        part = part_of(path)
        if part in ("__init__", "__main__"):
            continue
        for name in imported_modules(path):
            pieces = name.split(".")
            assert len(pieces) > 1, f"{path} imports the top level package"
            assert pieces[1] in LAYERS[part] | {part}, f"{path} ({part}) must not import {name}"


@pytest.mark.parametrize("folder", PUBLIC_ONLY)
def test_programs_use_public_names_only(folder: str) -> None:
    """Experiments, benchmarks and examples import nothing of gdpjax whose name begins with an underscore."""
    for path in (ROOT.parent / folder).rglob("*.py"):
        for name in imported_modules(path):
            for piece in name.split("."):
                assert not piece.startswith("_"), f"{path} imports private {name}"


# Modules of another part that are imported although they are private: this list may only become shorter.
KNOWN_PRIVATE_IMPORTS = {
    ("auditing", "tradeoff._abstract"),
    ("plotting", "accounting._gdp"),
}


def test_parts_meet_through_public_names() -> None:
    """A part's underscored modules are its own; `_core` and `_composition` are there for all of them."""
    private_imports = set()
    for path in MODULES:
        part = part_of(path)
        for name in imported_modules(path):
            _, *pieces = name.split(".")
            is_private = len(pieces) > 1 and pieces[1].startswith("_")
            if is_private and pieces[0] not in (part, "_core", "_composition"):
                private_imports.add((part, ".".join(pieces[:2])))
    assert private_imports == KNOWN_PRIVATE_IMPORTS


def imports_with_place(tree: ast.Module) -> list[tuple[str, bool]]:
    """Return the top-level package of every import, and whether it waits until a function runs, or never runs."""
    lazy_nodes = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.If):
            lazy_nodes.update(id(inner) for inner in ast.walk(node))

    imports = []
    for node in ast.walk(tree):
        for name in names_of(node):
            imports.append((name.split(".")[0], id(node) in lazy_nodes))
    return imports


def test_core_does_not_import_flax_or_extras() -> None:
    """A module imports what is required, and extras of its part only when they are needed."""
    required = {"jax", "jaxlib", "numpy", "scipy", "optax", "jaxtyping", "msgspec", "gdpjax"} | sys.stdlib_module_names
    for path in MODULES:
        part = part_of(path)
        is_late = str(path.relative_to(ROOT)) in LATE
        for package, is_lazy in imports_with_place(parsed(path)):
            is_extra = (is_lazy or is_late) and package in EXTRAS.get(part, set())
            # `gdpjax.nnx` is imported when it is first used.
            is_flax = package == "flax" and part == "nnx"
            assert package in required or is_extra or is_flax, f"{path} imports {package}"


EXTRAS = {
    "plotting": {"matplotlib"},
    "cli": {"pyarrow", "rich"},
    "training": {"orbax"},
    "sweeps": {"jinja2", "matplotlib", "pyarrow", "ray", "rich"},
}
"""Packages that are not required, by the part that may import them when they are needed."""
LATE = {
    "sweeps/_ray.py",
    "sweeps/_report.py",
}
"""Modules that are imported when a sweep begins, and may then import the packages of their part at once."""
