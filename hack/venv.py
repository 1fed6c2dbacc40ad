"""Create a virtual environment with the pinned requirements and the packages of this project.

    python3 hack/venv.py DIRECTORY REQUIREMENTS

Debian has ensurepip in a separate package (python3-venv). If it is missing, root installs it; for other users the
script ends with the name of the package.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

MINIMUM = (3, 11)
MANY = 40
"""Packages that take a minute to install."""


def main(directory: Path, requirements: Path) -> None:
    if sys.version_info < MINIMUM:
        sys.exit(f"Python {'.'.join(map(str, MINIMUM))} or newer is needed, this is {sys.version.split()[0]}")
    if importlib.util.find_spec("ensurepip") is None:
        install_ensurepip()
    count = sum("==" in line for line in requirements.read_text().splitlines())
    print(
        f"Installing {count} Python packages of {requirements} in {directory}, for this project alone. It takes "
        f"{'one to two minutes' if count > MANY else 'half a minute'}, once ...",
        file=sys.stderr,
    )
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], check=True)
    pip = [
        str(directory / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, "--require-hashes", "--requirement", str(requirements)], check=True)
    packages = [word for folder in (".", "./hack/lab") for word in ("--editable", folder)]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", *packages], check=True)


def install_ensurepip() -> None:
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        sys.exit("Python's venv module lacks ensurepip here; install it: apt-get install python3-venv")
    print("Installing python3-venv, which this Python's venv module needs ...", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([apt, "-qq", "update"], check=True, env=environment)
    subprocess.run([apt, "-qq", "install", "--yes", "python3-venv"], check=True, env=environment)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
