"""Evaluate ValidatingAdmissionPolicies like the API server, with a CEL library.

Not supported are paramKind, namespaceSelector and type checks against the kind's schema. An expression that cannot be
evaluated refuses the request, because all our policies have ``failurePolicy: Fail``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.needs import need

FAULTS = (KeyError, ValueError, RuntimeError, TypeError)
"""The exceptions of the library for an expression that cannot be evaluated."""
NODE = "authentication.kubernetes.io/node-name"
UID = "authentication.kubernetes.io/node-uid"


@dataclass(frozen=True)
class Request:
    """A request to the API server. ``resource`` is ``group:resource`` or ``resource``, possibly with ``/status``."""

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
    """The messages of all policies that refuse the request; empty if it passes."""
    need("cel")
    policies = {
        manifest["metadata"]["name"]: manifest["spec"]
        for manifest in manifests
        if manifest["kind"] == "ValidatingAdmissionPolicy"
    }
    messages = []
    for binding in manifests:
        if binding["kind"] == "ValidatingAdmissionPolicyBinding":
            assert "Deny" in binding["spec"]["validationActions"]
            policy = policies[binding["spec"]["policyName"]]
            if _matches(policy, request):
                messages += _evaluate(policy, request)
    return messages


def _matches(policy: dict[str, Any], request: Request) -> bool:
    group, _, resource = request.resource.rpartition(":")
    return any(
        group in rule["apiGroups"]
        and resource in rule["resources"]
        and request.operation in rule["operations"]
        for rule in policy["matchConstraints"]["resourceRules"]
    )


def _evaluate(policy: dict[str, Any], request: Request) -> list[str]:
    import cel

    assert policy["failurePolicy"] == "Fail"
    facts = request._facts
    if not all(
        cel.evaluate(condition["expression"], facts) for condition in policy.get("matchConditions", ())
    ):
        return []
    variables: dict[str, Any] = {}
    for variable in policy.get("variables", ()):
        # The API server evaluates a variable when it is used: a failure matters only then.
        try:
            scope = facts | {"variables": dict(variables)}
            variables[variable["name"]] = cel.evaluate(variable["expression"], scope)
        except FAULTS:
            continue
    messages = []
    for validation in policy["validations"]:
        scope = facts | {"variables": variables}
        try:
            good = cel.evaluate(validation["expression"], scope)
        except FAULTS as error:
            good = error
        if good is not True:
            expression = validation.get("messageExpression")
            messages.append(cel.evaluate(expression, scope) if expression else validation["message"])
    return messages
