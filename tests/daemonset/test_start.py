"""A start with nothing but the requested CPU ends before a probe ends it: request and probes of every manifest.

Where other pods take all CPUs, a container has what it requests. An agent that the kubelet ends before its first answer
starts again and again, and its node offers nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.daemonset.test_chart import VALUES, render
from tests.support.manifests import DAEMONSET, INSTALLATIONS, ROOT, Manifest, built, parsed, pod_specs

pytestmark = pytest.mark.needs("kubectl")

CPU_S, FACTOR = 1.0, 1.5
"""The CPU seconds of a start until /healthz answers, and the factor of the wall time on a busy machine: the longest
that were measured (docs/reference/benchmarks.md)."""
WITHIN_S = 60.0
"""A container without a probe that ends it does its work within a minute too: the pod waits for the init container."""
WITHOUT = {
    "faults": "changes the simulated machine of kind",
    "machine": "makes the simulated machine of kind",
}
"""Containers of our image whose start nothing waits for."""


def cores(container: Manifest, part: str = "requests") -> float | None:
    stated = container.get("resources", {}).get(part, {}).get("cpu")
    if stated is None:
        return None
    text = str(stated)
    return float(text.removesuffix("m")) / 1000 if text.endswith("m") else float(text)


def ours(manifests: list[Manifest]) -> Iterator[Manifest]:
    """The containers of our image."""
    for manifest in manifests:
        if manifest["kind"] in ("DaemonSet", "Deployment"):
            for spec in pod_specs(manifest):
                for container in (*spec.get("initContainers", ()), *spec["containers"]):
                    if re.search(r"(^|/)nodeagent(-lab)?(:|@|$)", container["image"]):
                        yield container


def window_s(container: Manifest) -> float | None:
    """Seconds from the start of the container until a probe without an answer ends it."""
    probe = container.get("startupProbe") or container.get("livenessProbe")
    if probe is None:
        return None
    failures = int(probe.get("failureThreshold", 3)) - 1
    return float(probe.get("initialDelaySeconds", 0) + failures * probe.get("periodSeconds", 10))


def check(manifests: list[Manifest]) -> set[str]:
    """Compare each container; the names of those that were."""
    seen = set()
    for container in ours(manifests):
        if container["name"] in WITHOUT:
            continue
        seen.add(container["name"])
        requested = cores(container)
        assert requested is not None, container["name"]
        assert cores(container, "limits") is None, f"{container['name']}: a limit is a quota"
        start_s = FACTOR * CPU_S / requested
        allowed = window_s(container)
        assert start_s <= (WITHIN_S if allowed is None else allowed), (
            f"{container['name']}: a start of {start_s:.0f} s with {requested} CPUs, and it is ended after {allowed} s"
        )
    return seen


@pytest.mark.parametrize("overlay", INSTALLATIONS)
def test_a_start_with_the_requested_cpu_ends_before_the_probe_ends_it(overlay: str) -> None:
    assert "nodeagent" in check(built(overlay))


@pytest.mark.needs("helm_python")
@pytest.mark.parametrize("overlay", VALUES)
def test_so_does_one_of_the_chart(overlay: str) -> None:
    assert "nodeagent" in check(render(VALUES[overlay]))


def test_every_part_of_the_image_is_compared() -> None:
    seen = {name for overlay in INSTALLATIONS for name in check(built(overlay))}
    assert {"nodeagent", "vfs", "mps", "attach", "controller"} <= seen


def test_an_autoscaler_leaves_the_agent_what_its_start_needs() -> None:
    found = parsed((DAEMONSET / "examples/autoscaling/vpa.yaml").read_text())
    (policy,) = (
        one
        for autoscaler in found
        if autoscaler["kind"] == "VerticalPodAutoscaler"
        and autoscaler["spec"]["targetRef"]["name"] == "nodeagent"
        for one in autoscaler["spec"]["resourcePolicy"]["containerPolicies"]
    )
    (container,) = (one for one in ours(built()) if one["name"] == "nodeagent")
    least = cores({"resources": {"requests": policy["minAllowed"]}})
    assert least is not None
    assert FACTOR * CPU_S / least <= (window_s(container) or 0)


def test_the_page_has_the_figures_of_this_test() -> None:
    page = (ROOT / "docs/reference/benchmarks.md").read_text()
    assert f"{CPU_S:.1f} s of CPU, and the factor {FACTOR}" in page
    (text,) = re.findall(r"## A start with little CPU\n(.*?)(?=\n## |\Z)", page, re.S)
    measured = [float(one) for one in re.findall(r"\| ([0-9.]+) s \|$", text, re.M)]
    assert measured
    assert max(measured) <= CPU_S
