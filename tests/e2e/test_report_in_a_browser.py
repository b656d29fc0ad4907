"""`report.html` as a browser shows it, without a network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest
from sweep_process import HANG_S, Finished

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_PROBE = """<script>
addEventListener("load", () => {
  const seen = [...document.images].map(image => [image.alt, image.naturalWidth, image.naturalHeight]);
  const wide = document.documentElement.scrollWidth > innerWidth;
  const out = document.createElement("pre");
  out.id = "probe";
  out.textContent = JSON.stringify({seen, wide});
  document.body.append(out);
});
</script>"""


def browse(page: Path, home: Path) -> tuple[str, list[str]]:
    """The page's final DOM, and what it wrote to the console. Every name resolves to nothing."""
    assert BROWSER is not None
    command = [
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9", f"--user-data-dir={home}"),
        *("--enable-logging=stderr", "--log-level=0", "--virtual-time-budget=10000", "--dump-dom", page.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
def test_the_report_shows_all_its_pictures_and_no_error(finished: Finished, tmp_path: Path) -> None:
    page = finished.folder / "figures" / "report.html"
    dom, console = browse(page, tmp_path / "profile")
    assert console == []
    assert dom.count("<img") == len(re.findall("<figure>", page.read_text())) >= 3

    # the page forbids scripts, so a copy that allows one is asked for the sizes of its pictures
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text())
    copy = tmp_path / "probed.html"
    copy.write_text(text.replace("</body>", _PROBE + "</body>"))
    dom, console = browse(copy, tmp_path / "profile")
    assert console == []
    found = re.search(r'<pre id="probe">(.*?)</pre>', dom, re.DOTALL)
    assert found, dom[-2000:]
    probe = json.loads(unescape(found[1]))
    assert len(probe["seen"]) >= 3
    for alt, width, height in probe["seen"]:
        assert alt and width > 0 and height > 0
    assert not probe["wide"]  # nothing sticks out to the right


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
def test_the_check_sees_a_broken_page(tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    page.write_text('<body><img src="data:image/png;base64,xx"><script>nonsense()</script></body>')
    assert any("nonsense" in line for line in browse(page, tmp_path / "profile")[1])
