"""The documentation tells the truth: its Python runs, page by page, prints what it shows, and its figures exist."""

import pathlib
import re

import pytest

import gdpjax

DOCS = pathlib.Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
RUN_AS_A_NOTEBOOK = "fdp.md"  # in tests/test_notebook.py


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != RUN_AS_A_NOTEBOOK], ids=lambda path: path.name)
def test_code_runs_in_order_and_prints_what_is_shown(page, capsys):
    namespace: dict = {}
    for block, shown in re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", page.read_text(), flags=re.DOTALL):
        capsys.readouterr()
        exec(compile(block, page.name, "exec"), namespace)
        printed = capsys.readouterr().out
        assert not shown or printed == shown


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


def test_the_notebook_is_left_out_of_the_navigation_and_linked_from_its_page():
    (notebook,) = DOCS.rglob("*.ipynb")
    name = str(notebook.relative_to(DOCS))
    assert f"not_in_nav: {name}" in (DOCS.parent / "mkdocs.yml").read_text()
    assert f"({name})" in (DOCS / RUN_AS_A_NOTEBOOK).read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_figures_exist(page):
    for name in re.findall(r"!\[.*?\]\((.*?)\)", page.read_text()):
        assert (DOCS / name).stat().st_size < 60_000, name


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
