"""The package as others get it: a wheel without the repository, quick and quiet to import."""

import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

import gdpjax

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = out.glob("*.whl")
    return path


def test_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "gdpjax/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    sources = {str(p.relative_to(ROOT)) for p in (ROOT / "gdpjax").rglob("*.py")}
    assert sources <= set(names)
    others = ("page.html", "template/train.toml", "template/sweep.toml", "template/README.md")
    assert {f"gdpjax/sweeps/{name}" for name in others} <= set(names)
    assert all(name.startswith(("gdpjax/", "gdpjax-")) for name in names)


def test_installed_wheel_works_without_the_repository(wheel, tmp_path):
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import gdpjax; print(gdpjax.__file__);"
        "from gdpjax.cli import main; main(sys.argv[1:])"
    )
    run = {"noise-multiplier": 1.3, "num-examples": 60000, "batch-size": 256, "epochs": 15, "delta": 1e-5}
    options = ["account", *(f"--{name}={value}" for name, value in run.items())]
    command = [sys.executable, "-I", "-W", "error", "-c", script, *options]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert str(tmp_path) in done.stdout.splitlines()[0]
    assert "0.834" in done.stdout


def test_import_loads_neither_extras_nor_slow_modules():
    unwanted = ["flax", "matplotlib", "pyarrow", "scipy.stats", "sklearn", "rich", "tyro", "orbax", "pooch", "jinja2"]
    unwanted += ["dp_accounting", "scipy.special", "tensorstore"]
    for modules in ("gdpjax.cli", "gdpjax.sweeps"):
        script = f"import sys, {modules}; print([name for name in {unwanted} if name in sys.modules])"
        done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT)
        assert done.stdout.strip() == "[]", modules


def test_sweeps_are_imported_when_they_are_asked_for():
    script = (
        "import sys, gdpjax; assert 'gdpjax.sweeps' not in sys.modules;"
        "assert gdpjax.sweeps.Task is sys.modules['gdpjax.sweeps'].Task"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_the_template_of_the_installed_wheel_trains(wheel, tmp_path):
    """From the files that ``gdpjax new`` writes, without the repository."""
    packages = tmp_path / "packages"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    script = f"import sys; sys.path.insert(0, {str(packages)!r}); from gdpjax.cli import main; sys.exit(main())"

    def gdpjax_command(*arguments):
        command = [sys.executable, "-I", "-c", script, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    gdpjax_command("new", "mine")
    said = gdpjax_command("train", "mine/train.toml", "--out", "run")
    assert "epsilon, certified" in said
    assert (tmp_path / "run" / "result.json").is_file()


def test_import_leaves_jax_alone():
    """On a platform that does not exist, whatever starts a backend fails."""
    script = "import jax; before = jax.config.values.copy(); import gdpjax; assert jax.config.values == before"
    nowhere = os.environ | {"JAX_PLATFORMS": "nowhere"}
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, env=nowhere)
    starts_one = f"{script}; jax.numpy.zeros(1)"
    done = subprocess.run([sys.executable, "-c", starts_one], capture_output=True, cwd=ROOT, env=nowhere)
    assert done.returncode != 0


def test_version_is_the_package_metadata():
    from importlib import metadata

    assert metadata.version("gdpjax") == gdpjax.__version__
