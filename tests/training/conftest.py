"""Fixtures of the tests of trainings: the programs of a training are described once."""

import weakref

import jax
import pytest

from gdpjax.training import _in_place, _run
from tests.training import killed
from tests.transforms.conftest import simple_normals


@pytest.fixture(scope="package", autouse=True)
def programs_are_described_once():
    """Keep the digest of a step's program, which every start and every resumption asks for.

    The text of a program takes a tenth of a second, and follows from the step and the types of what it is given.
    """
    describe = _in_place.program_digest
    known = weakref.WeakKeyDictionary()

    def described(step, *arguments):
        leaves, structure = jax.tree.flatten(arguments)
        kinds = structure, *((jax.typeof(leaf), getattr(leaf, "sharding", None)) for leaf in leaves)
        digests = known.setdefault(step, {})
        if kinds not in digests:
            digests[kinds] = describe(step, *arguments)
        return digests[kinds]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_in_place, "program_digest", described)
        yield


def forget_keys():
    """Let keys be used as if the process were new."""
    _run._KEYS_USED.clear()


@pytest.fixture(autouse=True)
def keys_are_fresh():
    """Each test may use its keys: many take the same one, in a loop and step by step."""
    yield
    forget_keys()


@pytest.fixture(scope="module")
def small():
    """Training, parameters and data of the small run, which is killed elsewhere, too."""
    return killed.build()


@pytest.fixture
def moved_to(monkeypatch):
    """Return a function that moves runs to another machine: ``moved_to(cpu="another")``."""
    described = _run.environment

    def move(**changes):
        monkeypatch.setattr(_run, "environment", lambda *arrays: described() | changes)

    return move


@pytest.fixture(scope="module")
def cheap_noise():
    """Draw other noise in a whole module, which compiles at once; what is done with it is as it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gdpjax.transforms._noise.standard_normals", simple_normals)
        yield
