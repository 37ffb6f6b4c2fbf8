"""What setup.cfg and the README say holds for the tree."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path

import pytest

import deeppart

ROOT = Path(__file__).resolve().parents[2]


def _setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_every_package_is_installed() -> None:
    """A folder with an __init__.py that setup.cfg does not list would be missing from every wheel."""
    found = {".".join(file.parent.relative_to(ROOT).parts) for file in ROOT.glob("deeppart/**/__init__.py")}
    found |= {".".join(file.parent.relative_to(ROOT).parts) for file in ROOT.glob("simulator/**/__init__.py")}
    found = {re.sub("^simulator", "deeppart_simulator", name) for name in found}
    assert set(_setup()["options"]["packages"].split()) == found


@pytest.mark.parametrize("package", ["deeppart", "simulator"])
def test_types_are_shipped(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()


def test_mpi_is_optional() -> None:
    required = _setup()["options"]["install_requires"]
    assert not re.search("^(mpi4py|mpich|openmpi)", required, re.MULTILINE)


def test_ci_runs_with_the_oldest_torch_that_is_allowed() -> None:
    least = re.search(r"^torch>=(\S+)$", _setup()["options"]["install_requires"], re.MULTILINE)
    oldest = re.search(r"^OLDEST_TORCH := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert least is not None and oldest is not None
    assert oldest[1].split(".")[:2] == least[1].split(".")
    assert "test-oldest" in (ROOT / ".ci" / "run").read_text()


def test_make_targets_of_the_readme_exist() -> None:
    named = set(re.findall(r"(?:`|^[ $]*)make ([a-z-]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert named >= {"demo", "test"}
    for target in sorted(named):
        dry = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert dry.returncode == 0, f"README.md says `make {target}`: {dry.stderr}"


def test_no_module_takes_the_place_of_a_public_name() -> None:
    """Importing ``deeppart.restore`` as a module would make it the attribute ``restore`` of the package."""
    modules = {path.stem for path in (ROOT / "deeppart").iterdir() if path.name != "__init__.py"}
    assert not modules & set(deeppart.__all__)
    assert {"checkpoint", "restore", "load"} <= set(deeppart.__all__)


def test_one_version() -> None:
    """What is built, cited and described is the version that checkpoints say has written them."""
    assert _setup()["metadata"]["version"] == "attr: deeppart.model.version.VERSION"
    cited = re.search("^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    described = re.search(r"^## \[(.+?)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = re.search("^date-released: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited and described and released
    assert cited[1] == described[1] == deeppart.__version__
    assert released[1] == described[2]
