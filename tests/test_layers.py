"""Imports go strictly downward; siblings on one layer never import each other."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1] / "gdpjax"
LAYERS = {
    "_core": set(),
    "_compilation_cache": set(),
    "tradeoff": {"_core"},
    "ledger": {"_core"},
    "clipping": {"_core"},
    "sampling": {"_core"},
    "correlated": {"_core"},
    "mechanisms": {"_core", "tradeoff"},
    "transforms": {"_core", "clipping", "ledger", "correlated", "sampling"},
    "accounting": {"_core", "tradeoff", "ledger", "mechanisms"},
    "optimizers": {"_core", "sampling", "transforms"},
    "auditing": {"_core", "accounting", "tradeoff"},
    "training": {
        "_core", "correlated", "optimizers", "clipping", "sampling", "accounting", "tradeoff", "ledger", "transforms",
    },
    "nnx": {"_core", "clipping", "training"},
    "plotting": {"_core", "accounting", "tradeoff", "ledger"},
    "reporting": {"_core", "accounting", "tradeoff", "ledger", "training"},
    "sweeps": {"_core", "accounting", "ledger", "sampling", "training"},
    "cli": {
        "_core", "_compilation_cache", "accounting", "tradeoff", "ledger", "plotting", "auditing", "clipping",
        "sampling", "transforms", "reporting", "sweeps",
    },
}  # fmt: skip
PUBLIC_ONLY = ("experiments", "benchmarks")


def imported_modules(path: pathlib.Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [node.module or ""]
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name for name in names if name == "gdpjax" or name.startswith("gdpjax.")]


# The places of the experiments from the bottom: each imports only what stands above it in this list, or in itself.
EXPERIMENTS = (
    "errors",
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
"""What is asked of the places below them; they do not import each other."""


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
    folder = ROOT.parent / "experiments"
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder).parts[0].removesuffix(".py")
        if place == "__init__":
            continue
        below = set(EXPERIMENTS[: EXPERIMENTS.index(place)]) | {place}
        if place in STUDIES:
            below -= STUDIES - {place}
        assert experiments_imported(path) <= below, f"{path} imports {experiments_imported(path) - below}"
    described = (folder / "__init__.py").read_text()
    assert all(f"`{place}`" in described for place in EXPERIMENTS if place != "__main__")


def modules_of(folder: pathlib.Path) -> dict[str, set[str]]:
    """Return the modules of a folder by name, each with those that it imports when it is imported.

    A package's `__init__` is a module beside its parts: it may show them, and they may name each other through it.
    """
    files = {".".join(path.relative_to(folder.parent).with_suffix("").parts): path for path in folder.rglob("*.py")}
    imports = {}
    for module, path in files.items():
        names = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
        imports[module] = {name for name in names if name in files}
    return imports


@pytest.mark.parametrize("folder", PUBLIC_ONLY)
def test_programs_have_no_circle(folder: str) -> None:
    imports = modules_of(ROOT.parent / folder)
    while imports:
        leaves = {module for module, others in imports.items() if not others & imports.keys()}
        assert leaves, f"a circle among {sorted(imports)}"
        imports = {module: others for module, others in imports.items() if module not in leaves}


def part_of(path: pathlib.Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path: pathlib.Path) -> None:
    part = part_of(path)
    if part in ("__init__", "__main__"):
        return
    for name in imported_modules(path):
        pieces = name.split(".")
        assert len(pieces) > 1, f"{path} imports the top level package"
        assert pieces[1] == part or pieces[1] in LAYERS[part], f"{path} ({part}) must not import {name}"


@pytest.mark.parametrize("folder", PUBLIC_ONLY)
def test_programs_use_public_names_only(folder: str) -> None:
    for path in (ROOT.parent / folder).rglob("*.py"):
        for name in imported_modules(path):
            assert not any(piece.startswith("_") for piece in name.split(".")), f"{path} imports private {name}"


# Modules of another part that are imported although they are private: this list may only become shorter.
KNOWN_PRIVATE_IMPORTS = {
    ("auditing", "tradeoff._abstract"),
    ("cli", "accounting._gdp"),
    ("cli", "accounting._reliability"),
    ("cli", "auditing._p_values"),
    ("cli", "plotting._draw"),
    ("plotting", "accounting._gdp"),
}


def test_parts_meet_through_public_names() -> None:
    """A part's underscored modules are its own; `_core` is there for all of them."""
    found = set()
    for path in sorted(ROOT.rglob("*.py")):
        part = part_of(path)
        for name in imported_modules(path):
            _, *pieces = name.split(".")
            is_private = len(pieces) > 1 and pieces[1].startswith("_")
            if is_private and pieces[0] not in (part, "_core"):
                found.add((part, ".".join(pieces[:2])))
    assert found == KNOWN_PRIVATE_IMPORTS


def imports_with_place(tree: ast.Module) -> list[tuple[str, bool]]:
    """Top-level package of every import, and whether it waits until a function runs (or only a type checker reads)."""
    lazy = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.If)]
    inside = {id(node) for outer in lazy for node in ast.walk(outer)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name.split(".")[0], id(node) in inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(((node.module or "").split(".")[0], id(node) in inside))
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_core_does_not_import_flax_or_extras(path: pathlib.Path) -> None:
    allowed = {"jax", "jaxlib", "numpy", "scipy", "optax", "msgspec", "gdpjax"} | STANDARD
    for top, lazy in imports_with_place(ast.parse(path.read_text())):
        extra = (lazy or str(path.relative_to(ROOT)) in LATE) and top in EXTRAS.get(part_of(path), set())
        is_flax = top == "flax" and part_of(path) == "nnx"  # a module that is imported when it is first used
        assert top in allowed or extra or is_flax, f"{path} imports {top}"


EXTRAS = {
    "plotting": {"matplotlib"},
    "cli": {"pyarrow", "rich"},
    "training": {"orbax"},
    "sweeps": {"jinja2", "matplotlib", "pyarrow", "ray", "rich"},
}
"""Packages that are not required, by the part that may import them when they are needed."""
LATE = {
    f"sweeps/{name}.py"
    for name in (
        "_pictures", "_progress", "_ray", "_report", "_result_table", "_results", "_run", "_training_progress", "parts",
        "style",
    )
}  # fmt: skip
"""Modules that are imported when a sweep begins, and may then import the packages of their part at once."""
STANDARD = {
    "__future__", "abc", "argparse", "base64", "collections", "concurrent", "contextlib", "csv", "dataclasses",
    "decimal", "difflib", "enum", "errno", "fcntl", "fractions", "functools", "gc", "hashlib", "html", "importlib",
    "inspect", "io", "itertools", "json", "logging", "math", "msvcrt", "numbers", "operator", "os", "pathlib",
    "platform", "queue", "re", "reprlib", "shlex", "shutil", "socket", "stat", "statistics", "sys", "sysconfig",
    "threading", "time", "tomllib", "traceback", "types", "typing", "warnings", "weakref",
}  # fmt: skip
