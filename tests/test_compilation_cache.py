"""The cache of compiled programs: whose folder, when it is used, and that nothing about it can fail."""

import os
import pathlib
import stat
import subprocess
import sys

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

import gdpjax

NAMES = ("JAX_COMPILATION_CACHE_DIR", "GDPJAX_COMPILATION_CACHE", "XDG_CACHE_HOME", "JAX_ENABLE_COMPILATION_CACHE")
PROGRAM = """
import sys, jax, gdpjax
from gdpjax.cli import main
assert jax.config.jax_compilation_cache_dir is None, "import gdpjax alone turns nothing on"
folder = gdpjax.use_compilation_cache()

def compute():
    return float(jax.jit(lambda x: x * 3 + 1)(2.0))

first = compute()
files = [path for path in folder.iterdir() if path.name.endswith("-cache")]
for path in files:
    path.write_bytes(path.read_bytes()[:10])
jax.clear_caches()
assert compute() == first
print(folder, len(files), sep="\\t")
"""
"""It uses the cache, cuts off what is kept there, and computes again."""


@pytest.fixture
def unset(monkeypatch, tmp_path):
    """A user's process: JAX has no folder yet, and the home is an empty one. What is set is taken back."""
    settings = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in settings}
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path / "home"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def in_a_process(program, home, **variables):
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    command = [sys.executable, "-W", "error", "-c", program]
    result = subprocess.run(
        command, env={**environment, "HOME": str(home), **variables}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip().splitlines()[-1]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.skipif(sys.platform != "linux", reason="the folder is that of Linux")
def test_programs_are_kept_in_the_users_own_folder_and_a_damaged_one_costs_only_time(tmp_path):
    name, num_files = in_a_process(PROGRAM, tmp_path).split("\t")
    folder = pathlib.Path(name)
    assert folder.parent == tmp_path / ".cache" / "gdpjax"
    assert mode(folder) == mode(folder.parent) == 0o700
    assert int(num_files) > 0


@pytest.mark.parametrize(
    ("platform", "variable", "folder"),
    [
        ("darwin", "", "home/Library/Caches/gdpjax"),
        ("linux", "relative", "home/.cache/gdpjax"),  # the specification says to ignore it
        ("linux", "/x", "x/gdpjax"),
    ],
)
def test_the_folder_follows_the_platform(unset, monkeypatch, tmp_path, platform, variable, folder):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("XDG_CACHE_HOME", variable.replace("/x", str(tmp_path / "x")))
    found = gdpjax.use_compilation_cache()
    assert found is not None
    assert found.parent == tmp_path / folder
    assert jax.config.jax_compilation_cache_dir == str(found)


@pytest.mark.parametrize("word", ["off", "OFF", "0", "no"])
def test_a_word_turns_it_off(unset, monkeypatch, word):
    monkeypatch.setenv("GDPJAX_COMPILATION_CACHE", word)
    assert gdpjax.use_compilation_cache() is None
    assert jax.config.jax_compilation_cache_dir is None
    assert not list(unset.iterdir())


def test_jax_own_setting_stays(unset, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    assert gdpjax.use_compilation_cache(tmp_path / "other") == tmp_path / "mine"
    assert not (tmp_path / "other").exists()


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_folder_that_others_can_write_to_is_not_used(unset, tmp_path):
    """A folder in which others can write is not used, as its programs would run here."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.warns(UserWarning, match="nobody else"):
        assert gdpjax.use_compilation_cache(shared) is None
    assert jax.config.jax_compilation_cache_dir is None


def test_the_oldest_programs_are_removed(unset, monkeypatch, tmp_path):
    folder = gdpjax.use_compilation_cache(tmp_path / "kept")
    assert folder is not None
    for age in range(4):
        (folder / str(age)).write_bytes(bytes(100))
        os.utime(folder / str(age), (1000 - age, 1000 - age))
    monkeypatch.setattr("gdpjax._core.xla.LARGEST", 250)
    jax.config.update("jax_compilation_cache_dir", None)
    gdpjax.use_compilation_cache(tmp_path / "kept")
    assert sorted(path.name for path in folder.iterdir()) == ["0"]


def test_the_command_line_turns_it_on(monkeypatch, capsys):
    called = []
    monkeypatch.setattr("gdpjax.cli.use_compilation_cache", lambda: called.append(True))
    from gdpjax.cli import main

    assert main(["convert", "--mu", "1"]) == 0
    assert called
