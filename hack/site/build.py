"""Build the site of the documentation, from the pages as they are.

    python hack/site/build.py [--serve]

The pages link to each other and to files of the repository by relative paths. So the site's source is a copy of those
parts of the repository in their places. MkDocs is strict: a broken link or anchor fails the build.

The site is read from the disk too, where a browser starts no worker for the search. For that the theme loads the script
``iframe-worker``, by default from another server. Here it is part of the site.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
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
WORKER = ROOT / ".cache" / "iframe-worker-1.0.4.js"
WORKER_ARCHIVE = "https://registry.npmjs.org/iframe-worker/-/iframe-worker-1.0.4.tgz"
WORKER_SHA512 = "roeaaI+Lg1LJNfgpCjoRe/+WzEjy9+Z08LoEvu85MCPbBjwm+qXz8Ag5U05lHa6V1CysZyGzE0SOkAtSUA5q7Q=="
"""The integrity of the archive as the npm registry states it."""
LINK = re.compile(r"\[([^\]]+)\]\((?!https?://|#)([^)#\s]+)(#[^)\s]*)?\)")


def stage() -> None:
    shutil.rmtree(SOURCE, ignore_errors=True)
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        (SOURCE / part).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / part, SOURCE / part)
    for page in SOURCE.rglob("*.md"):
        page.write_text(LINK.sub(lambda link, page=page: _linked(page, link), page.read_text()))


def fetch_worker() -> Path:
    """Return the file of the search's worker. It is loaded from the npm registry once."""
    if not WORKER.exists():
        with urllib.request.urlopen(WORKER_ARCHIVE, timeout=60) as answer:
            WORKER.write_bytes(unpacked(answer.read()))
    return WORKER


def unpacked(archive: bytes) -> bytes:
    """
    Raises:
        SystemExit: the archive is not the one that was reviewed.
    """
    if base64.b64encode(hashlib.sha512(archive).digest()).decode() != WORKER_SHA512:
        sys.exit(f"{WORKER_ARCHIVE} has another content than WORKER_SHA512 in {Path(__file__).name} says")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        script = files.extractfile("package/shim/index.js")
        assert script is not None
        return script.read()


def _linked(page: Path, link: re.Match[str]) -> str:
    """A link to a folder leads to its README; one to what the site has not is plain text."""
    text, path, anchor = link[1], link[2], link[3] or ""
    target = page.parent / path
    if target.is_dir():
        path, target = f"{path.rstrip('/')}/README.md", target / "README.md"
    return f"[{text}]({path}{anchor})" if target.exists() else text


def main() -> int:
    stage()
    shutil.copy(fetch_worker(), SOURCE / "iframe-worker.js")
    verb = ["serve"] if "--serve" in sys.argv[1:] else ["build", "--strict"]
    command = [sys.executable, "-m", "mkdocs", *verb, "--config-file", str(ROOT / "hack/site/mkdocs.yml")]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
