"""The command line of hack/release: `make release ARGS="VERB …"`."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import hack.release
from hack.release import build, checks, notices, versions
from hack.release.versions import ROOT, ReleaseError

OUT = ROOT / "dist/release"
TOOLS = {
    "buildah": "apt-get install buildah; it builds the image without a daemon",
    "skopeo": "apt-get install skopeo; it copies images with their digests",
}


def main() -> int:
    options = parser().parse_args()
    try:
        options.do(options)
    except ReleaseError as reason:
        print(f"no release: {reason}", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="make release",
        description=hack.release.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = made.add_subparsers(required=True, metavar="VERB")
    version = verbs.add_parser("version", help="write a version into every file that names it")
    version.add_argument("version", metavar="X.Y.Z")
    version.set_defaults(do=write_version)
    verbs.add_parser("base", help="pin the base of the image").set_defaults(do=pin_base)
    verbs.add_parser("notices", help="renew hack/third-party-notices.txt").set_defaults(do=write_notices)
    check = verbs.add_parser("check", help="check what a release needs of this commit")
    check.set_defaults(do=check_commit)
    making = verbs.add_parser("build", help="make every file of the release")
    making.set_defaults(do=make_files)
    pushing = verbs.add_parser("push", help="push image and chart")
    pushing.set_defaults(do=push)
    for verb in (check, making):
        verb.add_argument(
            "--base",
            metavar="NAME@DIGEST",
            help="another base than hack/base-image.txt has, such as that of a mirror; the image then has other bytes",
        )
        verb.add_argument(
            "--arch",
            action="append",
            choices=sorted(checks.ARCHITECTURES),
            help="build for this architecture alone (default: all; another than the machine's needs qemu-user-static)",
        )
    for verb in (making, pushing):
        verb.add_argument(
            "--registry",
            type=registry,
            required=True,
            help="the registry with the owner's name: ghcr.io/OWNER",
        )
        verb.add_argument(
            "--out", type=Path, default=OUT, help="the folder of the files (default: dist/release)"
        )
    making.add_argument(
        "--source", help="https address of the repository (default: that of the remote origin)"
    )
    making.add_argument(
        "--untagged", action="store_true", help="try it before the tag is made: the tag is not asked for"
    )
    making.add_argument(
        "--build-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="passed on to buildah, as --build-option=--volume=/etc/pip.conf:/etc/pip.conf:ro",
    )
    pushing.add_argument(
        "--plain-http", action="store_true", help="the registry has no TLS: one on this machine"
    )
    return made


def registry(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*/?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no registry such as ghcr.io/OWNER")
    return text.rstrip("/")


def write_version(options: argparse.Namespace) -> None:
    for file in versions.write(options.version):
        print(file)
    print("Now: make golden, read the diff, commit.")


def pin_base(_: argparse.Namespace) -> None:
    need("skopeo")
    text = checks.BASE.read_text()
    name = checks.base_image(text).partition("@")[0]
    digest = digest_of(name)
    checks.BASE.write_text(checks.pinned(text, digest))
    print(f"{name}@{digest}")


def write_notices(_: argparse.Namespace) -> None:
    notices.NOTICES.write_text(notices.notices(notices.LOCK.read_text()))


def check_commit(options: argparse.Namespace) -> None:
    refuse(checks.all_complaints(options.base, tuple(options.arch or checks.ARCHITECTURES)))
    print(f"This commit can be released as {versions.current()}.")


def refuse(complaints: list[str]) -> None:
    if complaints:
        raise ReleaseError("\n  ".join(("", *complaints)))


def make_files(options: argparse.Namespace) -> None:
    for tool in TOOLS:
        need(tool)
    source = options.source or address()
    architectures = tuple(options.arch or checks.ARCHITECTURES)
    complaints = checks.all_complaints(options.base, architectures)
    if options.untagged:
        complaints = [one for one in complaints if "has no tag" not in one]
    refuse(complaints)
    commit, created, epoch = build.described("HEAD")
    release = build.Release(
        version=versions.current(),
        commit=commit,
        created=created,
        epoch=epoch,
        source=source.rstrip("/"),
        registry=options.registry,
        base=options.base or checks.base_image(checks.BASE.read_text()),
        architectures=architectures,
        build_options=tuple(options.build_option),
    )
    empty(options.out)
    with tempfile.TemporaryDirectory() as stage:
        build.build(release, Path(stage), options.out)
    for file in (build.SUMS, "IMAGE"):
        print((options.out / file).read_text(), end="")


def empty(folder: Path) -> None:
    """Make the folder, without the files of an earlier release. Files of anybody else are never removed."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / "IMAGE").is_file():
            raise ReleaseError(
                f"{folder} is not empty and has no release in it: name another folder with --out"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)


def address() -> str:
    """The https address of the repository: of the workflow, or of the remote."""
    if repository := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ['GITHUB_SERVER_URL']}/{repository}"
    done = subprocess.run(
        ["git", "remote", "get-url", "origin"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return https(done.stdout.strip())


def https(remote: str) -> str:
    found = re.fullmatch(r"(?:https://|(?:ssh://)?git@)([\w.-]+)[:/](.+?)(?:\.git)?/?", remote)
    if not found:
        raise ReleaseError(
            f"the remote origin {remote!r} has no https address: name it with --source https://…"
        )
    return f"https://{found[1]}/{found[2]}"


def push(options: argparse.Namespace) -> None:
    """Push the files as they are: a registry stores the digests that the manifests and the chart name.

    Skopeo, Helm and cosign share one file of credentials, $REGISTRY_AUTH_FILE.
    """
    need("skopeo")
    if not (options.out / "IMAGE").is_file():
        raise ReleaseError(
            f'{options.out} has no release: make release ARGS="build --registry {options.registry}"'
        )
    import helm_python as helm

    version, registry = versions.current(), options.registry
    folder, target = options.out / build.IMAGE, f"{registry}/nodeagent:{version}"
    tls = ["--dest-tls-verify=false"] if options.plain_http else []
    copy = ["skopeo", "copy", "--all", "--preserve-digests", *tls]
    build.run([*copy, f"oci:{folder}:{version}", f"docker://{target}"])
    print(f"{target}@{build.image_digest(folder)}")
    login = os.environ.get("REGISTRY_AUTH_FILE")
    with helm.RegistryClient(plain_http=options.plain_http, credentials_file=login) as client:
        archive = options.out / f"nodeagent-{version}.tgz"
        helm.push(archive, f"oci://{registry}/charts", client=client, plain_http=options.plain_http)
    chart = f"{registry}/charts/nodeagent"
    pushed = f"{chart}@{digest_of(f'{chart}:{version}', options.plain_http)}"
    (options.out / build.CHART_PUSHED).write_text(f"{pushed}\n")
    print(pushed)


def digest_of(image: str, plain_http: bool = False) -> str:
    """The digest by which a registry has an image, or the index of an image for several architectures."""
    command = [
        "skopeo",
        "inspect",
        "--raw",
        *(["--tls-verify=false"] if plain_http else []),
        f"docker://{image}",
    ]
    found = subprocess.run(command, capture_output=True, check=False)
    if found.returncode:
        raise ReleaseError(f"the registry has no answer about {image}: {found.stderr.decode().strip()}")
    return f"sha256:{hashlib.sha256(found.stdout).hexdigest()}"


def need(tool: str) -> None:
    if shutil.which(tool) is None:
        raise ReleaseError(f"{tool} is not installed: {TOOLS[tool]}")


if __name__ == "__main__":
    sys.exit(main())
