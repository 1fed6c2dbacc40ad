"""Compare the tree of a file with a settings struct: the values that fit, and an error for each that does not.

msgspec stops at its first error and reports no lines. This module walks the tree by msgspec's own type information.
The type of a setting decides how a plain scalar is read: a text is taken as written, so that it needs no quotes; a
number is plain decimal; a boolean is one of YAML 1.1's words. A quoted scalar is text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import inspect

from nodeagent.config.file_errors import FileErrors, Path, did_you_mean, quote
from nodeagent.config.foreign_files import other_program
from nodeagent.config.setting import Settings
from nodeagent.config.yaml_tree import YamlEntry, YamlNode, empty_file, locate

NULLS = ("", "~", "null", "Null", "NULL")
NO_VALUE = "has no value; give one, or remove the key"
_TRUE = re.compile("true|yes|on", re.IGNORECASE)
_FALSE = re.compile("false|no|off", re.IGNORECASE)
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_SCIENTIFIC = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?")
_DIGITS_MAX = 15  # any more are not exact in JSON, and no setting is so large

_EXACT_DIGITS_MAX = 18  # of a whole number in 64 bits


class _Invalid:
    """Stands for a value that does not fit its setting."""


INVALID: Final = _Invalid()


@functools.cache
def struct_type(settings: type[Settings]) -> inspect.StructType:
    """msgspec's information on a struct: its fields, types and bounds."""
    type_ = inspect.type_info(settings)
    assert isinstance(type_, inspect.StructType)
    return type_


def bare(type_: inspect.Type) -> tuple[inspect.Type, Mapping[str, Any]]:
    """A type without its metadata, and the ``extra`` of the metadata."""
    extra: dict[str, Any] = {}
    while isinstance(type_, inspect.Metadata):
        extra = {**(type_.extra or {}), **extra}
        type_ = type_.type
    return type_, extra


def choices(type_: inspect.UnionType) -> tuple[list[inspect.Type], bool]:
    """The types of a union without null, and whether null is one of them."""
    kept = [member for member in type_.types if not isinstance(member, inspect.NoneType)]
    return kept, len(kept) < len(type_.types)


def fit(root: YamlNode, errors: FileErrors, settings: type[Settings]) -> dict[str, Any]:
    """The builtins from which msgspec makes ``settings``.

    A value that does not fit becomes an error and is left out. A list keeps the places of its mappings: an invalid
    mapping is ``INVALID``.
    """
    if not isinstance(root.value, dict):
        message = f"the file must hold a mapping (keys with a colon), not {_named(root)}"
        if isinstance(root.value, str) and not root.quoted and root.value in NULLS:
            message = empty_file(settings.when_empty)
        errors.add((), root.at, message)
        return {}
    kind = entry.node.value if (entry := root.value.get("kind")) is not None else None
    if (what := other_program(root.value.keys(), kind)) is not None:
        errors.halt(root.at, f"this is {what}")
    built = _Validator(errors).struct(root, struct_type(settings), ())
    return built if isinstance(built, dict) else {}


class _Validator:
    def __init__(self, errors: FileErrors) -> None:
        self._errors = errors

    def value(self, node: YamlNode, type_: inspect.Type, path: Path) -> Any:
        type_, extra = bare(type_)
        if isinstance(type_, inspect.UnionType):
            kept, null = choices(type_)
            if _is_null(node) and null:
                return None
            if len(kept) > 1:
                return self._tagged(node, kept, path)
            type_, inner = bare(kept[0])
            extra = {**inner, **extra}
        if isinstance(type_, inspect.StructType):
            return self.struct(node, type_, path)
        if isinstance(type_, inspect.VarTupleType):
            return self._list(node, type_, path)
        if isinstance(type_, inspect.DictType):
            return self._free(node, extra, path)
        complaint = None
        read: Any = INVALID
        if _is_null(node):
            complaint = NO_VALUE
        elif not isinstance(node.value, str):
            complaint = f"must be {_wanted(type_)}, is {_named(node)}"
        else:
            read, complaint = _scalar(node.value, node.quoted, type_, extra)
        if complaint is None:
            return read
        self._errors.add(path, node.at, complaint)
        return INVALID

    def struct(self, node: YamlNode, type_: inspect.StructType, path: Path) -> Any:
        if not isinstance(node.value, dict):
            self._refuse(node, "a mapping", path)
            return INVALID
        known = {field.encode_name: field for field in type_.fields}
        built: dict[str, Any] = {}
        whole = True
        if type_.tag_field is not None:
            built[type_.tag_field] = type_.tag
        for key, entry in node.value.items():
            if key == type_.tag_field:
                continue
            if (field := known.get(key)) is None:
                self._unknown(type_, (*path, key), entry)
                continue
            value = self.value(entry.node, field.type, (*path, key))
            if value is not INVALID:
                built[key] = value
            else:
                whole = whole and not field.required
        for key, field in known.items():
            bare_type, extra = bare(field.type)
            if key not in node.value and (field.required or extra.get("required")):
                wanted = extra.get("missing") or f"must be {_wanted(bare_type)}"
                self._errors.add((*path, key), locate(node, ()), f"is missing; it {wanted}")
                whole = whole and not field.required
        return built if whole else INVALID

    def _unknown(self, type_: inspect.StructType, path: Path, entry: YamlEntry) -> None:
        names = [field.encode_name for field in type_.fields]
        names += [type_.tag_field] if type_.tag_field else []
        key = str(path[-1])
        place = type_.cls.misplaced.get(key) if issubclass(type_.cls, Settings) else None
        hint = f"; {place}" if place else did_you_mean(key, names)
        hint = hint or f"; known here: {', '.join(names)}"
        self._errors.add(path, entry.at, f"unknown key{hint}")

    def _tagged(self, node: YamlNode, kept: Iterable[inspect.Type], path: Path) -> Any:
        structs = {member.tag: member for member in kept if isinstance(member, inspect.StructType)}
        tag_field = next(iter(structs.values())).tag_field or ""
        names = [str(tag) for tag in structs]
        if not isinstance(node.value, dict):
            self._refuse(node, "a mapping", path)
            return INVALID
        if (entry := node.value.get(tag_field)) is None:
            message = f"is missing; it must be {_one_of(names)}"
            self._errors.add((*path, tag_field), node.at, message)
            return INVALID
        tag = entry.node.value
        if not isinstance(tag, str) or tag not in structs:
            value = quote(tag) if isinstance(tag, str) else _named(entry.node)
            hint = did_you_mean(tag, names) if isinstance(tag, str) else ""
            message = NO_VALUE if _is_null(entry.node) else _choice_complaint(value, names, hint)
            self._errors.add((*path, tag_field), entry.node.at, message)
            return INVALID
        return self.struct(node, structs[tag], path)

    def _list(self, node: YamlNode, type_: inspect.VarTupleType, path: Path) -> Any:
        item_type = type_.item_type
        entries = isinstance(bare(item_type)[0], inspect.StructType | inspect.UnionType)
        if not isinstance(node.value, tuple):
            self._refuse(node, "a list", path, scalars=not entries)
            return INVALID
        least, most = type_.min_length or 0, type_.max_length or len(node.value)
        if not least <= len(node.value) <= most:
            wanted = (
                f"at most {most} are allowed" if least <= len(node.value) else f"at least {least} are needed"
            )
            self._errors.add(path, node.at, f"holds {len(node.value)} values, {wanted}")
            return INVALID
        items = [self.value(item, item_type, (*path, i)) for i, item in enumerate(node.value)]
        if entries:
            return items
        first: dict[Any, int] = {}
        for i, item in enumerate(items):
            at = node.value[i]
            if item is not INVALID and (before := first.setdefault(item, i)) != i:
                message = (
                    f"{quote(str(item))} is in the list already, in {node.value[before].at.seen_from(at.at)}"
                )
                self._errors.add((*path, i), at.at, message)
        return [item for item in items if item is not INVALID]

    def _free(self, node: YamlNode, extra: Mapping[str, Any], path: Path) -> Any:
        """A mapping with the keys of another program."""
        if not isinstance(node.value, dict):
            self._refuse(node, "a mapping", path)
            return INVALID
        read = _plain(node)
        if (complaint := extra["check"](read)) is not None:
            self._errors.add(path, node.at, str(complaint))
            return INVALID
        return read

    def _refuse(self, node: YamlNode, wanted: str, path: Path, *, scalars: bool = False) -> None:
        message = f"must be {wanted}, is {_named(node)}"
        if _is_null(node):
            message = NO_VALUE
        elif scalars and isinstance(node.value, str):
            message += f"; did you mean [{quote(node.value)}]?"
        self._errors.add(path, node.at, message)


def _plain(node: YamlNode) -> Any:
    """A value of which no setting says what it means: a plain scalar is what it is in JSON, or else a text."""
    if isinstance(node.value, dict):
        return {key: _plain(entry.node) for key, entry in node.value.items()}
    if isinstance(node.value, tuple):
        return [_plain(item) for item in node.value]
    text = node.value
    if _is_null(node):
        return None
    if node.quoted or len(text) > _EXACT_DIGITS_MAX:
        return text
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


def _scalar(text: str, quoted: bool, type_: inspect.Type, extra: Mapping[str, Any]) -> tuple[Any, str | None]:
    """The value, or the complaint."""
    if isinstance(type_, inspect.StrType):
        return text, _text_complaint(text, type_, extra)
    if isinstance(type_, inspect.LiteralType):
        names = [str(value) for value in type_.values]
        if text in names:
            return text, None
        return INVALID, _choice_complaint(quote(text), names, did_you_mean(text, names))
    wanted = _wanted(type_)
    if quoted:
        hint = "; remove the quotes" if _unquoted_fits(text, type_) else ""
        return INVALID, f"must be {wanted}, is the text {quote(text)}{hint}"
    if isinstance(type_, inspect.BoolType):
        if _TRUE.fullmatch(text):
            return True, None
        return (False, None) if _FALSE.fullmatch(text) else (INVALID, f"must be {wanted}, is {quote(text)}")
    if isinstance(type_, inspect.IntType | inspect.FloatType):
        whole = isinstance(type_, inspect.IntType)
        fits = _INTEGER if whole else _SCIENTIFIC if extra.get("exponent") else _DECIMAL
        if not fits.fullmatch(text):
            return INVALID, f"must be {wanted}, is {quote(text)}{_number_hint(text, whole)}"
        if len(text) > _DIGITS_MAX:
            return INVALID, f"{quote(text)} has more than {_DIGITS_MAX} digits"
        number = int(text) if whole else float(text)
        return number, _bound_complaint(number, text, type_)
    raise TypeError(f"a setting of type {type_} is not supported")


def _choice_complaint(value: str, names: Sequence[str], hint: str) -> str:
    # A single allowed value needs no hint.
    return f"is {value}, must be {_one_of(names)}{hint if len(names) > 1 else ''}"


def _one_of(names: Sequence[str]) -> str:
    return f"one of {', '.join(names)}" if len(names) > 1 else names[0]


def _text_complaint(text: str, type_: inspect.StrType, extra: Mapping[str, Any]) -> str | None:
    if type_.max_length is not None and len(text) > type_.max_length:
        return f"is {len(text)} characters long, at most {type_.max_length} are allowed"
    check, mend = extra["check"], extra["mend"]
    if check is not None and (complaint := check(text)) is not None:
        return str(complaint)
    pattern = re.compile(type_.pattern or "")
    if _matches(pattern, text):
        return None
    better = [
        spelling
        for spelling in (mend(text) if mend is not None else ())
        if _matches(pattern, spelling) and (check is None or check(spelling) is None)
    ]
    hint = f"; did you mean {better[0]}?" if better else ""
    return f"{quote(text)} is not {extra['meaning']}{hint}"


def _matches(pattern: re.Pattern[str], text: str) -> bool:
    # Not match(): Python's $ matches before a final newline, the schema's $ does not.
    return pattern.fullmatch(text) is not None


def _bound_complaint(number: float, text: str, type_: inspect.IntType | inspect.FloatType) -> str | None:
    if type_.ge is not None and number < type_.ge:
        return f"must be at least {type_.ge}, is {text}"
    if type_.gt is not None and number <= type_.gt:
        return f"must be more than {type_.gt}, is {text}"
    if type_.le is not None and number > type_.le:
        return f"must be at most {type_.le}, is {text}"
    return None


def _unquoted_fits(text: str, type_: inspect.Type) -> bool:
    if isinstance(type_, inspect.BoolType):
        return bool(_TRUE.fullmatch(text) or _FALSE.fullmatch(text))
    return bool((_INTEGER if isinstance(type_, inspect.IntType) else _DECIMAL).fullmatch(text))


def _number_hint(text: str, whole: bool) -> str:
    """A hint with the plain decimal digits of a number in another notation."""
    plain = text.replace("_", "")
    if len(plain) > _DIGITS_MAX:
        return ""
    if re.fullmatch(r"0[0-7]+", plain):
        return f"; some YAML readers take it as octal: write {int(plain, 8)} or {int(plain)}"
    for pattern, base in ((r"0x[0-9a-fA-F]+", 16), (r"0o[0-7]+", 8), (r"0b[01]+", 2)):
        if re.fullmatch(pattern, plain):
            return f"; did you mean {int(plain, base)}?"
    if re.fullmatch(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9])?", plain):
        number = float(plain)
        if number.is_integer() or not whole:
            return f"; did you mean {number:.15g}?"
    return ""


def _wanted(type_: inspect.Type) -> str:
    if isinstance(type_, inspect.UnionType):
        type_ = bare(choices(type_)[0][0])[0]
    match type_:
        case inspect.IntType():
            return "a whole number"
        case inspect.FloatType():
            return "a number"
        case inspect.BoolType():
            return "true or false"
        case inspect.VarTupleType():
            return "a list"
        case inspect.StructType() | inspect.DictType():
            return "a mapping"
        case inspect.LiteralType(values=values):
            return _one_of([str(value) for value in values])
        case _:
            return "a text"


def _named(node: YamlNode) -> str:
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, tuple):
        return "a list"
    return f"the text {quote(node.value)}"


def _is_null(node: YamlNode) -> bool:
    return isinstance(node.value, str) and not node.quoted and node.value in NULLS
