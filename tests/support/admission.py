"""A small admission chain: ValidatingAdmissionPolicies evaluated as the API server does, by a CEL library.

What is left out is said: no paramKind, no namespaceSelector, no type check against the kind's schema. An expression
that fails to evaluate refuses, for all our policies say ``failurePolicy: Fail``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.needs import need

FAULTS = (KeyError, ValueError, RuntimeError, TypeError)
"""What the library raises for an expression that has no value."""
NODE = "authentication.kubernetes.io/node-name"
UID = "authentication.kubernetes.io/node-uid"


@dataclass(frozen=True)
class Request:
    """Who wants what. ``resource`` is ``group/resource`` or ``resource``, with ``/status`` where it is that."""

    operation: str
    resource: str
    name: str
    user: str
    extra: dict[str, list[str]] = field(default_factory=dict)
    object: dict[str, Any] | None = None
    old: dict[str, Any] | None = None
    namespace: str = ""

    @property
    def _facts(self) -> dict[str, Any]:
        user: dict[str, Any] = {"username": self.user, "groups": ["system:serviceaccounts"]}
        if self.extra:
            user["extra"] = self.extra
        return {
            "request": {
                "operation": self.operation,
                "name": self.name,
                "namespace": self.namespace,
                "userInfo": user,
            },
            "object": self.object,
            "oldObject": self.old,
        }


def refusals(manifests: list[dict[str, Any]], request: Request) -> list[str]:
    """The messages of all policies that refuse; none, and the request passes."""
    need("cel")
    policies = {
        one["metadata"]["name"]: one["spec"]
        for one in manifests
        if one["kind"] == "ValidatingAdmissionPolicy"
    }
    found = []
    for one in manifests:
        if one["kind"] == "ValidatingAdmissionPolicyBinding":
            assert "Deny" in one["spec"]["validationActions"]
            policy = policies[one["spec"]["policyName"]]
            if _meant(policy, request):
                found += _judge(policy, request)
    return found


def _meant(policy: dict[str, Any], request: Request) -> bool:
    group, _, resource = request.resource.rpartition(":")
    return any(
        group in rule["apiGroups"]
        and resource in rule["resources"]
        and request.operation in rule["operations"]
        for rule in policy["matchConstraints"]["resourceRules"]
    )


def _judge(policy: dict[str, Any], request: Request) -> list[str]:
    import cel

    assert policy["failurePolicy"] == "Fail"
    facts = request._facts
    if not all(cel.evaluate(one["expression"], facts) for one in policy.get("matchConditions", ())):
        return []
    variables: dict[str, Any] = {}
    for one in policy.get("variables", ()):
        # The API server evaluates them when they are used: one that fails matters only then.
        try:
            variables[one["name"]] = cel.evaluate(one["expression"], facts | {"variables": dict(variables)})
        except FAULTS:
            continue
    found = []
    for one in policy["validations"]:
        scope = facts | {"variables": variables}
        try:
            good = cel.evaluate(one["expression"], scope)
        except FAULTS as error:
            good = error
        if good is not True:
            say = one.get("messageExpression")
            found.append(cel.evaluate(say, scope) if say else one["message"])
    return found
