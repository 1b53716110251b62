"""Whether what is installed is what this package needs. Knows its own requirements, written nowhere else."""

import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

CHECKOUT = Path(__file__).parents[2] / "pyproject.toml"


class InstalledVersion(NamedTuple):
    """One requirement and what is there of it.

    Example:
        InstalledVersion(requirement=Requirement("trl>=1.16,<1.17"), found="1.15.0")
        .fits False     str: 'trl           1.15.0         NOT OK: pip install "trl<1.17,>=1.16"'
    """

    requirement: Requirement
    found: str | None

    @property
    def fits(self) -> bool:
        return self.found is not None and self.requirement.specifier.contains(self.found, prereleases=True)

    def __str__(self) -> str:
        state = "ok" if self.fits else f'NOT OK: pip install "{self.requirement}"'
        return f"{self.requirement.name:<14}{self.found or 'not installed':<15}{state}"


def installed_versions() -> list[InstalledVersion]:
    """One entry per requirement that holds on this machine, extras aside."""
    needed = (Requirement(line) for line in own_requirements())
    holding = (each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""}))
    return [InstalledVersion(each, find_version(each.name)) for each in holding]


def own_requirements() -> list[str]:
    """Those of the installed package, or of the checkout that it is imported from."""
    try:
        return requires("envmask_trl") or []
    except PackageNotFoundError:
        return tomllib.loads(CHECKOUT.read_text(encoding="utf-8"))["project"]["dependencies"]


def find_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
