"""Pages in a browser, without a network: headless Chromium (Debian's package), one start for many pages and widths.

Pages have no scripts. The one here looks at them from outside, through frames, and leaves what it found in its own
page, which Chromium prints.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
#: Nothing outside the page can be reached; what it tries is told on the console.
OPTIONS = (
    *("--headless=new", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--disable-extensions", "--no-first-run"),
)

_SCRIPT = r"""
const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
function look(frame) {
  const page = frame.contentDocument, view = frame.contentWindow, small = [], cut = [], crossed = [];
  page.querySelectorAll('details').forEach(each => each.open = true);
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  let texts = 0;
  for (let node; node = walker.nextNode();) {
    const holder = node.parentElement, range = page.createRange();
    range.selectNodeContents(node);
    if (!node.data.trim() || !range.getClientRects().length || holder.closest('title, desc, style')) continue;
    let scale = 1;
    if (holder.closest('svg')) { const m = holder.getScreenCTM(); scale = Math.sqrt(Math.abs(m.a * m.d - m.b * m.c)); }
    const size = parseFloat(view.getComputedStyle(holder).fontSize) * scale;
    texts += 1;
    if (size < 11) small.push([node.data, size]);
    if (!holder.closest('.wide, pre')) {
      const box = range.getBoundingClientRect();
      if (box.left < 0 || box.right > view.innerWidth) cut.push(node.data);
    }
  }
  page.querySelectorAll('svg').forEach(svg => {
    const found = [...svg.querySelectorAll('text')].map(each => [each.textContent, each.getBoundingClientRect()]);
    const around = svg.getBoundingClientRect();
    found.forEach(([words, box], place) => {
      if (!svg.closest('.lanes') && (box.left < around.left - 1 || box.right > around.right + 1 ||
          box.top < around.top - 1 || box.bottom > around.bottom + 1)) cut.push(words);
      found.slice(0, place).forEach(([other, there]) => { if (meet(box, there)) crossed.push([other, words]); });
    });
  });
  return {texts, small, cut, crossed, wide: page.scrollingElement.scrollWidth - view.innerWidth,
    headings: [...page.querySelectorAll('h2')].map(each => each.textContent),
    columns: [...page.querySelectorAll('.panels, .charts')].map(each => new Set(
      [...each.querySelectorAll('figure')].map(one => Math.round(one.getBoundingClientRect().left))).size)};
}
addEventListener('load', () => {
  const frames = [...document.querySelectorAll('iframe')];
  document.getElementById('found').textContent = JSON.stringify(frames.map(look));
});
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """A page at a width.

    Attributes:
        texts: how many there are, with what is folded.
        small: texts of less than 11 pixels, and how many they have.
        cut: texts that leave their drawing or the page, but for what scrolls in a box of its own.
        crossed: pairs of texts in one drawing that lie over each other.
        wide: pixels by which the page is wider than its window.
        headings: of its sections.
        columns: in how many columns the drawings of each chart are.
    """

    texts: int
    small: Sequence[Any]
    cut: Sequence[str]
    crossed: Sequence[Any]
    wide: float
    headings: Sequence[str]
    columns: Sequence[int]


def browse(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Start the browser once."""
    assert BROWSER is not None
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    command = [BROWSER, *OPTIONS, *sandbox, f"--user-data-dir={folder / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)


def look_at(folder: Path, pages: Mapping[str, str], widths: Sequence[int]) -> tuple[dict[tuple[str, int], Seen], str]:
    """Every page at every width, and what the browser complained of.

    Args:
        folder: for files.
        pages: name -> the page's text.
    """
    places = [(name, width) for name in pages for width in widths]
    frames = "".join(
        f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{escape(pages[name])}"></iframe>'
        for name, width in places
    )
    file = folder / "frames.html"
    file.write_text(f"<!DOCTYPE html><meta charset=utf-8><pre id=found></pre>{frames}<script>{_SCRIPT}</script>")
    done = browse(folder, "--dump-dom", file.as_uri())
    match = re.search(r"<pre id=\"found\">(.*?)</pre>", done.stdout, re.DOTALL)
    assert match is not None, done.stderr
    found = json.loads(unescape(match[1]))
    return {place: Seen(**each) for place, each in zip(places, found, strict=True)}, done.stderr
