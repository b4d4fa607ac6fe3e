"""Pictures: the curves that are drawn are ordered as their standing says, and the files come out."""

import json
import subprocess
import sys

import matplotlib
import numpy as np
import pytest

from gdpjax import Event, Ledger, plotting
from gdpjax._core.types import Bounds
from gdpjax.accounting import epsilon_bounds, gdp_tradeoff
from gdpjax.cli import main
from gdpjax.ledger import GaussianEvent
from gdpjax.plotting import _curves, _draw
from gdpjax.tradeoff import Laplace, NoGuarantee, compose

MNIST_RUN = (0.6, 256 / 60_000, 100)  # the CLT is far off here, on either side
RUN_OPTIONS = ["--noise-multiplier", "0.6", "--num-examples", "60000", "--batch-size", "256", "--num-steps", "100"]
SIGNATURES = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


@pytest.fixture(scope="module")
def tradeoff():
    return plotting.tradeoff_curves(*MNIST_RUN, 1e-5, num_points=16)


@pytest.fixture(scope="module")
def steps():
    return plotting.epsilon_curves(*MNIST_RUN, 1e-5, num_points=12)


def test_approximate_dp_curve_by_hand():
    alpha = np.array([0.0, 0.1, 0.2, 0.5, 0.95, 1.0])
    # epsilon = log 2, delta = .1: max(0, .9 - 2 a, (.9 - a) / 2), with the kink at .3
    expected = [0.9, 0.7, 0.5, 0.2, 0.0, 0.0]
    np.testing.assert_allclose(plotting.approximate_dp_tradeoff(alpha, np.log(2), 0.1), expected, atol=1e-15)
    assert plotting.approximate_dp_tradeoff(alpha, np.inf, 0.1).tolist() == [0.9, 0, 0, 0, 0, 0]
    for bad in (dict(alpha=1.1, epsilon=1, delta=0.1), dict(alpha=1, epsilon=-1, delta=0.1)):
        with pytest.raises(ValueError, match="must be"):
            plotting.approximate_dp_tradeoff(**bad)
    with pytest.raises(ValueError, match="delta must be"):
        plotting.approximate_dp_tradeoff(0.5, 1.0, np.nan)


def test_tradeoff_curves_are_where_their_standing_puts_them(tradeoff):
    alpha, curve = tradeoff.alpha, tradeoff.curve
    assert (alpha[0], alpha[-1]) == (0, 1)
    assert (np.diff(alpha) > 0).all()
    assert (curve.lower <= curve.upper).all()
    assert (curve.upper <= 1 - alpha + 1e-15).all()
    assert (tradeoff.approximate_dp <= curve.upper).all()
    assert (tradeoff.gaussian_certified <= curve.upper).all()
    # the bracket is no wider than 12% of the power it leaves
    inside = (alpha > 1e-6) & (alpha < 0.999)
    assert (curve.upper - curve.lower)[inside].max() < 0.02
    np.testing.assert_array_equal(tradeoff.gaussian_clt, gdp_tradeoff(alpha, tradeoff.mu_clt))
    assert tradeoff.epsilon == epsilon_bounds(*MNIST_RUN, 1e-5)
    assert tradeoff.mu_clt < tradeoff.mu_upper


def test_f_of_epsilon_and_delta_touches_the_curve(tradeoff):
    """At the true epsilon the two curves meet, so at the certified one they nearly do, in terms of power."""
    inside = (tradeoff.alpha > 0) & (tradeoff.alpha < 0.1)
    gap = (1 - tradeoff.approximate_dp[inside]) / (1 - tradeoff.curve.upper[inside])
    assert 1 <= gap.min() < 1.1


def test_the_clt_leaves_the_band_which_is_the_point_of_the_picture(tradeoff):
    assert (tradeoff.gaussian_clt > tradeoff.curve.upper).any()


def test_epsilon_curves_are_where_their_standing_puts_them(steps):
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
    composed = compose(Laplace(0.5), times=8)
    curves = plotting.tradeoff_curves(composed, delta=1e-5, num_points=12)
    assert curves.epsilon == composed.epsilon(1e-5)
    np.testing.assert_array_equal(curves.curve.lower, composed.tradeoff(curves.alpha).lower)
    assert (curves.approximate_dp <= curves.curve.upper).all()
    assert (curves.gaussian_certified <= curves.curve.upper).all()
    assert (curves.mu_clt, curves.gaussian_clt) == (None, None)
    figure = plotting.plot_tradeoff(curves, log=log)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sum("certified" in text for text in texts) == 3
    assert not any("CLT" in text or "run" in text for text in texts)
    assert plotting.plot_tradeoff(plotting.tradeoff_curves(NoGuarantee(), delta=1e-5)).axes


def test_a_ledger_is_drawn_as_its_run_is(tradeoff):
    event = Event(*MNIST_RUN)
    curves = plotting.tradeoff_curves(Ledger([event]), delta=1e-5, num_points=12)
    assert (curves.mu_clt, curves.epsilon) == (tradeoff.mu_clt, pytest.approx(tradeoff.epsilon, rel=2e-3))
    assert _curves._curve_and_clt(event, None, None)[1] == tradeoff.mu_clt
    assert _curves._curve_and_clt(Ledger([event, GaussianEvent(2.0)]), None, None)[1] is None
    for call in (
        lambda: plotting.tradeoff_curves(event, 0.1, delta=1e-5),
        lambda: plotting.tradeoff_curves(event),
        lambda: plotting.tradeoff_curves(Laplace(0.5), delta=1e-5),
    ):
        with pytest.raises(ValueError, match=r"only delta follows|delta must|noise_multiplier must"):
            call()


@pytest.mark.parametrize("log", [False, True])
def test_what_is_drawn_is_what_was_computed(tradeoff, steps, log):
    axes = plotting.plot_tradeoff(tradeoff, log=log).axes[0]
    inside = (tradeoff.alpha > 0) & (tradeoff.alpha < 1) if log else np.full(tradeoff.alpha.shape, True)
    drawn = {tuple(1 - line.get_ydata() if log else line.get_ydata()) for line in axes.lines}
    for values in (*tradeoff.curve, tradeoff.approximate_dp, tradeoff.gaussian_certified, tradeoff.gaussian_clt):
        shown = 1 - (1 - values[inside]) if log else values[inside]
        assert tuple(shown) in drawn
    axes = plotting.plot_epsilon(steps, log=log).axes[0]
    drawn = {tuple(line.get_ydata()) for line in axes.lines}
    assert {*map(tuple, steps.certified), *map(tuple, (steps.clt, steps.moments_accountant))} <= drawn


def test_legends_say_the_standing(tradeoff, steps):
    def texts(figure):
        return [text.get_text() for text in figure.legends[0].get_texts()]

    first, second = texts(plotting.plot_tradeoff(tradeoff)), texts(plotting.plot_epsilon(steps))
    assert sum("certified" in text for text in first) == 3
    assert [text for text in first + second if "CLT" in text and "asymptotic, may understate" not in text] == []
    assert sum("upper bound" in text for text in second) == 3


def test_curves_differ_in_grey():
    styles = [_draw._DASHED, _draw._DASH_DOTTED, _draw._DOTTED]
    assert len({style["linestyle"] for style in styles} | {"solid"}) == 4


def test_infinite_bounds_are_left_open():
    ends = np.array([1.0, np.inf])
    curves = plotting.EpsilonCurves(ends + 1, 1e-5, Bounds(np.ones(2), ends), ends, ends, ends)
    lines = plotting.plot_epsilon(curves._replace(num_steps=np.array([1.0, 2.0]))).axes[0].lines
    assert all(np.isfinite(line.get_ydata()[0]) for line in lines)
    assert any(np.isnan(line.get_ydata()[1]) for line in lines)


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_files_are_pictures_reproducible_and_replaced(tmp_path, steps, suffix):
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
        ({"noise_multiplier": 0}, "noise_multiplier must be"),
        ({"sampling_prob": np.nan}, "sampling_prob must be"),
        ({"num_steps": 1.5}, "num_steps must be"),
        ({"delta": 1}, "delta must be"),
        ({"delta": [1e-5, 1e-6]}, "must be one number"),
        ({"num_points": 7}, "num_points must be a whole number >= 8"),
    ],
)
@pytest.mark.parametrize("function", [plotting.tradeoff_curves, plotting.epsilon_curves])
def test_bad_arguments(function, change, message):
    run = dict(noise_multiplier=1.0, sampling_prob=0.1, num_steps=10, delta=1e-5)
    with pytest.raises(ValueError, match=message):
        function(**(run | change))


def test_command_writes_the_picture_and_its_numbers(tmp_path, capsys, monkeypatch, tradeoff, steps):
    from gdpjax.cli import _plot

    calls = []
    monkeypatch.setattr(_plot, "tradeoff_curves", lambda *run: calls.append(run) or tradeoff)
    monkeypatch.setattr(_plot, "epsilon_curves", lambda *run, log: calls.append((*run, log)) or steps)
    path = tmp_path / "curve.svg"
    options = [*RUN_OPTIONS, "--delta", "1e-5", "--output", str(path)]
    assert main(["plot", "tradeoff", *options, "--log"]) == 0
    assert capsys.readouterr().out == f"wrote {path}\n"
    assert main(["plot", "steps", *options, "--json"]) == 0
    assert calls == [(*MNIST_RUN, 1e-5), (*MNIST_RUN, 1e-5, False)]
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["certified"]["lower"] == steps.certified.lower.tolist()
    assert numbers["num_steps"] == steps.num_steps.tolist()
    assert path.read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tradeoff", *RUN_OPTIONS, "--delta", "1e-5", "--output", "x.jpg"], "must end in one of .png, .pdf, .svg"),
        (["tradeoff", *RUN_OPTIONS, "--delta", "2", "--output", "x.png"], "delta must be"),
        (["steps", *RUN_OPTIONS[:-2], "--delta", "1e-5", "--output", "x.png"], "one of the arguments"),
        (["circle"], "invalid choice"),
    ],
)
def test_bad_options(tmp_path, monkeypatch, capsys, arguments, message):
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


def test_needs_neither_a_display_nor_pyplot(tmp_path):
    script = (
        "import sys, numpy as np; from gdpjax import Bounds, plotting; x = np.array([1.0, 2.0]);"
        "curves = plotting.EpsilonCurves(x, 1e-5, Bounds(x, x), x, x, x);"
        f"plotting.save_figure(plotting.plot_epsilon(curves), {str(tmp_path / 'x.png')!r});"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)
