"""benchmarks/README.md is what the committed result files say, figure by figure."""

import importlib.util
import pathlib
import re

import pytest

import benchmarks.accelerators.device_report
import benchmarks.accelerators.report
import benchmarks.accounting.report
import benchmarks.bench_allocation
import benchmarks.bench_special_cases
import benchmarks.bench_sweeps
import benchmarks.clipping.report
import benchmarks.correlated.report
import benchmarks.language.report
import benchmarks.training.report
import experiments.correlated.tables
import experiments.paper.tables
import experiments.recipes.tables
from benchmarks import summary

ROOT = pathlib.Path(__file__).parents[1]
TABLES = {
    "accounting_cpu": benchmarks.accounting.report,
    "allocation_cpu": benchmarks.bench_allocation,
    "clipping_cpu": benchmarks.clipping.report,
    "training_cpu": benchmarks.training.report,
    "correlated_cpu": benchmarks.correlated.report,
    "sweeps_cpu": benchmarks.bench_sweeps,
    "language_tiny": benchmarks.language.report,
    "language_small": benchmarks.language.report,
    "special_cases": benchmarks.bench_special_cases,
    "accelerators": benchmarks.accelerators.report,
    "device_h200": benchmarks.accelerators.device_report,
    "recipes": experiments.recipes.tables,
    "correlated_adult": experiments.correlated.tables,
    "correlated_mnist": experiments.correlated.tables,
    "reproduce_mnist": experiments.paper.tables,
    "reproduce_adult": experiments.paper.tables,
    "reproduce_imdb": experiments.paper.tables,
    "reproduce_movielens": experiments.paper.tables,
    "reproduce_figure4": experiments.paper.tables,
}
"""What makes the tables beside each result file."""


def test_the_page_is_what_the_result_files_give():
    assert summary.PAGE.read_text() == summary.page(), "run: python -m benchmarks.summary"


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_beside_a_result_file_are_what_it_gives(name):
    result = summary.read(name)
    assert result is not None
    assert (summary.RESULTS / f"{name}.md").read_text() == TABLES[name].markdown(result)


def test_every_result_file_with_tables_is_compared_with_them():
    assert {path.stem for path in summary.RESULTS.glob("*.md")} == set(TABLES)


def test_what_it_links_to_exists_and_every_result_is_linked():
    linked = re.findall(r"\]\((.*?)\)", summary.page())
    assert all((summary.PAGE.parent / name).exists() for name in linked)
    assert {path.name for path in summary.RESULTS.glob("*.json")} <= {name.removeprefix("results/") for name in linked}
    assert {path.stem for path in summary.RESULTS.glob("*.json")} <= set(summary.COMMANDS)


def test_a_missed_target_is_listed():
    for name in summary.COMMANDS:
        result = summary.read(name) or {}
        for target, at in result.get("targets", {}).items():
            assert at["met"] or f"| {target} |" in summary.page()


def test_the_programs_that_make_and_the_pages_name_are_there():
    for page in [ROOT / "Makefile", ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]:
        for name in re.findall(r"python -m (benchmarks\.\w+)", page.read_text()):
            assert importlib.util.find_spec(name), f"{page.name} names {name}"
    made = re.findall(r"python -m (benchmarks\.bench_\w+)", (ROOT / "Makefile").read_text())
    assert len(set(made)) == 7
