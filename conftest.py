"""How the tests are compiled, which is most of what they cost: in a hurry, and each program once.

XLA's CPU compiler spends most of its time making small programs fast that a test runs once. Without LLVM's optimisation
and the newer code generator of fusions the tests take a third of the processor's time; which operations are fused stays
the same. The tests in OPTIMIZED test rounding itself, so they are compiled with LLVM's optimisation, four times as
long, and before all others, because what was compiled in the other way is thrown away; with ``--optimized``
(``make test-slow``) everything is compiled as users compile. Workers and subprocesses share a cache of compiled code,
made anew each run, or the one in GDPJAX_TEST_CACHE, which is kept with all programs in it, so that another run hardly
compiles at all.

The default suite leaves out what is marked slow, and what is listed in `tests/data/slow.txt`: tests that took more than
0.5 s of the processor, and, of several cases of one test, those above 0.3 s beside a cheaper one. Some that matter most
stay whatever they take, and of every trap (`tests/data/traps.toml`) a guard. ``make test-rest`` runs what is left out.

NumPy's matrix products have one thread for each worker. More would wait for each other with busy processors: the
certified accountants then took four times as long beside another worker.
"""

import gc
import os
import pathlib
import sys

assert "numpy" not in sys.modules, "NumPy reads the number of its threads when it is imported, which is too early here"
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Else each subprocess compiles all sources anew, and every run of the tests rewrites their assertions.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# ruff: noqa: E402
import jax
import jaxlib.version
import pytest
from jax.experimental.compilation_cache import compilation_cache

collect_ignore = ["gdpjax/sweeps/template/my_task.py"]  # the user's own module, by its own name


OPTIMIZED = (
    "tests/core/test_gdp.py",
    "tests/core/test_normal.py",
    "tests/accounting/numeric/test_errors.py",
    "tests/accounting/numeric/test_honesty.py",
    "tests/accounting/numeric/test_tightness.py",
    "tests/accounting/test_clt.py",
    "tests/accounting/test_gdp.py",
    "tests/accounting/test_rdp.py",
    "tests/clipping/test_factors_sound.py",
    "tests/clipping/test_sum_bound.py",
    "tests/clipping/test_table_sum.py",
    "tests/clipping/test_terms_that_cancel.py",
    "tests/mechanisms/test_mechanisms.py::test_discrete_noise_at_tiny_delta",
    "tests/mechanisms/test_mechanisms.py::test_laplace_errors_lie_on_the_curve_and_the_noise_is_laplace",
    "tests/mechanisms/test_mechanisms.py::test_subsampled_curve_against_actual_subsampling",
    "tests/mechanisms/test_mechanisms.py::test_whole_numbers_that_float32_would_round_are_refused",
    "tests/sampling/test_poisson.py::test_dyadic_probability",
    "tests/sampling/test_poisson.py::test_small_probabilities_are_not_rounded_up",
    "tests/sampling/test_poisson.py::test_traced_probability_and_x64",
    "tests/sampling/test_poisson.py::test_words_below_the_accounted_threshold_are_included",
    "tests/tradeoff/test_compose.py",
    "tests/transforms/test_noise.py",
)
# XLA reads these once, when the first array is made. They change how code is written, not which operations are fused.
FLAGS = ["--xla_cpu_parallel_codegen_split_count=1"]
if jaxlib.version.__version_info__ < (0, 11):
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
SLOW = frozenset((pathlib.Path(__file__).parent / "tests" / "data" / "slow.txt").read_text().splitlines())
IN_A_HURRY = "jax_disable_most_optimizations"
"""The setting of JAX that can be changed from test to test."""


def pytest_addoption(parser):
    parser.addoption("--optimized", action="store_true", help="compile every test as users compile")


def pytest_configure(config):
    """Compile in a hurry from the beginning, here and in subprocesses, which inherit the flags."""
    if not config.getoption("--optimized"):
        os.environ["XLA_FLAGS"] = " ".join([*FLAGS, os.environ.get("XLA_FLAGS", "")]).strip()
        compile_in_a_hurry(True)


@pytest.fixture(scope="session", autouse=True)
def compile_once(tmp_path_factory):
    """Share compiled programs among this run's processes."""
    base = tmp_path_factory.getbasetemp()
    made_anew = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    kept = os.environ.get("GDPJAX_TEST_CACHE")
    settings = {
        "jax_compilation_cache_dir": kept or str(made_anew),
        # The many small programs are only worth writing down for another run.
        "jax_persistent_cache_min_compile_time_secs": 0.0 if kept else 0.3,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)
    compilation_cache.reset_cache()


def is_optimized(item):
    """Whether a test is compiled as users compile."""
    return item.config.getoption("--optimized") or item.nodeid.startswith(OPTIMIZED)


def is_slow(item):
    """Whether a test, with these parameters or with any, is in SLOW."""
    return item.nodeid in SLOW or item.nodeid.partition("[")[0] in SLOW


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the tests in SLOW, and put those in OPTIMIZED before all others."""
    for item in items:
        if is_slow(item):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: not is_optimized(item))


def pytest_collection_finish():
    """Search for garbage only in what the tests make: what was imported stays, and is large."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Compile the tests in OPTIMIZED as users do, here and in subprocesses, and all others in a hurry."""
    compile_in_a_hurry(not is_optimized(item))
    return (yield)


def compile_in_a_hurry(wanted):
    """Compile without LLVM's optimisation from now on, or with it; what was compiled the other way is thrown away."""
    name = IN_A_HURRY.upper()
    if os.environ.get(name) != str(wanted):
        os.environ[name] = str(wanted)  # for subprocesses
        jax.config.update(IN_A_HURRY, wanted)
        jax.clear_caches()
