"""The files of a data set: from the folder in GDPJAX_DATA when that is set, else downloaded once; checksums always."""

import dataclasses
import gzip
import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from gdpjax.sweeps import UserError

ENVIRONMENT_VARIABLE = "GDPJAX_DATA"
REPLACE = f"replace it by the original, or unset {ENVIRONMENT_VARIABLE}, so that it is downloaded"


@dataclasses.dataclass(frozen=True)
class Source:
    """The origin of a data set: files with the sha256 of each, a subfolder they may be in, and mirrors."""

    title: str
    sha256: Mapping[str, str]
    subfolder: str
    mirrors: Sequence[str]

    @property
    def both_ways(self) -> str:
        """Return what a user can do where a file is missing."""
        names = " and ".join(self.sha256) if len(self.sha256) <= 2 else f"the {len(self.sha256)} files"
        return (
            f"either set {ENVIRONMENT_VARIABLE} to a folder that holds {names} (in it or in its {self.subfolder} "
            f"folder), or leave it unset and allow the download from {' or '.join(self.mirrors)}"
        )


def fetch(source: Source) -> list[Path]:
    """Return the files of a source, checked, in its order; UserError where one is absent or damaged."""
    folder = os.environ.get(ENVIRONMENT_VARIABLE)
    if folder and not Path(folder).is_dir():
        raise UserError(f"{ENVIRONMENT_VARIABLE} is {folder}, which is no folder; correct it, or unset it to download")
    return [_local(source, Path(folder), name) for name in source.sha256] if folder else _download(source)


def find(source: Source) -> list[Path] | None:
    """Return the files of a source that is never downloaded, or None where the folder does not have them all."""
    folder = os.environ.get(ENVIRONMENT_VARIABLE)
    if not folder or not all(any(path.is_file() for path in _places(source, folder, name)) for name in source.sha256):
        return None
    return [_local(source, Path(folder), name) for name in source.sha256]


def _places(source: Source, folder: str | Path, name: str) -> tuple[Path, Path]:
    return Path(folder) / source.subfolder / name, Path(folder) / name


def cache_folder() -> Path:
    """Return where downloads are kept, and what is computed from data and takes long."""
    import pooch  # only needed where there is something to keep

    return Path(pooch.os_cache("gdpjax"))


def read_gzip(path: Path) -> bytes:
    """Return what a gzip file holds, or a UserError that names it."""
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} is not a readable gzip file ({error}); {REPLACE}") from error


def _local(source: Source, folder: Path, name: str) -> Path:
    """Return a file of the folder, as it is or gzipped; the checksum is of the file that was named."""
    expected = source.sha256[name]
    for path in _places(source, folder, name):
        packed = path.with_name(path.name + ".gz")
        found = path if path.is_file() else packed
        if found.is_file():
            content = found.read_bytes() if found == path else read_gzip(found)
            got = hashlib.sha256(content).hexdigest()
            if got != expected:
                raise UserError(
                    f"{found} is not the original file: its sha256 should be {expected} but is {got}; {REPLACE}"
                )
            return found
    places = f"{folder} or {folder / source.subfolder}"
    raise UserError(f"{source.title}: no {name} in {places} ({ENVIRONMENT_VARIABLE}): {source.both_ways}")


def _download(source: Source) -> list[Path]:
    import pooch  # only needed here

    pooch.get_logger().setLevel("WARNING")
    failures = []
    for mirror in source.mirrors:
        # pooch checks the sha256 of a cached file too, and downloads a damaged one again
        folder = cache_folder() / source.subfolder
        cache = pooch.create(path=folder, base_url=mirror, registry=dict(source.sha256))
        try:
            return [Path(cache.fetch(name)) for name in source.sha256]
        except OSError as error:  # requests' errors are OSErrors too; their text is long and says no more
            failures.append(f"{mirror}: {type(error).__name__}")
        except ValueError as error:  # a wrong checksum; the text names the file
            failures.append(f"{mirror}: {error}")
    raise UserError(f"{source.title} could not be loaded ({'; '.join(failures)}): {source.both_ways}")
