"""The package as others get it: a wheel without the repository, quick and quiet to import."""

import json
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


USE = """
import contextlib, io, json, sys
sys.path.insert(0, {packages!r})
import gdpjax
from gdpjax.cli import main

said = {{"file": gdpjax.__file__}}
for name, command in {commands!r}.items():
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = main(command)
    said[name] = output.getvalue()
    assert not status, (name, status)
print(json.dumps(said))
"""
"""What somebody does with the wheel, each command by its name, and what each of them said."""


@pytest.fixture(scope="module")
def used(wheel, tmp_path_factory):
    """The folder of somebody who installed the wheel and has no repository, and what the commands said there."""
    folder = tmp_path_factory.mktemp("user")
    packages = folder / "packages"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    run = {"noise-multiplier": 1.3, "num-examples": 60000, "batch-size": 256, "epochs": 15, "delta": 1e-5}
    commands = {
        "account": ["account", *(f"--{name}={value}" for name, value in run.items())],
        "new": ["new", "mine"],
        "train": ["train", "mine/train.toml", "--out", "run"],
    }
    script = USE.format(packages=str(packages), commands=commands)
    command = [sys.executable, "-I", "-W", "error", "-c", script]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


def test_installed_wheel_works_without_the_repository(used):
    folder, said = used
    assert str(folder) in said["file"]
    assert "0.834" in said["account"]


def test_the_template_of_the_installed_wheel_trains(used):
    """From the files that ``gdpjax new`` writes, without the repository."""
    folder, said = used
    assert "epsilon, certified" in said["train"]
    assert (folder / "run" / "result.json").is_file()


UNWANTED = ("flax", "matplotlib", "pyarrow", "scipy.stats", "sklearn", "rich", "tyro", "orbax", "pooch", "jinja2")
UNWANTED += ("dp_accounting", "scipy.special", "tensorstore")
IMPORT = """
import json, sys
import jax

found = {{}}
before = jax.config.values.copy()
import gdpjax
found["jax is left alone"] = jax.config.values == before
found["sweeps are not imported"] = "gdpjax.sweeps" not in sys.modules
found["sweeps are there"] = gdpjax.sweeps.Task is sys.modules["gdpjax.sweeps"].Task
import gdpjax.cli, gdpjax.sweeps
found["unwanted"] = [name for name in {unwanted} if name in sys.modules]
try:
    jax.numpy.zeros(1)
except RuntimeError as error:
    found["a backend"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def imported():
    """Return what imports did in a process of a platform that does not exist, where starting a backend fails."""
    command = [sys.executable, "-c", IMPORT.format(unwanted=UNWANTED)]
    nowhere = os.environ | {"JAX_PLATFORMS": "nowhere"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=nowhere)
    return json.loads(done.stdout.splitlines()[-1])


def test_import_loads_neither_extras_nor_slow_modules(imported):
    assert imported["unwanted"] == []


def test_sweeps_are_imported_when_they_are_asked_for(imported):
    assert imported["sweeps are not imported"]
    assert imported["sweeps are there"]


def test_import_leaves_jax_alone(imported):
    assert imported["jax is left alone"]
    assert "nowhere" in imported["a backend"]  # it is the first array that starts one


def test_version_is_the_package_metadata():
    from importlib import metadata

    assert metadata.version("gdpjax") == gdpjax.__version__
