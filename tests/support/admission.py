"""Evaluate ValidatingAdmissionPolicies like the API server, with the CEL library of the CEL project.

Not supported are paramKind, namespaceSelector and the conversion of equivalent resources. Of the authorizer the form
``authorizer.group(G).resource(R).check(V).allowed()`` is, by ``Request.may``. An expression that cannot
be evaluated refuses the request, because all our policies have ``failurePolicy: Fail``. ``cel_types`` checks types.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import Any

from tests.support.needs import need

_RIGHT = re.compile(
    r'authorizer\.group\("(?P<group>[^"]*)"\)\.resource\("(?P<resource>[^"]*)"\)\.check\("(?P<verb>[^"]*)"\)\.allowed\(\)'
)
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
    may: frozenset[tuple[str, str, str]] = frozenset()
    """Verb, group and resource of each right of the user that a policy asks for."""

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
            "authorizer": ["/".join(right) for right in sorted(self.may)],
        }


def refusals(manifests: list[dict[str, Any]], request: Request) -> list[str]:
    """The messages of all policies that refuse the request; empty if it passes."""
    need("cel_expr_python")
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
    assert policy["failurePolicy"] == "Fail"
    facts = request._facts
    if not all(_value(condition["expression"], facts) for condition in policy.get("matchConditions", ())):
        return []
    scope = facts | {"variables": _variables(policy, facts)}
    messages = []
    for validation in policy["validations"]:
        if _value(validation["expression"], scope) is not True:
            expression = validation.get("messageExpression")
            message = _value(expression, scope) if expression else None
            messages.append(message if isinstance(message, str) else validation.get("message", expression))
    return messages


def _variables(policy: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Evaluate each variable with those before it.

    The API server evaluates a variable when it is used: a failure matters only then, so that the variable is left out.
    """
    values: dict[str, Any] = {}
    for variable in policy.get("variables", ()):
        value = _value(variable["expression"], facts | {"variables": values})
        if not isinstance(value, CelFault):
            values = values | {variable["name"]: value}
    return values


@dataclass(frozen=True)
class CelFault:
    """The text of an error of an evaluation."""

    why: str


def _value(expression: str, scope: dict[str, Any]) -> Any:
    """The value of the expression, or a ``CelFault``."""
    from cel_expr_python import cel

    value = _compiled(expression).eval(data=scope)
    return CelFault(str(value.value())) if value.type() == cel.Type.ERROR else value.plain_value()


@functools.cache
def _compiled(expression: str) -> Any:
    return _environment().compile(
        _RIGHT.sub(r'("\g<verb>/\g<group>/\g<resource>" in authorizer)', expression)
    )


@functools.cache
def _environment() -> Any:
    """Every variable has the type ``dyn``, as in an evaluation by the API server."""
    from cel_expr_python import cel

    return cel.NewEnv(
        variables=dict.fromkeys(("object", "oldObject", "request", "variables", "authorizer"), cel.Type.DYN)
    )
