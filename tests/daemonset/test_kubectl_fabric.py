"""daemonset/kubectl-nodeagent and the fabric: the real kubectl against an API server that enforces the shipped roles.

`kubectl exec` is a process without kubeconfig, token and files of this machine: what the verb knows has been read by
the person's kubectl, and what is written is written by it.
"""

from __future__ import annotations

import asyncio
import json
import sysconfig
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nodeagent.fabric.maintenance import MAINTENANCE_LABEL, read_maintenance
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.apiserver.tls import Certificates
from tests.controller.test_controller import populate
from tests.features.test_silent_agents import CRASHES, agent_pod
from tests.support.admission import Request, refusals
from tests.support.job_pods import of_job
from tests.support.manifests import DAEMONSET, Manifest, built
from tests.support.needs import which

pytestmark = [pytest.mark.needs("kubectl", "openssl", "cel_expr_python"), pytest.mark.slow]

LIMIT_S = 120.0
EXEC = """\
#!/bin/sh
# kubectl, whose `exec` is a process here that has nothing of the person
printf '%s\\n' "$*" >>"$CALLS"
case " $* " in
*" auth whoami "*) echo ann; exit ;;
*" exec "*)
    [ -z "${MAY_NOT_EXEC-}" ] || { echo 'Error from server (Forbidden): pods/exec' >&2; exit 1; }
    while [ "$1" != -- ]; do shift; done
    shift
    exec env -i "PATH=$VENV:/usr/bin:/bin" HOME=/nonexistent "$@" ;;
esac
for before in "${BEFORE:-/nonexistent}"/*; do
    case " $* " in
    *" patch node ${before##*/} "*)
        "$KUBECTL" --kubeconfig "${BEFORE%/*}/kubelet" $(cat "$before") >/dev/null
        rm "$before" ;;
    esac
done
exec "$KUBECTL" "$@"
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str


Plugin = Callable[..., Awaitable[Done]]


def binding(role: str, kind: str = "ClusterRole", name: str = "") -> Manifest:
    """As the documented `kubectl create … --user=ann` makes it."""
    made: Manifest = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding" if kind == "ClusterRole" else "RoleBinding",
        "metadata": {"name": name or role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": "ann"}],
    }
    if kind == "Role":
        made["metadata"]["namespace"] = "nodeagent"
    return made


@asynccontextmanager
async def cluster(folder: Path, *roles: str, **environment: str) -> AsyncIterator[tuple[ApiServer, Plugin]]:
    """Two units of four nodes with a controller's pod, and the plugin for the user ann, who has the view roles of the
    manifests and ``roles``."""
    certificates = Certificates(folder)
    server = await ApiServer(tls=certificates, rbac=True).start()
    manifests = built("overlays/controller")
    for one in manifests:
        if one["kind"] in ("CustomResourceDefinition", "ClusterRole", "Role", "Namespace", "ConfigMap"):
            server.put(one)
    populate(server)
    for made in (binding("nodeagent-view"), binding("nodeagent-view", "Role"), *map(binding, roles)):
        server.put(made)
    server.put(
        {
            "apiVersion": "v1", "kind": "Pod", "status": {"phase": "Running"}, "spec": {"nodeName": "cpu-1"},
            "metadata": {
                "name": "nodeagent-controller-x", "namespace": "nodeagent",
                "labels": {"app.kubernetes.io/name": "nodeagent", "app.kubernetes.io/component": "controller"},
            },
        }
    )  # fmt: skip

    def admit(user: str, verb: str, resource: str, old: Any, new: Any) -> str | None:
        group = (new or old)["apiVersion"].rpartition("/")[0]
        may = frozenset({("create", "nodeagent.io", "maintenance")} if "nodeagent-operate" in roles else ())
        meta = (new or old)["metadata"]
        operation = {"create": "CREATE", "update": "UPDATE", "delete": "DELETE"}[verb]
        asked = Request(
            operation, f"{group}:{resource}", meta["name"], user, {}, new, old, meta.get("namespace", ""), may
        )
        return "; ".join(refusals(manifests, asked)) or None

    server.admit.append(admit)
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server.url, "certificate-authority": str(certificates.ca)}}],
        "users": [{"name": "c", "user": {"token": server.token("ann")}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }  # fmt: skip
    (folder / "config").write_text(json.dumps(config))
    programs = folder / "programs"
    programs.mkdir()
    (programs / "kubectl").write_text(EXEC)
    (programs / "kubectl").chmod(0o755)
    kubectl = which("kubectl")
    assert kubectl is not None
    settings = {
        "PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "KUBECONFIG": str(folder / "config"),
        "KUBECTL": kubectl, "CALLS": str(folder / "calls"), "VENV": sysconfig.get_path("scripts"),
        "TMPDIR": str(folder), **environment,
    }  # fmt: skip

    async def plugin(*words: str, stdin: bytes = b"") -> Done:
        process = await asyncio.create_subprocess_exec(
            str(DAEMONSET / "kubectl-nodeagent"), *words, env=settings, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(stdin), LIMIT_S)
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())

    try:
        yield server, plugin
    finally:
        await server.stop()


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("tmp.*")]


async def test_a_person_who_may_read_and_exec_sees_the_fabric(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, plugin):
        report = server.find("nodelinks", "node-01", "nodeagent")
        assert report is not None
        report["links"][0] |= {"state": "down", "reasons": ["carrier_down"]}
        server.put(report)
        trouble = await plugin("trouble")
        assert trouble.code == 1, trouble
        assert "node-01" in trouble.out
        explain = await plugin("-n", "nodeagent", "explain", "su1-leaf0", "--json")
        assert (explain.code, json.loads(explain.out)["source"]) == (0, "-"), explain
        assert (
            await plugin("topology", "--format", "hostfile", "--nodes", "-", stdin=b"node-11 node-02\n")
        ).out == ("node-02\nnode-11\n")
        plan = await plugin("plan")
        assert (plan.code, "node-10" in plan.out) == (0, True), plan
        cabling = await plugin("cabling", "--csv", "--all")
        assert "elsewhere" not in cabling.out
        assert cabling.out.count("\n") == 1 + 2 * 8, cabling
        users = {seen.user for seen in server.requests}
        assert users == {"ann"}
        assert {seen.verb for seen in server.requests} <= {"get", "list", "watch"}
    assert leftovers(tmp_path) == []


async def test_a_node_without_its_agent_is_seen_by_who_may_list_pods_there(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, plugin):
        for one in server.objects("nodelinks")[1:]:
            server.put(agent_pod(one["metadata"]["name"]))
        crashed = agent_pod("node-01", state=CRASHES)
        crashed["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
        server.put(crashed)
        trouble = await plugin("trouble")
        assert trouble.code == 1, trouble
        assert "node-00: no agent\n  no agent runs there\n" in trouble.out
        assert "node-01: no agent\n  its agent does not run: CrashLoopBackOff\n" in trouble.out
        assert trouble.out.count("no agent\n") == 2, trouble
        explain = await plugin("explain", "node-01")
        assert "It is without an agent: its agent does not run: CrashLoopBackOff." in " ".join(
            explain.out.split()
        ), explain
        server.remove("rolebindings", "nodeagent-view", "nodeagent")
        assert "node-01" not in (await plugin("explain", "node-02")).out


async def test_a_job_is_found_among_the_pods_that_the_person_may_read(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, plugin):
        server.put(of_job("train", node="node-01"))
        refused = await plugin("job", "train")
        assert (refused.code, refused.out) == (2, ""), refused
        assert "orbidden" in refused.err
        server.put(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "pods"},
                "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}],
            }
        )  # fmt: skip
        server.put(binding("pods"))
        found = await plugin("job", "train", "-n", "ml")
        assert "Job ml/train: 1 pod on 1 node" in found.out, found
        assert "--namespace ml" in (tmp_path / "calls").read_text()


async def test_the_agents_of_a_job_are_asked_for_what_its_vfs_carry(tmp_path: Path) -> None:
    """No agent runs behind these pods, so each node is named, and the levels of the reports stay."""
    async with cluster(tmp_path) as (server, plugin):
        server.put(of_job("train", node="node-01"))
        server.put(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "pods"},
                "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}],
            }
        )  # fmt: skip
        server.put(binding("pods"))
        shown = await plugin("job", "train", "--rails")
        assert "set traffic.report" in shown.out, shown
        assert "what its VFs carry is not known of node-01" in shown.err
        calls = (tmp_path / "calls").read_text()
        assert "spec.nodeName=node-01" in calls
        assert leftovers(tmp_path) == []


async def test_files_of_this_machine_reach_the_verb(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (_server, plugin):
        hall = tmp_path / "hall.csv"
        hall.write_text("node,link,switch,port\nnode-01,nic0,su0-leaf0,\nnode-02,nic0,su1-leaf0,\n")
        compared = await plugin("cabling", "--plan", str(hall), "--json")
        (wrong,) = json.loads(compared.out)
        assert (compared.code, wrong["node"], wrong["toSwitch"]) == (1, "node-02", "su1-leaf0"), compared
        fabric = tmp_path / "other.yaml"
        fabric.write_text("apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\nfabric: other\n")
        plan = await plugin("plan", "--json", f"--fabric={fabric}")
        assert json.loads(plan.out)["fabric"] == "other", plan
        missing = await plugin("cabling", "--plan", str(tmp_path / "none.csv"))
        assert (missing.code, "none.csv cannot be read" in missing.err) == (2, True)


async def test_planned_work_is_written_by_the_person_within_the_policy(tmp_path: Path) -> None:
    async with cluster(tmp_path, "nodeagent-operate") as (server, plugin):
        done = await plugin(
            "maintain", "su1-leaf0", "node-01/nic1", "--until", "2h", "--reason", 'new "optics" \\'
        )
        assert done.code == 0, done
        assert "node-01/nic1 is under maintenance until" in done.out
        assert done.out.count("\n") == 5
        for kind, space in (("nodes", None), ("nodelinks", "nodeagent")):
            found = server.find(kind, "node-01", space)
            assert found is not None
            ((entry,), fault) = read_maintenance(found["metadata"]["annotations"][MAINTENANCE_LABEL])
            assert (entry.author, entry.reason, entry.link, fault) == ("ann", 'new "optics" \\', "nic1", "")
        listed = await plugin("maintain", "--json")
        assert {one["node"] for one in json.loads(listed.out)["maintenance"]} == {
            "node-01", "node-10", "node-11", "node-12", "node-13"
        }  # fmt: skip
        ended = await plugin("maintain", "su1-leaf0", "node-01/nic1", "--end")
        assert (ended.code, ended.out.count("no longer under maintenance")) == (0, 5), ended
        assert MAINTENANCE_LABEL not in str(server.find("nodes", "node-01"))
        assert MAINTENANCE_LABEL not in str(server.find("nodelinks", "node-01", "nodeagent"))
        unknown = await plugin("maintain", "node-99", "--until", "1h")
        assert (unknown.code, unknown.out) == (2, ""), unknown
        assert "no node, NODE/nic3 or switch is called so; similar are node-13" in unknown.err


async def test_a_kubelet_that_writes_meanwhile_costs_a_second_try(tmp_path: Path) -> None:
    """And whoever announces other work meanwhile is not overwritten."""
    async with cluster(tmp_path, "nodeagent-operate", BEFORE=str(tmp_path / "before")) as (server, plugin):
        server.put(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "kubelets"},
                "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}],
            }
        )  # fmt: skip
        kubelets = binding("kubelets")
        kubelets["subjects"] = [{"kind": "User", "name": "kubelet"}]
        server.put(kubelets)
        config = (tmp_path / "config").read_text().replace(server.token("ann"), server.token("kubelet"))
        (tmp_path / "kubelet").write_text(config)
        before = tmp_path / "before"
        before.mkdir()
        (before / "node-01").write_text("label node node-01 touched=yes")
        (before / "node-02").write_text(f"annotate node node-02 {MAINTENANCE_LABEL}=[]")
        done = await plugin("maintain", "node-01", "node-02", "--until", "1h")
        assert done.code == 1, done
        assert done.out.startswith("node-01 is under maintenance until")
        assert "node-02: somebody else has changed its planned work" in done.err
        assert "node-02 is under" not in done.out


async def test_without_the_right_nothing_is_written_and_the_right_is_named(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, plugin):
        done = await plugin("maintain", "node-01", "--until", "1h")
        assert (done.code, done.out) == (1, ""), done
        assert "node-01: " in done.err
        assert "orbidden" in done.err
        assert MAINTENANCE_LABEL not in str(server.find("nodes", "node-01"))


async def test_without_the_right_to_exec_the_remedy_is_said(tmp_path: Path) -> None:
    async with cluster(tmp_path, MAY_NOT_EXEC="1") as (_server, plugin):
        done = await plugin("trouble")
        assert (done.code, done.out) == (2, "")
        assert "pods/exec in the namespace nodeagent" in done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("trouble", "--from", "x.yaml"), "--from is an option of a nodeagent on this machine"),
        (("plan", "--current"), "--current needs a value"),
        (("trouble", "--watch=soon"), "--watch soon: write 5s"),
        (("trouble", "--watch", "0"), "--watch 0: write 5s"),
        (("explain", "node-99"), "node-99"),
        (("-n", "other", "trouble"), "nodeagent does not run in the namespace other"),
    ],
)
async def test_a_wrong_word_is_answered_with_its_remedy(
    words: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    async with cluster(tmp_path) as (_server, plugin):
        done = await plugin(*words)
        assert (done.code, done.out) == (2, ""), done
        assert says in done.err or "orbidden" in done.err, done


async def test_the_help_of_a_verb_reads_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, plugin):
        shown = await plugin("trouble", "--help")
        assert (shown.code, "usage: nodeagent trouble" in shown.out) == (0, True), shown
        assert {seen.resource for seen in server.requests if seen.verb == "list"} <= {"pods"}


async def test_history_without_a_node_is_that_of_the_controller(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (_server, plugin):
        done = await plugin("history", "su0-leaf0", "--since", "2h")
        assert done.code == 2
        (call,) = [line for line in (tmp_path / "calls").read_text().splitlines() if " exec " in line]
        assert call.endswith("nodeagent history su0-leaf0 --since 2h --agent :9809")
        assert "nodeagent-controller-x --container controller" in call
