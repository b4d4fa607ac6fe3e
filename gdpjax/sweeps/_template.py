"""Files to begin with: a module with data and model, the specs of a training and of a sweep, and a README."""

import shutil
from pathlib import Path

from gdpjax.sweeps._errors import UserError
from gdpjax.sweeps.records import make_folder

FOLDER = Path(__file__).with_name("template")
FILES = ("my_task.py", "train.toml", "sweep.toml", "README.md")


def new_project(folder: str | Path) -> list[Path]:
    """Write the files of the template into a new or empty ``folder``, and return their paths.

    Raises:
      UserError: one of them is there already, or another file whose name does not begin with a dot; nothing is written
        then.
    """
    folder = Path(folder)
    paths = [folder / name for name in FILES]
    for path in paths:
        if path.exists():
            raise UserError(f"{path} is there already; choose another folder")
    others = sorted(path.name for path in folder.glob("[!.]*"))
    if others:
        raise UserError(f"{folder} holds other files, such as {others[0]}; choose a new folder or an empty one")
    make_folder(folder)
    for path in paths:
        shutil.copyfile(FOLDER / path.name, path)
    return paths
