"""Print what a reader of the program has to hold, beside its size: names that mean several things, import circles,
questions on the kind of a device outside its room, and the modules that each daemon loads.

The tests of the architecture hold the first three; the fourth shows what a change costs the daemons.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

DAEMONS = ("nodeagent.agent", "nodeagent.controller")
KINDS = "nodeagent.kinds"
KIND = "DeviceKind"
"""The base class of the kinds of devices. Their entries in the configuration have ``tag_field="kind"``."""
KIND_OF_CLAIMS = "DraDevice"
"""The base class of the devices of claims."""
PACKAGE = Path(__file__).parents[1] / "nodeagent"


def trees(package: Path = PACKAGE) -> dict[str, ast.Module]:
    """Each module by its name, without generated ones."""
    return {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
            path.read_text(encoding="utf-8")
        )
        for path in sorted(package.rglob("*.py"))
        if not path.stem.endswith(("_pb2", "_pb2_grpc"))
    }


def imports(modules: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """The imports of each module among these: at its top, in functions, and for types alone."""
    return {name: set(_imports(name, tree, modules.keys())) for name, tree in modules.items()}


def _imports(name: str, tree: ast.Module, known: Collection[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = {one.name: f"{node.module}.{one.name}" for one in node.names}
            found = {part if part in known else node.module for part in parts.values()}
        else:
            continue
        yield from (found & set(known)) - {name}


def circles(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The groups of modules that import each other, directly or through others of the group (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_nodes: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        open_nodes.append(node)
        for other in sorted(graph[node]):
            if other not in number:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in open_nodes:
                lowest[node] = min(lowest[node], number[other])
        if lowest[node] == number[node]:
            at = open_nodes.index(node)
            group = open_nodes[at:]
            del open_nodes[at:]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return found


def public_names(tree: ast.Module) -> Iterator[str]:
    """The names that a module defines for others: functions, classes, constants and types at its top, without its log
    and its type variables."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign) and not ast.unparse(node.value).startswith("TypeVar("):
            names = [one.id for target in node.targets for one in _bound(target)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        else:
            continue
        yield from (name for name in names if not name.startswith("_") and name != "log")


def _bound(target: ast.expr) -> Iterator[ast.Name]:
    """The names of ``A = 1`` and of ``A, B = 1, 2``."""
    return (one for one in ast.walk(target) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))


def repeated_names(modules: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """The public names that several modules define, with these modules."""
    places: dict[str, list[str]] = defaultdict(list)
    for module, tree in modules.items():
        for name in set(public_names(tree)):
            places[name].append(module)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def kind_names(modules: Mapping[str, ast.Module]) -> set[str]:
    """The classes that are one kind each: kinds, their entries in the configuration, and the devices of claims."""
    bases: dict[str, set[str]] = {}
    kinds = {KIND, KIND_OF_CLAIMS}
    for node in (node for tree in modules.values() for node in tree.body):
        if isinstance(node, ast.ClassDef):
            bases.setdefault(node.name, set()).update(_last_names(node.bases))
            tags = {ast.unparse(word.value) for word in node.keywords if word.arg == "tag_field"}
            kinds |= {node.name} if "'kind'" in tags else set()
    while more := {name for name, above in bases.items() if above & kinds} - kinds:
        kinds |= more
    return kinds


def questions_on_kinds(modules: Mapping[str, ast.Module]) -> dict[str, int]:
    """The number of ``isinstance`` on a kind of devices, for each module outside the room of kinds."""
    kinds = kind_names(modules)
    counts: dict[str, int] = {}
    for name, tree in modules.items():
        asked = sum(
            _last_names([node.func]) == {"isinstance"} and bool(_last_names(ast.walk(node.args[1])) & kinds)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
        )
        if asked and not name.startswith(KINDS):
            counts[name] = asked
    return counts


def _last_names(nodes: Iterable[ast.AST]) -> set[str]:
    """``Name`` of ``Name`` and of ``module.Name``."""
    return {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in nodes
        if isinstance(node, ast.Name | ast.Attribute)
    }


def loaded(root: str, graph: Mapping[str, Collection[str]]) -> set[str]:
    """The modules that a module may load, with those that it loads late."""
    found: set[str] = set()
    due = [root]
    while due:
        if (name := due.pop()) not in found:
            found.add(name)
            due += graph[name]
    return found


def main() -> None:
    modules = trees()
    graph = imports(modules)
    names = {name for tree in modules.values() for name in public_names(tree)}
    repeated = repeated_names(modules)
    kinds = questions_on_kinds(modules)
    print(f"public names defined more than once: {len(repeated)} of {len(names)}")
    for name, places in sorted(repeated.items(), key=lambda entry: -len(entry[1])):
        print(f"  {len(places):>3} {name}: {', '.join(places)}")
    print(f"import circles: {len(circles(graph))}")
    for circle in circles(graph):
        print("  " + ", ".join(circle))
    print(f"isinstance on a kind outside {KINDS}: {sum(kinds.values())} in {len(kinds)} modules")
    for name, count in sorted(kinds.items(), key=lambda entry: -entry[1]):
        print(f"  {count:>3} {name}")
    for daemon in DAEMONS:
        print(f"modules that {daemon} may load: {len(loaded(daemon, graph))}")


if __name__ == "__main__":
    main()
