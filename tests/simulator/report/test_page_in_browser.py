"""The page of ``--report`` in a browser, without a network: headless Chromium (Debian's package)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from deeppart_simulator.cli import main
from matplotlib import image

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
#: Nothing outside the page can be reached; what it tries is told on the console.
OPTIONS = (
    *("--headless=new", "--disable-gpu", "--hide-scrollbars", "--window-size=1240,2400", "--enable-logging=stderr"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--disable-extensions", "--no-first-run"),
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium")


def browse(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    command = [BROWSER, *OPTIONS, *sandbox, f"--user-data-dir={tmp_path / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    file = tmp_path / "out.html"
    arguments = ["advise", "--state", "llama3-8b+adam", "--ranks", "256", "--parity", "8/2", "--report", str(file)]
    assert main(arguments, standalone_mode=False) == 0
    return file


def test_the_page_opens_offline(page: Path, tmp_path: Path) -> None:
    opened = browse(tmp_path, "--dump-dom", page.as_uri())
    for heading in ("How it scales", "One checkpoint", "Advice", "A campaign"):
        assert f"<h2>{heading}</h2>" in opened.stdout
    assert opened.stdout.count("<svg") == 4 and opened.stdout.count("<rect") > 40
    for trouble in ("ERR_", "Refused", "Uncaught", "Failed to load"):
        assert trouble not in opened.stderr


def test_the_page_is_drawn(page: Path, tmp_path: Path) -> None:
    shot = tmp_path / "page.png"
    browse(tmp_path, f"--screenshot={shot}", page.as_uri())
    pixels = image.imread(shot)[..., :3]
    assert pixels.shape[:2] == (2400, 1240)
    colours = np.unique((pixels.reshape(-1, 3) * 15).astype(int), axis=0)
    assert len(colours) > 60  # curves, bars and text, not an empty page
