"""benchmarks/README.md is what the committed result files say, figure by figure."""

import importlib.util
import pathlib
import re

from benchmarks import summary

ROOT = pathlib.Path(__file__).parents[1]


def test_the_page_is_what_the_result_files_give():
    assert summary.PAGE.read_text() == summary.page(), "run: python -m benchmarks.summary"


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


def test_a_benchmark_without_results_has_a_row_that_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(summary, "RESULTS", tmp_path)
    page = summary.page()
    assert page.count("not measured yet") == 7
    assert page.count("not run yet") == len(summary.COMMANDS)


def test_the_programs_that_make_and_the_pages_name_are_there():
    for page in [ROOT / "Makefile", ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]:
        for name in re.findall(r"python -m (benchmarks\.\w+)", page.read_text()):
            assert importlib.util.find_spec(name), f"{page.name} names {name}"
    made = re.findall(r"python -m (benchmarks\.bench_\w+)", (ROOT / "Makefile").read_text())
    assert len(set(made)) == 6


def test_the_commands_of_today_make_the_files_again():
    """A program has its name since it is no test; what was recorded before is told from it by one word."""
    recorded = [result["command"] for name in summary.COMMANDS if (result := summary.read(name)) is not None]
    for name in re.findall(r"python -m (benchmarks\.\w+)", " ".join(recorded)):
        assert importlib.util.find_spec(name.replace("benchmarks.test_", "benchmarks.bench_")), name
