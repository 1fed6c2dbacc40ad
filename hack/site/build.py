"""Build the site of the documentation, from the pages as they are.

    python hack/site/build.py [--serve]

The pages link to each other and to files of the repository by relative paths. So the site's source is a copy of those
parts of the repository in their places. MkDocs is strict: a broken link or anchor fails the build.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / ".cache" / "site-source"
PARTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
    ".github",
    "daemonset",
    "docs",
    "tests/recordings",
)
LINK = re.compile(r"\[([^\]]+)\]\((?!https?://|#)([^)#\s]+)(#[^)\s]*)?\)")


def stage() -> None:
    shutil.rmtree(SOURCE, ignore_errors=True)
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        (SOURCE / part).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / part, SOURCE / part)
    for page in SOURCE.rglob("*.md"):
        page.write_text(LINK.sub(lambda link, page=page: _linked(page, link), page.read_text()))


def _linked(page: Path, link: re.Match[str]) -> str:
    """A link to a folder leads to its README; one to what the site has not is plain text."""
    text, path, anchor = link[1], link[2], link[3] or ""
    target = page.parent / path
    if target.is_dir():
        path, target = f"{path.rstrip('/')}/README.md", target / "README.md"
    return f"[{text}]({path}{anchor})" if target.exists() else text


def main() -> int:
    stage()
    verb = ["serve"] if "--serve" in sys.argv[1:] else ["build", "--strict"]
    command = [sys.executable, "-m", "mkdocs", *verb, "--config-file", str(ROOT / "hack/site/mkdocs.yml")]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
