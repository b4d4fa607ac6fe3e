"""How the tests are compiled, which is most of what they cost: in a hurry, and each program once.

XLA's CPU compiler spends most of its time making small programs fast that a test runs once. Without LLVM's optimisation
and the newer code generator of fusions the tests take a third of the processor's time; which operations are fused stays
the same. The modules in OPTIMIZED test rounding itself, so they are compiled as users compile; so is everything with
``--optimized`` (``make test-slow``). Workers and subprocesses share a cache of compiled code, made anew each run, or
the one in GDPJAX_TEST_CACHE, which is kept: with it, running one file again and again is much quicker.
"""

import os
import pathlib

import jax
import jaxlib.version
import pytest
from jax._src import compiler
from jax.experimental.compilation_cache import compilation_cache

collect_ignore = ["gdpjax/sweeps/template/my_task.py"]  # the user's own module, by its own name


OPTIMIZED = (
    "tests/core",
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
    "tests/mechanisms",
    "tests/sampling/test_poisson.py",
    "tests/tradeoff/test_compose.py",
    "tests/tradeoff/test_resolution.py",
    "tests/transforms/test_noise.py",
)
# Each flag with its value in a hurry and its default.
FLAGS = {"xla_backend_optimization_level": (0, 3), "xla_cpu_parallel_codegen_split_count": (1, 32)}
if jaxlib.version.__version_info__ < (0, 11):
    FLAGS["xla_cpu_use_fusion_emitters"] = (False, True)
HURRY = " ".join(f"--{name}={str(hurried).lower()}" for name, (hurried, _) in FLAGS.items())


def pytest_addoption(parser):
    parser.addoption("--optimized", action="store_true", help="compile every test as users compile")


def pytest_configure(config):
    """XLA reads its flags once, when the first array is made; subprocesses inherit them."""
    if not config.getoption("--optimized"):
        os.environ["XLA_FLAGS"] = f"{HURRY} {os.environ.get('XLA_FLAGS', '')}".strip()


@pytest.fixture(scope="session", autouse=True)
def compile_once(tmp_path_factory):
    """Share compiled programs among this run's processes."""
    base = tmp_path_factory.getbasetemp()
    made_anew = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    directory = os.environ.get("GDPJAX_TEST_CACHE", made_anew)
    settings = {"jax_compilation_cache_dir": str(directory), "jax_persistent_cache_min_compile_time_secs": 0.3}
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module", autouse=True)
def optimized(request):
    """Compile the modules in OPTIMIZED as users do, here and in subprocesses."""
    path = pathlib.Path(request.node.path).relative_to(request.config.rootpath)
    if request.config.getoption("--optimized") or not path.as_posix().startswith(OPTIMIZED):
        yield
        return
    options_of = compiler.get_compile_options

    def as_users_do(*args, env_options_overrides=None, **kwargs):
        defaults = {name: default for name, (_, default) in FLAGS.items()}
        return options_of(*args, env_options_overrides={**defaults, **(env_options_overrides or {})}, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "get_compile_options", as_users_do)
        patch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"].replace(HURRY, "").strip())
        jax.clear_caches()  # what other modules compiled in a hurry
        yield
    jax.clear_caches()
