"""The namespace of one run: pods on a chosen node that print what they got. All of it is deleted at the end."""

from __future__ import annotations

import secrets
from typing import Any

from tests.cluster_suite.cluster_api import BrokenError, ClusterApi, Object, until
from tests.cluster_suite.installation import Agent, is_true

START_S = 120
END_S = 120


class Workspace:
    def __init__(self, api: ClusterApi, image: str | None) -> None:
        self.api, self._image = api, image
        self.namespace = f"nodeagent-suite-{secrets.token_hex(3)}"
        self._made = False

    def path(self, kind: str, group: str = "/api/v1") -> str:
        """The path of ``kind`` in the namespace, which is made at its first use."""
        if not self._made:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
            self._made = True
            self.api.call("POST", "/api/v1/namespaces", body)
            account = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default"
            until(30, f"the ServiceAccount of {self.namespace}", lambda: self.api.find(account))
        return f"{group}/namespaces/{self.namespace}/{kind}"

    def remove(self) -> None:
        """Delete the namespace, and wait until it is gone."""
        if not self._made:
            return
        path = f"/api/v1/namespaces/{self.namespace}"
        self.api.delete(path)
        until(END_S, f"the end of the namespace {self.namespace}", lambda: self.api.find(path) is None)
        self._made = False

    def pod_spec(self, agent: Agent, limits: dict[str, int] | None = None, **fields: Any) -> Object:
        """A pod of the agent's image, which is on the node already, that prints its environment and waits."""
        here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [agent.node_name]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}
        container: Object = {
            "name": "main",
            "image": self._image or agent.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", "env; exec sleep 3600"],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "resources": {"limits": {name: str(amount) for name, amount in (limits or {}).items()}},
        }
        claims = [{"name": one["name"]} for one in fields.get("resourceClaims", ())]
        if claims:
            container["resources"]["claims"] = claims
        return {
            "affinity": {"nodeAffinity": required},
            # The agents' nodes may be tainted against pods without a GPU.
            "tolerations": [{"operator": "Exists"}],
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            **fields,
        }

    def start(self, name: str, spec: Object) -> str:
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        self.api.call("POST", self.path("pods"), body)
        return name

    def environment(self, name: str) -> dict[str, str]:
        """The variables of the container, once the pod runs."""
        path = f"{self.path('pods')}/{name}"

        def runs() -> bool:
            pod = self.api.get(path)
            status = pod["status"]
            if is_true(pod, "Ready"):
                return True
            waiting = [
                f"{one['state']['waiting'].get('reason', '')} {one['state']['waiting'].get('message', '')}"
                for one in status.get("containerStatuses", ())
                if "waiting" in one["state"]
            ]
            places = [
                one.get("message", "") for one in status.get("conditions", ()) if one["status"] == "False"
            ]
            words = (status.get("reason"), status.get("message"), *waiting, *places)
            raise BrokenError(f"{status.get('phase')} {'; '.join(word for word in words if word)}"[:400])

        until(START_S, f"the pod {name} runs", runs)
        lines = until(10, f"the log of {name}", lambda: self.api.call("GET", f"{path}/log"))
        return dict(line.split("=", 1) for line in str(lines).splitlines() if "=" in line)

    def end(self, *names: str) -> None:
        for name in names:
            self.api.delete(f"{self.path('pods')}/{name}")
        for name in names:
            path = f"{self.path('pods')}/{name}"
            until(END_S, f"the end of the pod {name}", lambda path=path: self.api.find(path) is None)
