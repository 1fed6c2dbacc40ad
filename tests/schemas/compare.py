#!/usr/bin/env python3
"""Compare the extracts of this folder, and our manifests, with the definitions of the projects they come from.

Each extract names its source: repository, path, commit, date of the commit, and the SHA-256 of the file at that commit.
Give the script checkouts of these repositories, plain or bare::

    python -m tests.schemas.compare kubernetes-sigs/kueue=~/src/kueue volcano-sh/volcano=~/src/volcano@v1.15.0

Without ``@revision`` it reads HEAD. For each kind it says whether the file is that of the extract, and lists each
field, type, value and required field in which the extract accepts more than the project. It checks our own objects of
the kind strictly, bounds included: an unknown field is an error. Exit code 1 if something was found, 2 if a checkout is
missing.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tests.support.manifests import DAEMONSET, INSTALLATIONS, Manifest, built, files, parsed

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Source:
    """The file of a project that an extract was made from."""

    repository: str
    path: str
    commit: str
    date: str
    sha256: str


def extracts() -> Iterator[tuple[dict[str, Any], Source]]:
    """Each extract with its source."""
    for path in sorted(FOLDER.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield document, Source(**document["x-source"])


def file_at(checkout: str, path: str) -> bytes:
    """The file in ``folder`` or ``folder@revision``; subprocess.CalledProcessError if it is not there."""
    folder, _, revision = checkout.partition("@")
    command = ["git", "-C", str(Path(folder).expanduser()), "show", f"{revision or 'HEAD'}:{path}"]
    return subprocess.run(command, capture_output=True, check=True).stdout


def definition(text: bytes, extract: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI schema of the extract's kind and version in a file of CustomResourceDefinitions."""
    group, _, version = extract["apiVersion"].partition("/")
    for crd in yaml.safe_load_all(text):
        if not crd or crd["kind"] != "CustomResourceDefinition" or crd["spec"]["group"] != group:
            continue
        for one in crd["spec"]["versions"] if crd["spec"]["names"]["kind"] == extract["kind"] else ():
            if one["name"] == version and one["served"]:
                found: dict[str, Any] = one["schema"]["openAPIV3Schema"]
                return found
    raise LookupError(f"no served version {extract['apiVersion']} of {extract['kind']}")


def types(schema: dict[str, Any]) -> set[str]:
    """The JSON types that a schema accepts; empty if it accepts all."""
    if schema.get("x-kubernetes-int-or-string"):
        return {"integer", "string"}
    found = schema.get("type", ())
    return {found} if isinstance(found, str) else set(found)


def looser(ours: dict[str, Any], theirs: dict[str, Any], path: str = "") -> Iterator[str]:
    """Where the extract accepts what the project refuses."""
    if "x-pod" in ours:
        return
    accepted = types(theirs)
    if accepted and types(ours) - accepted - ({"integer"} if "number" in accepted else set()):
        yield f"{path}: type {sorted(types(ours))}, the project has {sorted(accepted)}"
    if "enum" in theirs and set(ours.get("enum", [None])) - set(theirs["enum"]):
        yield f"{path}: values {ours.get('enum', 'any')}, the project has {theirs['enum']}"
    for name in sorted(set(theirs.get("required", ())) - set(ours.get("required", ()))):
        if "default" not in theirs.get("properties", {}).get(name, {}) and not ours.get("x-quantities"):
            yield f"{path}.{name}: required by the project"
    known = theirs.get("properties", {})
    for name, one in ours.get("properties", {}).items():
        if name in known:
            yield from looser(one, known[name], f"{path}.{name}")
        elif not theirs.get("x-kubernetes-preserve-unknown-fields"):
            values = theirs.get("additionalProperties")
            if isinstance(values, dict):
                yield from looser(one, values, f"{path}.{name}")
            else:
                yield f"{path}.{name}: unknown to the project"
    if "items" in ours:
        yield from looser(ours["items"], theirs.get("items", {}), f"{path}[]")


def closed(schema: Any) -> Any:
    """The schema as strict validation applies it: unknown fields are errors, a field with a default may be left out."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(one) for name, one in schema.items() if name not in ("properties", "default")}
    if "properties" in schema:
        properties = schema["properties"]
        found["properties"] = {name: closed(one) for name, one in properties.items()}
        found["required"] = [
            one for one in schema.get("required", ()) if "default" not in properties.get(one, {})
        ]
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            found.setdefault("additionalProperties", False)
    if "(?i)" in found.get("pattern", ""):  # Go accepts the flag anywhere, Python at the start.
        found["pattern"] = "(?i)" + found["pattern"].replace("(?i)", "")
    return found


def own_objects(extract: dict[str, Any]) -> Iterator[tuple[str, Manifest]]:
    """Our objects of this kind, from the overlays and the examples, with the place of each."""
    places = [(f"daemonset/{overlay}", built(overlay)) for overlay in INSTALLATIONS]
    places += [
        (str(one.relative_to(DAEMONSET.parent)), parsed(one.read_text()))
        for one in files(DAEMONSET / "examples")
    ]
    for place, manifests in places:
        for one in manifests:
            if (one.get("apiVersion"), one.get("kind")) == (extract["apiVersion"], extract["kind"]):
                yield place, one


def refused(extract: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    """Each finding of the project's definition in our own objects of this kind."""
    schema = closed(theirs)
    schema.setdefault("properties", {})["metadata"] = {"type": "object"}
    validator = jsonschema.Draft202012Validator(schema)
    for place, manifest in own_objects(extract):
        for error in validator.iter_errors(manifest):
            yield f"{place}: {error.json_path}: {error.message[:200]}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", nargs="+", metavar="OWNER/NAME=FOLDER[@REVISION]")
    checkouts = dict(one.split("=", 1) for one in parser.parse_args().checkouts)
    found = missing = 0
    for extract, source in extracts():
        kind = f"{extract['kind']} ({extract['apiVersion']})"
        if source.repository not in checkouts:
            print(f"{kind}: no checkout of {source.repository}")
            missing += 1
            continue
        try:
            text = file_at(checkouts[source.repository], source.path)
            schema = definition(text, extract)
        except (subprocess.CalledProcessError, LookupError) as error:
            detail = (
                error.stderr.decode().strip()
                if isinstance(error, subprocess.CalledProcessError)
                else str(error)
            )
            print(f"{kind}: {source.repository} {source.path}: {detail}")
            found += 1
            continue
        same = hashlib.sha256(text).hexdigest() == source.sha256
        state = "the file of the extract" if same else f"another file than at {source.date}"
        print(f"{kind}: {source.repository}, {state}")
        for finding in dict.fromkeys((*looser(extract, schema), *refused(extract, schema))):
            print(f"  {finding}")
            found += 1
    return 1 if found else 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
