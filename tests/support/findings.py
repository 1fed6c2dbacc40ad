"""One test item for all cases of a kind, such as each page or each schema, with every finding in its failure.

An item for each file costs more time in pytest than its check. The first finding must not hide the others.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def one_item(
    names: str, cases: Iterable[Any] | Callable[[], Iterable[Any]], ids: Callable[[Any], object] = str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call the test with each case as its arguments ``names``, and fail with the findings of all.

    It is ``pytest.mark.parametrize`` for checks without a state of their own: the cases share the fixtures. A function
    in place of ``cases`` is called when the test runs, not at each collection. No case is a failure too.
    """
    given = [name.strip() for name in names.split(",")]

    def decorated(check: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(check)

        @functools.wraps(check)
        def test(**fixtures: Any) -> None:
            values = list(cases() if callable(cases) else cases)
            assert values, "no case"
            found = []
            for case in values:
                arguments = zip(given, (case,) if len(given) == 1 else case, strict=True)
                try:
                    check(**fixtures, **dict(arguments))
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - each is a finding
                    found.append(finding(str(ids(case)), error))
            if found:
                pytest.fail(f"{len(found)} of {len(values)} cases:\n" + "\n".join(found), pytrace=False)

        fixtures = [one for name, one in signature.parameters.items() if name not in given]
        test.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return test

    return decorated


def finding(case: str, error: BaseException) -> str:
    """The case, the line of the last call and the text of the error."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = "".join(traceback.format_exception_only(error)).strip()
    return f"{case}: line {last.lineno} of {last.name}: {text}"
