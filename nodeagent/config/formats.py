"""The formats of texts in settings files: PCI addresses, globs, index ranges, resource names.

Each format is a ``msgspec.Meta``. Its pattern also stands in the JSON schema, so it uses only what ECMA 262 and
Python's ``re`` have in common. Where a pattern is not enough, ``check`` returns a complaint or ``None``. ``mend``
returns other spellings of a refused text, to be suggested.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from nodeagent.config.file_errors import did_you_mean, quote

Check = Callable[[str], str | None]
Mend = Callable[[str], Iterable[str]]

_NAME_MAX = 63
"""Characters in the name part of a resource (a Kubernetes qualified name)."""
PREFIX_MAX = 253 - len("requests.")
"""For quotas the API server puts ``requests.`` before the name; the result must fit too."""
VF_INDEX_MAX = 65535
"""TotalVFs is a 16-bit register of the SR-IOV capability."""

_PCI = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"
_GLOB_OF_HEX = r"[0-9a-f:.*?!\[\]-]*[*?\[][0-9a-f:.*?!\[\]-]*"
_RANGE = "(0|[1-9][0-9]{0,5})(-(0|[1-9][0-9]{0,5}))?"
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_NAME_MEANING = "a resource's name: letters, digits, -, _ and ., a letter or digit first and last"
_FIELD = re.compile(r"\{([^{}]*)\}")
VF_FIELDS = {"rail": 3, "netdev": 15}
"""The fields in the names of resources of VFs, and the longest text of each. A netdev has IFNAMSIZ characters less the
terminating zero."""
GPU_FIELDS = {"gpu": 3}
"""The same for resources of GPU memory."""
MIG_FIELDS = {"profile": 24}
"""The same for resources of MIG devices: ``1c.3g.40gb.me.all``, and some room for later words."""


def form(
    pattern: str,
    meaning: str,
    *,
    at_most: int = 253,
    check: Check | None = None,
    mend: Mend | None = None,
    digits: bool = False,
) -> msgspec.Meta:
    """Declare a format. ``meaning`` completes "is not ...". ``digits``: the JSON schema also takes a number.

    The length (in characters) is checked first, then ``check``, then the pattern.
    """
    return msgspec.Meta(
        pattern=f"^({pattern})$",
        max_length=at_most,
        extra={"meaning": meaning, "check": check, "mend": mend},
        extra_json_schema={"x-digits": True} if digits else None,
    )


def free_mapping(check: Callable[[Mapping[str, Any]], str | None]) -> msgspec.Meta:
    """Declare a mapping whose keys are those of another program: the values of its plain scalars are read as in JSON.
    ``check`` returns a complaint or ``None``."""
    return msgspec.Meta(extra={"check": check})


def index_range(text: str) -> range:
    """``"3"`` and ``"0-3"`` → the indexes, the last one included. Raises ``ValueError``."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def host_port(text: str) -> tuple[str, int]:
    """``":9808"``, ``"10.0.0.1:9808"``, ``"[::1]:9808"`` → host and port. Raises ``ValueError``.

    The host is without brackets, and empty for all addresses.
    """
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%a-z]+)\]|([^\s:\[\]/]*)):([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise ValueError(f"{quote(text)} is not an address such as :9808, 127.0.0.1:9808 or [::1]:9808")
    return match[1] or match[2] or "", int(match[3])


def prefix_complaint(prefix: str) -> str | None:
    """The reason why a prefix is refused for extended resources, or ``None``."""
    if prefix.endswith("kubernetes.io"):
        return f"{quote(prefix)} is reserved: the API server refuses extended resources below it"
    if prefix.startswith("requests."):
        return f"{quote(prefix)} begins with requests., which Kubernetes reserves for quotas"
    if len(prefix) > PREFIX_MAX:
        return f"is {len(prefix)} characters long, at most {PREFIX_MAX} are allowed"
    if not re.fullmatch(_SUBDOMAIN, prefix):
        low = re.sub(r"[\s_]+", "-", prefix.lower())
        hint = f"; did you mean {low}?" if re.fullmatch(_SUBDOMAIN, low) else ""
        return f"{quote(prefix)} is not a DNS subdomain such as nvidia-dgx-h100 or example.com{hint}"
    return None


def name_complaint(name: str) -> str | None:
    """The reason why a text is refused as the name part of an extended resource, or ``None``."""
    if len(name) > _NAME_MAX:
        return f"is {len(name)} characters long, at most {_NAME_MAX} are allowed"
    if re.fullmatch(_NAME, name):
        return None
    hint = "; the prefix is set by resourcePrefix" if "/" in name else ""
    return f"{quote(name)} is not {_NAME_MEANING}{hint}"


def _template_complaint(template: str, longest: Mapping[str, int]) -> str | None:
    """``longest`` is the length of the longest text of each field."""
    known = [f"{{{field}}}" for field in longest]
    fields = f"the fields {' and '.join(known)}" if len(known) > 1 else f"the field {known[0]}"
    for field in _FIELD.findall(template):
        if field not in longest:
            hint = did_you_mean(field, tuple(longest))
            what = fields.replace("fields", "fields are").replace("field {", "field is {")
            return f"{quote('{' + field + '}')} is not a field; {what}{hint}"
    if re.search(r"[{}]", _FIELD.sub("", template)):
        return f"{quote(template)} has an unmatched brace"
    # The longest possible name, in a character that every name may contain.
    length = len(_FIELD.sub(lambda match: "0" * longest[match[1]], template))
    if length > _NAME_MAX:
        return f"can become {length} characters long, at most {_NAME_MAX} are allowed"
    if name_complaint(_FIELD.sub("0", template)) is None:
        return None
    hint = "; the prefix is set by resourcePrefix" if "/" in template else ""
    return f"{quote(template)} is not {_NAME_MEANING}, and {fields}{hint}"


def _template(longest: Mapping[str, int]) -> msgspec.Meta:
    """Declare the format of a resource's name with fields."""
    part = rf"([A-Za-z0-9]|\{{({'|'.join(longest)})\}})"
    return form(
        rf"{part}(({part}|[-_.])*{part})?",
        _NAME_MEANING,
        at_most=_NAME_MAX,
        check=lambda template: _template_complaint(template, longest),
    )


def _range_complaint(text: str) -> str | None:
    if not re.fullmatch(_RANGE, text):
        return None
    indexes = index_range(text)
    if not indexes:
        first, _, last = text.partition("-")
        return f"{quote(text)} is in descending order; did you mean {last}-{first}?"
    if indexes[-1] > VF_INDEX_MAX:
        return f"{quote(text)} is above {VF_INDEX_MAX}, the highest possible index"
    return None


def _netdev_complaint(text: str) -> str | None:
    """sriov-network-device-plugin names VFs behind the PF's name (``ens1f0#0-3,7``)."""
    netdev, sign, indexes = text.partition("#")
    if not sign or not re.fullmatch(rf"{_RANGE}(,{_RANGE})*", indexes):
        return None
    ranges = ", ".join(quote(part) for part in indexes.split(","))
    return f"{quote(text)} names VFs: write {netdev}, and vfIndexes: [{ranges}]"


def _listen_complaint(text: str) -> str | None:
    try:
        host_port(text)
    except ValueError as error:
        if not text:
            return f"{error}; null turns the web server off"
        if text.isdigit() and not _listen_complaint(f":{text}"):
            return f"{error}; did you mean :{text}?"
        return f"{error}; the highest port is 65535" if re.search("[0-9]{5}$", text) else str(error)
    return None


def _mend_hex(text: str) -> Iterable[str]:
    return (text.lower(), text.lower().removeprefix("0x"))


def _mend_pci(text: str) -> Iterable[str]:
    low = text.strip().lower()
    # NVML prints the domain with eight digits, lspci omits domain 0.
    return (low, "0000:" + low, re.sub(r"^0000([0-9a-f]{4}:)", r"\1", low))


def _mend_range(text: str) -> Iterable[str]:
    return (re.sub(r"\s*(-|\.\.|:|to)\s*", "-", text.strip()),)


HEX4 = form("[0-9a-f]{4}", "four hex digits in lower case, such as 15b3", mend=_mend_hex, digits=True)
PCI_ADDRESS = form(
    f"{_PCI}|{_GLOB_OF_HEX}",
    "a PCI address in the long form, such as 0000:1a:00.0, or a glob such as 0000:1a:*",
    mend=_mend_pci,
)
GLOB = form(r"[^\s/]+", "a name or a glob without spaces and slashes")
NETDEV_GLOB = form(
    r"[^\s/]+", "a netdev's name or a glob without spaces and slashes", check=_netdev_complaint
)
SYSTEM_NAME = form(r"\S|\S.*\S", "a system name")
MODEL = form(r"\S|\S.*\S", "a product name or a glob, such as *H100*")
UUID = form(
    r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "a GPU's UUID as `nvidia-smi -L` prints it, such as GPU-5c8e1a50-0d1f-4c43-a3d6-1f2e3d4c5b6a",
    mend=lambda text: ("GPU-" + text.lower(), "GPU-" + text.lower()[4:]),
)
INDEX_RANGE = form(
    _RANGE,
    'an index or a range of them, such as "7" or "0-3"',
    check=_range_complaint,
    mend=_mend_range,
    digits=True,
)
DRIVER_NAME = form(r"[A-Za-z0-9_-]+", "a kernel driver's name, such as vfio-pci")
ABSOLUTE_PATH = form(r"/[^\x00-\x1f]*", "an absolute path", at_most=4095)
ARGUMENT = form(r"[^\x00]+", "an argument of a command", at_most=4095)
PREFIX = form(_SUBDOMAIN, "a DNS subdomain", at_most=PREFIX_MAX, check=prefix_complaint)
NAME = form(_NAME, _NAME_MEANING, at_most=_NAME_MAX, check=name_complaint)
VF_TEMPLATE = _template(VF_FIELDS)
GPU_TEMPLATE = _template(GPU_FIELDS)
MIG_TEMPLATE = form(
    r"([A-Za-z0-9][-A-Za-z0-9_.]*)?\{profile\}([-A-Za-z0-9_.]*[A-Za-z0-9])?",
    f"{_NAME_MEANING}, and the field {{profile}} once",
    at_most=_NAME_MAX,
    check=lambda template: _template_complaint(template, MIG_FIELDS),
)
HOST_NAME = form(
    r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?",
    "a host name without scheme and port, such as fabric.example.com",
    at_most=253,
)
LISTEN = form(
    r"(\[[0-9A-Fa-f:.%a-z]+\]|[^\s:\[\]/]*):[0-9]{1,5}", "an address such as :9808", check=_listen_complaint
)
