"""Third-party notices of the image: the licenses of the packages in hack/requirements-run.txt, from their own records.

The wheels that are installed are those of the lock, so nothing is fetched. The file is in the image and in the release.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from hack.release.versions import ROOT, ReleaseError

LOCK = ROOT / "hack/requirements-run.txt"
NOTICES = ROOT / "hack/third-party-notices.txt"
REMOVED = {
    "markdown-it-py": "rich uses it for Markdown alone",
    "mdurl": "of markdown-it-py",
    "pygments": "rich uses it for source code alone",
}
"""Packages of the lock that the Dockerfile removes."""
LICENSE_FILE = re.compile(r"(licen[cs]es?|copying|notice|authors)\b", re.I)
RULE = "=" * 100
HEAD = """\
Third-party notices of nodeagent

The image of nodeagent contains these packages of other authors, each under its own license, without their tests and
type stubs. This file is generated from hack/requirements-run.txt and from the records of the packages (make release
ARGS=notices). The base of the image has the notices of Python (/usr/local/lib/python3.11/LICENSE.txt) and of Debian's
packages (/usr/share/doc).
"""


def pins(lock: str) -> dict[str, str]:
    """The packages of the lock that are installed on Linux: name → version."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)( ; .*win32.*)? ", lock, re.M)
    return {name: version for name, version, windows in found if not windows}


def notices(lock: str) -> str:
    parts = [HEAD]
    for name, version in pins(lock).items():
        if name not in REMOVED:
            parts.append("\n".join(notice(installed(name, version))))
    return f"\n{RULE}\n".join(parts) + "\n"


def installed(name: str, version: str) -> Distribution:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        found = None
    if found is None or found.version != version:
        there = "is not installed" if found is None else f"is installed as {found.version}"
        raise ReleaseError(
            f"{name} {version} of {LOCK.name} {there}: run `make clean` and `make release` again"
        )
    return found


def notice(package: Distribution) -> Iterator[str]:
    about = package.metadata
    yield f"{about['Name']} {about['Version']}"
    yield f"License: {license_of(package)}"
    if address := address_of(package):
        yield f"Address: {address}"
    texts = list(license_texts(package))
    if not texts:
        yield "Its wheel contains no text of the license; the address above has it."
    for file, text in texts:
        yield f"\n--- {file}\n\n{text.strip()}"


def license_of(package: Distribution) -> str:
    about = package.metadata
    if named := about.get("License-Expression") or about.get("License"):
        return str(named).strip().splitlines()[0]
    classified = [
        one.rpartition(" :: ")[2] for one in about.get_all("Classifier", []) if one.startswith("License")
    ]
    if not classified:
        raise ReleaseError(f"{about['Name']} {about['Version']} names no license: look at it before it ships")
    return ", ".join(classified)


def address_of(package: Distribution) -> str:
    if home := package.metadata.get("Home-page"):
        return str(home)
    labeled = [one.partition(",") for one in package.metadata.get_all("Project-URL", [])]
    addresses = {label.strip().lower(): url.strip() for label, _, url in labeled}
    return next(
        (addresses[one] for one in ("homepage", "source", "repository", "source code") if one in addresses),
        "",
    )


def license_texts(package: Distribution) -> Iterator[tuple[str, str]]:
    for file in sorted(package.files or (), key=str):
        if LICENSE_FILE.match(file.name) and ".dist-info" in str(file):
            yield file.name, file.read_text(encoding="utf-8")
