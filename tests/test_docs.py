"""The documentation tells the truth: its Python runs, page by page, prints what it shows, and its figures exist."""

import ast
import importlib
import importlib.util
import pathlib
import re
import runpy
import types

import pytest

import gdpjax

DOCS = pathlib.Path(__file__).parents[1] / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("theory/*.md")])
RUN_AS_A_NOTEBOOK = "fdp.md"  # in tests/test_notebook.py
TAKE_LONG = (
    "auditing.md",
    "composition.md",
    "correlated.md",
    "frameworks.md",
    "gradients.md",
    "language.md",
    "sweeps.md",
    "training.md",
)
"""Pages that only `make test-docs` and `make test-slow` run."""
OURS = ("gdpjax", "experiments")
MADE_BY_A_PAGE = ("waves",)


PAGES_TO_RUN = [
    pytest.param(page, marks=[pytest.mark.slow] if page.name in TAKE_LONG else [], id=page.name)
    for page in PAGES
    if page.name != RUN_AS_A_NOTEBOOK
]


@pytest.mark.parametrize("page", PAGES_TO_RUN)
def test_code_runs_in_order_and_prints_what_is_shown(page, capsys):
    run_blocks(page, capsys)


def run_blocks(page, capsys):
    """Run the Python of a page, and return the names that it made."""
    namespace: dict = {}
    for block, shown in re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", page.read_text(), flags=re.DOTALL):
        capsys.readouterr()
        exec(compile(block, page.name, "exec"), namespace)
        printed = capsys.readouterr().out
        assert not shown or printed == shown
    return namespace


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_code_is_python_and_names_what_exists(page):
    """Also where nothing is run: the code compiles, and what it takes from this project is there."""
    modules = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        tree = compile(block, page.name, "exec", ast.PyCF_ONLY_AST)
        for node in ast.walk(tree):
            modules |= imported_by(node)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                check_attribute(node, modules)


def imported_by(node):
    """The modules of this project that an import gives names to; the modules of others have to be installed."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            assert_installed(alias.name)
        ours = [alias for alias in node.names if alias.name.startswith(OURS)]
        named = {alias.asname: importlib.import_module(alias.name) for alias in ours if alias.asname}
        roots = [alias.name.partition(".")[0] for alias in ours if not alias.asname]
        return named | {root: importlib.import_module(root) for root in roots}
    if isinstance(node, ast.ImportFrom):
        assert_installed(node.module)
        if node.module.startswith(OURS):
            module = importlib.import_module(node.module)
            values = {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
            return {name: value for name, value in values.items() if isinstance(value, types.ModuleType)}
    return {}


def assert_installed(name):
    root = name.partition(".")[0]
    assert root in MADE_BY_A_PAGE or importlib.util.find_spec(root), f"{name} is not installed"


def check_attribute(node, modules):
    """Refuse ``module.name`` where one of this project's modules has no such name."""
    path = []
    while isinstance(node, ast.Attribute):
        path.insert(0, node.attr)
        node = node.value
    found = modules.get(node.id) if isinstance(node, ast.Name) else None
    for name in path:
        if not isinstance(found, types.ModuleType):
            return
        found = getattr(found, name)


def test_no_end_of_a_bracket_is_rounded_inward():
    """``f"{bounds:.3f}"`` rounds outward; an end by itself is rounded to the nearest, and may not be true any more."""
    rounded_by_itself = re.compile(r"\{[^{}]*\b(lower|upper)(\(.*?\))?:\.?\d*[fg]")
    for page in [*PAGES, DOCS.parent / "README.md"]:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
            assert not rounded_by_itself.search(block), (page.name, rounded_by_itself.search(block))


def test_every_page_is_in_the_sites_navigation_once():
    settings = (DOCS.parent / "mkdocs.yml").read_text()
    listed = re.findall(r"^ .*: (\S+\.md)$", settings, flags=re.MULTILINE)
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_figures_exist(page):
    for name in re.findall(r"!\[.*?\]\((.*?)\)", page.read_text()):
        assert (page.parent / name).stat().st_size < 60_000, name


def test_the_table_of_entry_points_names_what_exists():
    table = (DOCS / "api" / "index.md").read_text()
    names = re.findall(r"`gdpjax\.([\w.]+)", table)
    assert len(names) >= 20
    for name in names:
        found = gdpjax
        for part in name.split("."):
            found = getattr(found, part)


def test_every_public_name_is_in_the_api_reference():
    headline = (DOCS / "api" / "gdpjax.md").read_text()
    for name in gdpjax.__all__:
        assert f"`gdpjax.{name}`" in headline, f"{name} is not in docs/api/gdpjax.md"
    clipping = (DOCS / "api" / "clipping.md").read_text()
    for name in gdpjax.clipping.__all__:
        assert f"`{name}`" in clipping, f"clipping.{name} is not in docs/api/clipping.md"
    accounting = (DOCS / "api" / "accounting.md").read_text()
    for name in gdpjax.accounting.__all__:
        assert re.search(rf"`(accounting\.)?{name}`", accounting), f"accounting.{name} is not in docs/api/accounting.md"


def test_formulas_of_the_site_are_mathml():
    """The site's hook leaves no TeX in any formula of a page."""
    mathml = runpy.run_path(str(DOCS / "hooks" / "formulas.py"))["mathml"]
    assert "<mtext>arg</mtext><mspace" in mathml(r"\psi = \arg r")
    assert "<msub><mo>max</mo>" in mathml(r"\max_i x_i")
    for page in DOCS.rglob("*.md"):
        prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
        for formula in re.findall(r"(?<!\\)\$([^$]+)\$", prose):
            assert "\\" not in mathml(formula), (page.name, formula)
