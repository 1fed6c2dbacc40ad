"""Make the templates of daemonset/chart out of the kustomization, which is the one source of both.

    python hack/chart.py [KUBECTL]

What kustomize builds is written out again, with the few places that a person sets turned into expressions. The
chart's own files (Chart.yaml, values.yaml, its schema, NOTES.txt) are written by hand; a test renders the chart
with Helm and compares the objects with kustomize's.
"""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

DAEMONSET = Path(__file__).resolve().parents[1] / "daemonset"
CHART = DAEMONSET / "chart"
HEADER = "{{- /* Made by hack/chart.py from daemonset/; not to be edited. */}}\n"
Object = dict[str, Any]

# What stands for an expression while the object is YAML, and what it becomes. A block replaces its whole line.
_MARK = re.compile(
    r"^(?P<lead>\s*(?:- )?)(?P<key>[^\s:]+): [\"']@(?P<what>\w+)@(?P<argument>[^@]*)@[\"']$", re.M
)


def build(folder: str, kubectl: str) -> list[Object]:
    done = subprocess.run(
        [kubectl, "kustomize", DAEMONSET / folder], capture_output=True, text=True, check=True
    )
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def of(objects: list[Object], *kinds: str) -> list[Object]:
    return [one for one in objects if one["kind"] in kinds]


def templates(kubectl: str = "kubectl") -> dict[str, str]:
    """File name in the chart → text."""
    cluster, node = build("base/cluster", kubectl), build("base/node", kubectl)
    made = {
        "templates/namespace.yaml": when(
            "namespace.create", write([namespace(one) for one in of(cluster, "Namespace")])
        ),
        "templates/crd.yaml": when("crds.install", write(of(cluster, "CustomResourceDefinition"))),
        "templates/cluster.yaml": write(
            [one for one in cluster if one["kind"] not in ("Namespace", "CustomResourceDefinition")]
        ),
        "templates/agent.yaml": each_pool(write([agent(one) for one in node])),
        "templates/controller.yaml": when(
            "controller.enabled", write([controller(one) for one in build("controller", kubectl)])
        ),
        "templates/node-conditions.yaml": when(
            "nodeConditions.enabled", write(build("node-conditions", kubectl))
        ),
        "templates/evictions.yaml": when("evictions.enabled", write(build("evictions", kubectl))),
        "templates/marks.yaml": when("marks.enabled", write(build("marks", kubectl))),
        "templates/kueue.yaml": when("kueue.enabled", write(build("kueue", kubectl))),
    }
    if (DAEMONSET / "monitoring" / "kustomization.yaml").exists():
        made["templates/monitoring.yaml"] = when("monitoring.enabled", write(build("monitoring", kubectl)))
    made["files/nodeagent.yaml"] = (DAEMONSET / "base" / "node" / "nodeagent.yaml").read_text()
    made["files/fabric.yaml"] = (DAEMONSET / "controller" / "fabric.yaml").read_text()
    return made


def namespace(one: Object) -> Object:
    return {**one, "metadata": {**one["metadata"], "name": "@value@$.Release.Namespace@"}}


def agent(one: Object) -> Object:
    """The DaemonSet or the ConfigMap of one pool of nodes."""
    one = copy.deepcopy(one)
    one["metadata"]["name"] = "nodeagent@suffix@"
    one["metadata"]["labels"]["app.kubernetes.io/instance"] = "@pool@@"
    if one["kind"] == "ConfigMap":
        one["data"]["nodeagent.yaml"] = "@config@$pool.config@"
        return one
    spec = one["spec"]
    spec["selector"]["matchLabels"]["app.kubernetes.io/instance"] = "@pool@@"
    spec["template"]["metadata"]["labels"]["app.kubernetes.io/instance"] = "@pool@@"
    spec["template"]["metadata"]["annotations"]["@annotations"] = "@entries@$.Values.agent.podAnnotations@"
    spec["updateStrategy"]["rollingUpdate"]["maxUnavailable"] = "@value@$.Values.agent.maxUnavailable@"
    pod = spec["template"]["spec"]
    pod["affinity"] = "@block@$affinity@"
    pod["nodeSelector"]["@selector"] = "@entries@$pool.nodeSelector@"
    pod["tolerations"] = "@block@$.Values.agent.tolerations@"
    pod["priorityClassName"] = "@line@$.Values.agent.priorityClassName@"
    pod["runtimeClassName"] = "@line@$.Values.agent.runtimeClassName@"
    pod["imagePullSecrets"] = "@block@$.Values.imagePullSecrets@"
    for volume in pod["volumes"]:
        if volume["name"] == "config":
            volume["configMap"]["name"] = "nodeagent@suffix@"
    for container in (*pod["initContainers"], *pod["containers"]):
        container["image"] = "@image@@"
        container["imagePullPolicy"] = "@value@$.Values.image.pullPolicy@"
    pod["containers"][0]["resources"] = "@block@$.Values.agent.resources@"
    return one


def controller(one: Object) -> Object:
    one = copy.deepcopy(one)
    if one["kind"] == "ConfigMap":
        one["data"]["fabric.yaml"] = "@config@$.Values.controller.fabric@"
    if one["kind"] == "Deployment":
        one["spec"]["replicas"] = "@value@$.Values.controller.replicas@"
        pod = one["spec"]["template"]["spec"]
        pod["tolerations"] = "@block@$.Values.controller.tolerations@"
        pod["imagePullSecrets"] = "@block@$.Values.imagePullSecrets@"
        (container,) = pod["containers"]
        container["image"] = "@image@@"
        container["imagePullPolicy"] = "@value@$.Values.image.pullPolicy@"
        container["resources"] = "@block@$.Values.controller.resources@"
    if one["kind"] == "NetworkPolicy":
        one["spec"]["ingress"][0]["from"] = "@block@$.Values.controller.metricsFrom@"
    return one


def write(objects: list[Object]) -> str:
    """YAML in the chart's form: foreign braces escaped, the namespace the release's, marks resolved."""
    text = "---\n".join(
        yaml.safe_dump(one, sort_keys=True, allow_unicode=True, width=1_000_000) for one in objects
    )
    text = re.sub(r"\{\{|\}\}", lambda match: '{{ "' + match[0] + '" }}', text)
    text = re.sub(r"^(\s+(?:- )?namespace): nodeagent$", r"\1: {{ $.Release.Namespace }}", text, flags=re.M)
    text = text.replace(
        "system:serviceaccount:nodeagent:", "system:serviceaccount:{{ $.Release.Namespace }}:"
    )
    text = text.replace("nodeagent@suffix@", "nodeagent{{ $suffix }}")
    text = _MARK.sub(
        lambda match: _RESOLVE[match["what"]](match["lead"], match["key"], match["argument"]), text
    )
    assert not (left := re.findall(r".*@\w+@.*", text)), left
    return text


def _block(lead: str, key: str, value: str) -> str:
    inner = len(lead) + 2
    made = f"{lead}{key}:\n{' ' * inner}{{{{- toYaml {value} | nindent {inner} }}}}"
    return made if "-" in lead else f"{lead}{{{{- if {value} }}}}\n{made}\n{lead}{{{{- end }}}}"


def _config(lead: str, key: str, value: str) -> str:
    """``value`` is text or a map; where it is empty, the file of the chart counts."""
    return (
        f"{lead}{key}: |\n"
        f'{{{{- if kindIs "map" {value} }}}}\n{{{{ toYaml {value} | indent {len(lead) + 2} }}}}\n'
        f'{{{{- else }}}}\n{{{{ {value} | default ($.Files.Get "files/{key}") | indent {len(lead) + 2} }}}}\n'
        f"{{{{- end }}}}"
    )


_RESOLVE: dict[str, Callable[[str, str, str], str]] = {
    "value": lambda lead, key, value: f"{lead}{key}: {{{{ {value} }}}}",
    "line": lambda lead, key, value: (
        f"{lead}{{{{- with {value} }}}}\n{lead}{key}: {{{{ . }}}}\n{lead}{{{{- end }}}}"
    ),
    "entries": lambda lead, _, value: (
        f"{lead}{{{{- with {value} }}}}\n{lead}{{{{- toYaml . | nindent {len(lead)} }}}}\n{lead}{{{{- end }}}}"
    ),
    "pool": lambda lead, key, _: (
        f"{lead}{{{{- with $name }}}}\n{lead}{key}: {{{{ . }}}}\n{lead}{{{{- end }}}}"
    ),
    "image": lambda lead, key, _: (
        f'{lead}{key}: "{{{{ $.Values.image.repository }}}}:{{{{ $.Values.image.tag | default $.Chart.AppVersion }}}}"'
    ),
    "block": _block,
    "config": _config,
}


def when(value: str, text: str) -> str:
    return f"{HEADER}{{{{- if .Values.{value} }}}}\n{text}{{{{- end }}}}\n"


def each_pool(text: str) -> str:
    """Once for each pool of ``pools``, or once for all nodes where there is none."""
    return (
        f'{HEADER}{{{{- range $name, $pool := (.Values.pools | default (dict "" (dict "config" .Values.config))) }}}}\n'
        '{{- $suffix := empty $name | ternary "" (printf "-%s" $name) }}\n'
        "{{- $affinity := empty $name | ternary $.Values.agent.affinity nil }}\n"
        f"---\n{text}{{{{- end }}}}\n"
    )


def main() -> None:
    for name, text in templates(*sys.argv[1:2]).items():
        file = CHART / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main()
