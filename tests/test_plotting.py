"""The curves of a picture are ordered as their standing says, and are drawn into files."""

import json
import re
import subprocess
import sys

import matplotlib
import numpy as np
import pytest

from gdpjax import Bounds, Event, Ledger, plotting
from gdpjax.accounting import epsilon_bounds
from gdpjax.cli import main
from gdpjax.ledger import LaplaceEvent
from gdpjax.tradeoff import Gaussian, Laplace, NoGuarantee, compose
from tests.drawings import assert_nothing_is_cut

# The central limit theorem is far off for this run, on either side.
MNIST_RUN = (0.6, 256 / 60_000, 100)
RUN_OPTIONS = ["--noise-multiplier", "0.6", "--num-examples", "60000", "--batch-size", "256", "--num-steps", "100"]
SIGNATURES = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


@pytest.fixture(scope="module")
def tradeoff():
    return plotting.tradeoff_curves(*MNIST_RUN, 1e-5)


@pytest.fixture(scope="module")
def small():
    """Curves that are not computed, as those of a run take seconds: around that of a Gaussian mechanism."""
    alpha = np.linspace(0, 1, 12)
    exact = Gaussian(1.0)(alpha)
    return plotting.tradeoff_curves(NoGuarantee(), delta=1e-5)._replace(
        alpha=alpha,
        curve=Bounds(0.98 * exact, 0.99 * exact),
        approximate_dp=0.8 * exact,
        gaussian_certified=0.9 * exact,
        gaussian_clt=exact,
        epsilon=Bounds(4.3, 4.4),
        mu_upper=1.1,
        mu_clt=1.0,
    )


@pytest.fixture(scope="module")
def steps():
    return plotting.epsilon_curves(*MNIST_RUN, 1e-5)


def test_tradeoff_curves_are_where_their_standing_puts_them(tradeoff):
    """Bounds are in their order, certified curves are below the upper one, and the CLT is what it is."""
    alpha = tradeoff.alpha
    curve = tradeoff.curve
    assert (alpha[0], alpha[-1]) == (0, 1)
    assert (np.diff(alpha) > 0).all()
    assert (curve.lower <= curve.upper).all()
    assert (curve.upper <= 1 - alpha + 1e-15).all()
    assert (tradeoff.approximate_dp <= curve.upper).all()
    assert (tradeoff.gaussian_certified <= curve.upper).all()

    # The bracket is no wider than 12 % of the power that it leaves.
    inside = (alpha > 1e-6) & (alpha < 0.999)
    width = curve.upper - curve.lower
    assert width[inside].max() < 0.02
    np.testing.assert_array_equal(tradeoff.gaussian_clt, Gaussian(tradeoff.mu_clt)(alpha))
    assert tradeoff.epsilon == epsilon_bounds(*MNIST_RUN, 1e-5)
    assert tradeoff.mu_clt < tradeoff.mu_upper


def test_epsilon_curves_are_where_their_standing_puts_them(steps):
    """The CLT is below the certified bounds, and the moments accountants are above them."""
    assert (steps.num_steps[0], steps.num_steps[-1]) == (1, 100)
    assert (steps.num_steps == np.round(steps.num_steps)).all()
    assert (np.diff(steps.num_steps) > 0).all()
    assert (steps.certified.lower <= steps.certified.upper).all()
    assert (steps.certified.upper <= steps.moments_accountant).all()
    assert (steps.moments_accountant < steps.moments_accountant_classic).all()
    assert (steps.clt < steps.certified.lower).all()
    assert (np.diff(steps.certified.upper) > 0).all()


@pytest.mark.parametrize("log", [False, True])
def test_any_certified_curve_is_drawn(log):
    """A curve that is no run of DP-SGD is drawn too, without a curve of the CLT."""
    composed = compose(Laplace(0.5), times=8)
    curves = plotting.tradeoff_curves(composed, delta=1e-5)
    assert curves.epsilon == composed.epsilon(1e-5)
    np.testing.assert_array_equal(curves.curve.lower, composed.tradeoff(curves.alpha).lower)
    assert (curves.approximate_dp <= curves.curve.upper).all()
    assert (curves.gaussian_certified <= curves.curve.upper).all()
    assert curves.mu_clt is None
    assert curves.gaussian_clt is None

    texts = legend_texts(plotting.plot_tradeoff(curves, log=log))
    assert sum("certified" in text for text in texts) == 3
    assert not any("CLT" in text for text in texts)
    without_guarantee = plotting.tradeoff_curves(NoGuarantee(), delta=1e-5)
    assert plotting.plot_tradeoff(without_guarantee).axes


def legend_texts(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_ledger_is_drawn_as_its_run_is(tradeoff):
    """A ledger of one event has the curves of its numbers, and one with an event that has no limit no CLT."""
    event = Event(*MNIST_RUN)
    curves = plotting.tradeoff_curves(Ledger([event]), delta=1e-5)
    assert curves.mu_clt == tradeoff.mu_clt
    assert curves.epsilon == pytest.approx(tradeoff.epsilon, rel=2e-3)
    assert plotting.tradeoff_curves(LaplaceEvent(0.5), delta=1e-5).mu_clt is None

    for arguments, options in (((event, 0.1), {"delta": 1e-5}), ((event,), {}), ((Laplace(0.5),), {"delta": 1e-5})):
        with pytest.raises(ValueError, match=r"only delta follows|delta must|noise_multiplier must"):
            plotting.tradeoff_curves(*arguments, **options)


@pytest.mark.parametrize("log", [False, True])
def test_what_is_drawn_is_what_was_computed(small, steps, log):
    """The lines of both pictures have the values of the curves; on a logarithmic scale power is drawn."""
    axes = plotting.plot_tradeoff(small, log=log).axes[0]
    drawn = {tuple(1 - line.get_ydata() if log else line.get_ydata()) for line in axes.lines}
    for values in (*small.curve, small.approximate_dp, small.gaussian_certified, small.gaussian_clt):
        shown = 1 - (1 - values) if log else values
        assert tuple(shown) in drawn

    axes = plotting.plot_epsilon(steps, log=log).axes[0]
    drawn = {tuple(line.get_ydata()) for line in axes.lines}
    for values in (*steps.certified, steps.clt, steps.moments_accountant):
        assert tuple(values) in drawn


def test_legends_say_the_standing_and_round_up(small, steps):
    """The legend tells certified curves and upper bounds from the estimate of the CLT."""
    of_tradeoff = legend_texts(plotting.plot_tradeoff(small))
    of_epsilon = legend_texts(plotting.plot_epsilon(steps))
    assert sum("certified" in text for text in of_tradeoff) == 3
    assert sum("upper bound" in text for text in of_epsilon) == 3
    assert all("no guarantee" in text for text in of_tradeoff + of_epsilon if "CLT" in text)
    shown = [float(re.search(r"(varepsilon|mu) = ([0-9.]+)", text)[2]) for text in of_tradeoff[1:3]]
    assert np.all(np.array(shown) >= [small.epsilon.upper, small.mu_upper])


@pytest.mark.parametrize("log", [False, True])
def test_no_text_is_cut_or_lies_on_data(tradeoff, steps, log):
    """Numbers at ticks, labels and the legend are inside the figure and outside the axes, and apart from each other."""
    assert_nothing_is_cut(plotting.plot_tradeoff(tradeoff, log=log))
    assert_nothing_is_cut(plotting.plot_epsilon(steps, log=log))
    assert_nothing_is_cut(plotting.plot_score({"a": FIRST, "b": SECOND}, delta=1e-5))


FIRST = [{"step": 5 * n, "epsilon_upper": 0.5 * n, "test_accuracy": 0.6 + 0.03 * n} for n in range(1, 9)]
SECOND = [{"step": n, "epsilon_upper": 0.3 * n, "test_accuracy": 0.5 + 0.04 * n} for n in range(1, 11)]
NOT_FINITE = {"epsilon_upper": "inf", "test_accuracy": 0.9}, {"epsilon_upper": 9.0, "test_accuracy": "nan"}


def test_the_score_is_drawn_against_the_certified_upper_ends():
    """Records give lines of epsilon_upper and percent; what is not finite, in a log a text, is left out."""
    figure = plotting.plot_score({"one": [*FIRST, *NOT_FINITE], "two": SECOND}, delta=1e-5)
    axes = figure.axes[0]
    for line, records in zip(axes.lines, (FIRST, SECOND), strict=True):
        epsilons = [record["epsilon_upper"] for record in records]
        assert line.get_xdata().tolist() == epsilons
        np.testing.assert_allclose(line.get_ydata(), [100 * record["test_accuracy"] for record in records])
    assert legend_texts(figure) == ["one", "two"]
    assert axes.get_ylabel() == "test accuracy (%)"
    assert "certified" in axes.get_xlabel()
    assert "10^{-5}" in axes.get_xlabel()


def test_another_score_is_drawn_as_it_is():
    """A score that is no accuracy has no percent."""
    history = [{"epsilon_upper": 1.0, "accuracy": 0.5, "rmse": 2.0}, {"epsilon_upper": 0.999, "rmse": 1.5}]
    axes = plotting.plot_score({"run": history}, delta=1e-6, score="rmse").axes[0]
    assert axes.lines[0].get_xydata().tolist() == [[1.0, 2.0], [1.0, 1.5]], "upper ends that waver are raised"
    assert axes.get_ylabel() == "rmse"


def test_scores_that_cannot_share_a_picture_are_refused():
    """A delta, a run with records, one run in a list, a score that is there."""
    for runs, options, message in (
        ({}, {}, "at least one run"),
        ({"a": FIRST}, {"delta": 2.0}, "delta must be"),
        ({"a": FIRST}, {"score": "f1"}, "score 'f1'"),
        ({"a": []}, {}, "got no record$"),
        ({"a": FIRST + FIRST}, {}, "several runs by a name each"),
    ):
        with pytest.raises(ValueError, match=message):
            plotting.plot_score(runs, **{"delta": 1e-5} | options)


def test_infinite_bounds_are_left_open(steps):
    """A line ends where its bound becomes infinite, and the axes reach to the largest finite one."""
    bound = np.array([1.0, np.inf])
    num_steps = np.array([1.0, 2.0])
    curves = steps._replace(num_steps=num_steps, certified=Bounds(np.ones(2), bound), moments_accountant=bound)
    curves = curves._replace(moments_accountant_classic=bound, clt=bound)
    figure = plotting.plot_epsilon(curves)
    assert figure.axes[0].get_ylim()[1] < 1.1
    assert_nothing_is_cut(figure)


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_files_are_pictures_reproducible_and_replaced(tmp_path, steps, suffix):
    """Saving a figure twice gives the same file, of the kind that its name says, and changes no setting."""
    path = tmp_path / f"curve{suffix}"
    before = dict(matplotlib.rcParams)
    pictures = []
    for _ in range(2):
        plotting.save_figure(plotting.plot_epsilon(steps), path)
        pictures.append(path.read_bytes())
    assert pictures[0].startswith(SIGNATURES[suffix])
    assert pictures[0] == pictures[1]
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": -1}, "noise_multiplier must be"),
        ({"sampling_prob": np.nan}, "sampling_prob must be"),
        ({"num_steps": 1.5}, "num_steps must be"),
        ({"delta": 1}, "delta must be"),
        ({"delta": [1e-5, 1e-6]}, "must be one number"),
    ],
)
@pytest.mark.parametrize("function", [plotting.tradeoff_curves, plotting.epsilon_curves])
def test_bad_arguments(function, change, message):
    arguments = dict(noise_multiplier=1.0, sampling_prob=0.1, num_steps=10, delta=1e-5)
    with pytest.raises(ValueError, match=message):
        function(**(arguments | change))


def test_command_writes_the_picture_and_its_numbers(tmp_path, capsys, monkeypatch, small, steps):
    """The command draws the curves of its options, and prints where they are or their numbers."""
    calls = []
    monkeypatch.setattr("gdpjax.cli._cards.tradeoff_curves", lambda *run: calls.append(run) or small)
    monkeypatch.setattr("gdpjax.cli._cards.epsilon_curves", lambda *run: calls.append(run) or steps)
    path = tmp_path / "curve.svg"
    options = [*RUN_OPTIONS, "--delta", "1e-5", "--output", str(path)]
    assert main(["plot", "tradeoff", *options, "--log"]) == 0
    assert capsys.readouterr().out == f"wrote {path}\n"
    assert main(["plot", "steps", *options, "--json"]) == 0
    assert calls == 2 * [(*MNIST_RUN, 1e-5)]
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["certified"]["lower"] == steps.certified.lower.tolist()
    assert numbers["num_steps"] == steps.num_steps.tolist()
    assert path.read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tradeoff", *RUN_OPTIONS, "--delta", "1e-5", "--output", "x.jpg"], "must end in one of .png, .pdf, .svg"),
        (["steps", *RUN_OPTIONS, "--delta", "2", "--output", "no_folder/x.png"], "in a folder that exists"),
        (["tradeoff", *RUN_OPTIONS, "--delta", "2", "--output", "x.png"], "delta must be"),
        (["steps", *RUN_OPTIONS[:-2], "--delta", "1e-5", "--output", "x.png"], "give either --epochs or --num-steps"),
        (["circle"], "invalid choice"),
    ],
)
def test_bad_options(tmp_path, monkeypatch, capsys, arguments, message):
    """A wrong option ends with status 2 and a message, and leaves no file."""
    monkeypatch.chdir(tmp_path)
    try:
        status = main(["plot", *arguments])
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_it_says_what_to_install(monkeypatch, steps):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install '\.\[plot\]'"):
        plotting.plot_epsilon(steps)


DRAW = """
import sys
from gdpjax import plotting

curves = plotting.epsilon_curves(1.0, 0.01, 2, 1e-5)
plotting.save_figure(plotting.plot_epsilon(curves), sys.argv[1])
assert 'matplotlib.pyplot' not in sys.modules
"""


def test_needs_neither_a_display_nor_pyplot(tmp_path):
    path = tmp_path / "x.png"
    subprocess.run([sys.executable, "-W", "error", "-c", DRAW, str(path)], check=True)
