"""Copy a package of this repository into the Python that runs this, with the record of its verbs; for the Dockerfile.

    python hack/add_package.py FOLDER

The folder has a pyproject.toml and the package. As an installer does, so that no build tool is in the image.
"""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path


def main(folder: Path) -> None:
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    package = project["name"].replace("-", "_")
    found = re.search(r'^__version__ = "(.+)"$', (folder / package / "__init__.py").read_text(), re.M)
    if found is None:
        sys.exit(f"{folder / package}: it has no __version__")
    site = Path(sysconfig.get_path("purelib"))
    shutil.copytree(folder / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    record = site / f"{package}-{found[1]}.dist-info"
    record.mkdir()
    name = f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: {found[1]}\n"
    (record / "METADATA").write_text(name)
    points = [
        f"[{group}]\n" + "".join(f"{verb} = {target}\n" for verb, target in verbs.items())
        for group, verbs in project["entry-points"].items()
    ]
    (record / "entry_points.txt").write_text("\n".join(points))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
