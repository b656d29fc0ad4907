"""A real SGLang that serves on a machine without a GPU, for the tests here: python tests/sglang/install.py FOLDER

Makes a virtual environment (about 4 minutes, 2.6 GB), with a stand-in for what has no CPU build; once: a finished
one is left as it is. It says nothing about speed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
READY = ".ready"
# What the CUDA build of torchvision would declare when it is loaded. Its Python side asks for these by name.
OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_ANCHOR = re.compile(r"^import torchvision\.extension\b.*\n", re.MULTILINE)


def main(folder: Path) -> None:
    """Raises CalledProcessError where a step fails; nothing is ready then."""
    requirements = HERE / "requirements.txt"
    ready = folder / READY
    if ready.is_file() and ready.read_text() == requirements.read_text():
        return
    ready.unlink(missing_ok=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "-r", str(requirements)], check=True)
    site = Path(_say(python, "import sysconfig; print(sysconfig.get_path('purelib'))"))
    (site / "stand_in.pth").write_text(f"{HERE / 'stand_in'}\n")
    declare_operators(site / "torchvision" / "_meta_registrations.py")
    ready.write_text(requirements.read_text())


def declare_operators(file: Path) -> None:
    """Have torchvision declare `OPERATORS` itself where its compiled part is not loaded."""
    text = file.read_text()
    if "declared_here" in text:
        return
    found = _ANCHOR.findall(text)
    assert len(found) == 1, f"{file} is not the torchvision this was written for"
    lines = [
        f"{found[0]}\n",
        "if not torchvision.extension._has_ops():\n",
        '    declared_here = torch.library.Library("torchvision", "FRAGMENT")\n',
        *(f'    declared_here.define("{operator}")\n' for operator in OPERATORS),
    ]
    file.write_text(text.replace(found[0], "".join(lines)))


def _say(python: Path, code: str) -> str:
    return subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/sglang/install.py FOLDER")
    main(Path(sys.argv[1]))
