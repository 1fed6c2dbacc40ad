"""The architecture as tests: imports, forbidden constructs, size of functions and classes, linters and typing.

The import contracts are in pyproject.toml (``tool.importlinter``), their floors in docs/design.md.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from hack import house
from hack.ledger import FUNCTION_LINES_MAX, code_lines, definitions, function_lengths, imported
from nodeagent.commands import VERBS, declarations
from nodeagent.kinds import DeviceKind
from tests.support.syntax_trees import no_garbage_collection

ROOT = Path(__file__).parents[2]
ATTRIBUTES_MAX, METHODS_MAX = 15, 25
COMPOSED = "composition of the agent or the controller: to become layers"
OPTIONS = "one statement for each option or part of a verb"
LONG_FUNCTIONS = {
    "hack/lab/nodeagent_lab/demo/__init__.py:add": OPTIONS,
    "nodeagent/fabric/fabric_view.py:fabric_view": "one expression for each field of the document",
    "nodeagent/fabric/reports.py:ReportReader.read": "one check for each field of a report from another machine",
    "nodeagent/kubelet/holdings.py:watch_holdings": "one loop whose state is its local names: to become a class of it",
    "hack/lab/nodeagent_lab/sim/apiserver/read_verbs.py:watch_events": "one sequence of steps that share their local "
    "names: to be split where a step gets a second user",
    "hack/lab/nodeagent_lab/sim/machine/sysfs_files.py:pci": "one statement for each file of a PCI device",
}
"""Functions with more than FUNCTION_LINES_MAX lines of code, and why."""
DOCUMENT = "a struct of fields: one document, table or value, which each reader takes whole"
LIFETIME = "state of one task and of the objects that it owns: to be split into its states"
STAND_IN = "a stand-in with one method for each action of the real part"
LARGE_CLASSES = {
    "nodeagent/agent.py:Agent": COMPOSED,
    "nodeagent/agent_config.py:Config": DOCUMENT,
    "nodeagent/fabric/nodelinks.py:NodeLink": DOCUMENT,
    "nodeagent/fabric/inputs.py:Inputs": "one field for each kind of input",
    "nodeagent/commands/plan/objects.py:Objects": "one field for each kind of object",
    "nodeagent/health/explain.py:DeviceView": DOCUMENT,
    "nodeagent/cluster/node_report.py:NodeReporter": LIFETIME,
    "nodeagent/attach/attachments.py:Attachments": LIFETIME,
    "nodeagent/cluster/slice_publisher.py:SlicePublisher": LIFETIME,
    "hack/lab/nodeagent_lab/sim/machine/hardware_values.py:Hardware": "one field for each reader of a NIC",
    "hack/lab/nodeagent_lab/demo/claim_show.py:ClaimShow": "one method for each step of the demo",
    "hack/lab/nodeagent_lab/demo/control_plane.py:DemoCluster": "one method for each thing that a demo does",
    "nodeagent/controller.py:Controller": COMPOSED,
    "nodeagent/offering/device_offering.py:DeviceOffering": COMPOSED,
    "nodeagent/discovery.py:Discovery": COMPOSED,
    "nodeagent/doctor/cluster_checks.py:ClusterFacts": DOCUMENT,
    "nodeagent/fabric/fabric_view.py:FabricView": DOCUMENT,
    "nodeagent/fabric/reports.py:CompactReport": DOCUMENT,
    "nodeagent/health/gpu.py:GpuState": "the memory of all rules of one GPU, of events, readings and log lines",
    "nodeagent/health/gpu_settings.py:GpuHealthSettings": DOCUMENT,
    "nodeagent/health/nic.py:NicState": "the memory of all rules of one NIC: to be split by kind of rule",
    "nodeagent/health/record.py:NicRecord": "one stored value for each field of the judged NIC",
    "nodeagent/health/nic_view.py:NicView": DOCUMENT,
    "nodeagent/health/rule.py:Rule": DOCUMENT,
    "nodeagent/health/service.py:HealthService": COMPOSED,
    "nodeagent/kube/reflector.py:Reflector": LIFETIME,
    "nodeagent/kubelet/plugin.py:Plugin": "one gRPC service: its server, its streams and what its answers need",
    "nodeagent/lldp/lldpdu.py:Lldpdu": DOCUMENT,
    "nodeagent/metrics/scrape_input.py:ScrapeInput": DOCUMENT,
    "nodeagent/facts/model.py:Function": DOCUMENT,
    "nodeagent/facts/model.py:Gpu": DOCUMENT,
    "nodeagent/facts/model.py:Neighbor": DOCUMENT,
    "nodeagent/facts/model.py:Snapshot": DOCUMENT,
    "nodeagent/host/gpu_driver.py:GpuReading": DOCUMENT,
    "nodeagent/sampling/sampler.py:Sampler": "the tasks of all readers, which share the samples and their states",
    "hack/lab/nodeagent_lab/sim/apiserver/api_server.py:ApiServer": STAND_IN,
    "hack/lab/nodeagent_lab/sim/kubelet/daemon.py:Kubelet": STAND_IN,
    "hack/lab/nodeagent_lab/sim/machine/kernel.py:Kernel": STAND_IN,
    "hack/lab/nodeagent_lab/sim/machine/simulated_machine.py:Machine": STAND_IN,
    "hack/lab/nodeagent_lab/sim/machine/state.py:Device": DOCUMENT,
    "nodeagent/sources/gpu_publisher.py:GpuPublisher": "one method for each kind of news, and the state they share",
    "nodeagent/features/switches/switch_poller.py:SwitchPoller": LIFETIME,
    "nodeagent/web/gpu_statuses.py:GpuStatus": DOCUMENT,
    "nodeagent/web/node_view.py:NodeView": DOCUMENT,
    "nodeagent/web/node_view.py:ViewNic": DOCUMENT,
}
"""Classes with more than ATTRIBUTES_MAX attributes or METHODS_MAX methods, and why. Those with the reason DOCUMENT have
attributes by annotation alone."""
CATCH_ALL = {"nodeagent/base/supervise.py", "nodeagent/cli.py", "nodeagent/base/bounded_calls.py"}
"""Files that may catch every exception: the supervisor, the command line, and threads that pass it to the caller."""
PURE = (
    "facts/model.py",
    "facts/gpu_usage.py",
    "facts/allocation.py",
    "offering/offer.py",
    "agent_config.py",
    "controller_config.py",
    "facts/affinity.py",
    "facts/cdi.py",
    "health/",
    "lldp/",
    "infiniband/",
    "kinds/",
    "config/",
    "fabric/",
    "kubelet/device_list.py",
    "kubelet/registration_state.py",
)
VERB_OF_A_ROOM = "a verb that starts or shows this room or module"
REPEATED = {
    "config": VERB_OF_A_ROOM,
    "controller": VERB_OF_A_ROOM,
    "doctor": VERB_OF_A_ROOM,
    "health": VERB_OF_A_ROOM,
    "history": "the verb, and the last samples of a device in health/",
    "kubelet": "the agent's side of the kubelet's API, and its stand-in in sim/",
}
"""Names of modules that repeat, and why."""
REPEATED_NAMES = {
    *("add", "ADDRESS", "BURST", "DRIVER", "ETHERNET", "FAILED", "FEC", "GPU", "HEALTHY", "INFINIBAND"),
    *("LEAF", "LLDP", "NAME", "PER_S", "RAILS", "STATE", "TEXT_MAX"),
}
"""Public names that several modules define: ``add`` declares a verb; the others are words of a standard or a bound,
each in a table of its own. Names are removed here, never added."""
LATER = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X{3}|HA" + r"CK)\b")

BESIDE = ROOT / "hack/lab/nodeagent_lab"
"""The package that adds verbs."""
SOURCES = sorted(
    path
    for folder in (ROOT / "nodeagent", BESIDE)
    for path in folder.rglob("*.py")
    if "_pb2" not in path.name
)
NO_DAEMON = {module.partition(".")[0] for verb, module in VERBS.items() if verb not in ("run", "controller")}
"""The modules of the verbs that start no daemon."""
ROOMS = {f"nodeagent.{path.name}" for path in (ROOT / "nodeagent").iterdir() if path.is_dir()}
ROOMS -= {"nodeagent.base", "nodeagent.commands", "nodeagent.console"}
OTHERS = sorted({path for folder in ("tests", "hack") for path in (ROOT / folder).rglob("*.py")} - {*SOURCES})

CHECKS = {
    "the import contracts hold": [
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
        "--no-logo",
    ],
    "ruff reports nothing": ["-m", "ruff", "check", "."],
    "every file is formatted": ["-m", "ruff", "format", "--check", "."],
    "mypy is strict and reports nothing": ["-m", "mypy"],
}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", CHECKS.values(), ids=CHECKS)
def test_linters_and_typing_pass(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_programs_of_the_machine_with_vfs_fit_the_product() -> None:
    """That machine alone runs them, which takes many minutes."""
    guest = ROOT / "tests/vm/guest"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--explicit-package-bases", *sorted(guest.glob("*.py"))],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": f"{guest}:{ROOT / 'hack/lab'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@cache
def trees() -> dict[Path, ast.Module]:
    with no_garbage_collection():
        return {path: parsed(path) for path in SOURCES}


def tree(path: Path) -> ast.Module:
    """One of SOURCES. Those of OTHERS are as large again, and are parsed where they are needed."""
    return trees()[path]


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def forgotten_trees() -> Iterator[None]:
    """Two million values: each garbage collection of a later test in this process would stop its loop for seconds."""
    yield
    trees.cache_clear()


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_a_file_begins_with_a_docstring() -> None:
    """A file may be empty. Nothing is parsed: it would take most of the time of this file's tests."""
    begins = re.compile(r'(?:\s|#.*\n)*(?:r?"""|\Z)')
    assert not [name(path) for path in (*SOURCES, *OTHERS) if not begins.match(path.read_text("utf-8"))]


def test_a_function_has_at_most_50_lines_of_code() -> None:
    assert FUNCTION_LINES_MAX == 50
    long = {
        f"{name(path)}:{function}": lines
        for path in SOURCES
        if any(spans(node) > FUNCTION_LINES_MAX for _, node in definitions(tree(path)))
        for function, lines in function_lengths(tree(path), code_lines(path.read_text(), tree(path)))
        if lines > FUNCTION_LINES_MAX
    }
    assert long.keys() == LONG_FUNCTIONS.keys(), (
        f"split it, or enter it in LONG_FUNCTIONS with the reason; remove entries that are short now: {long}"
    )


def spans(node: ast.stmt) -> int:
    """Its lines, of which some are code."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_a_class_has_at_most_15_attributes_and_25_methods() -> None:
    large = {
        f"{name(path)}:{class_name}": (len(fields), len(assigned), len(methods))
        for path in SOURCES
        for class_name, node in definitions(tree(path))
        if isinstance(node, ast.ClassDef)
        for fields, assigned, methods in [members(node)]
        if len(fields | assigned) > ATTRIBUTES_MAX or len(methods) > METHODS_MAX
    }
    assert large.keys() == LARGE_CLASSES.keys(), (
        f"split it, or enter it in LARGE_CLASSES with the reason; remove entries that are small now: {large}"
    )
    documents = {one for one, reason in LARGE_CLASSES.items() if reason is DOCUMENT}
    assert not {one for one in documents if large[one][1] or large[one][2] > METHODS_MAX}


def test_members_are_fields_attributes_that_any_method_assigns_and_methods() -> None:
    source = """
class Port:
    rate: int
    def __init__(self, name):
        self.name, self.count = name, 0
        self.peer: Port | None = None
        self.peer.other = 1
    async def up(this):
        this.count += 1
        with opened() as this.file: ...
    @classmethod
    def made(cls):
        cls.shared = 1
    @staticmethod
    def of(port):
        port.late = 1
"""
    ((_, node),) = [one for one in definitions(ast.parse(source)) if isinstance(one[1], ast.ClassDef)]
    assert isinstance(node, ast.ClassDef)
    assert members(node) == (
        {"rate"},
        {"name", "count", "peer", "file"},
        {"__init__", "up", "made", "of"},
    )


def members(node: ast.ClassDef) -> tuple[set[str], set[str], set[str]]:
    """Annotated fields, attributes that methods assign to their instance, and methods."""
    fields = {
        one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    assigned = {
        one.attr
        for method in methods
        if method.args.args
        and not {"classmethod", "staticmethod"} & {ast.unparse(one) for one in method.decorator_list}
        for one in ast.walk(method)
        if isinstance(one, ast.Attribute)
        and isinstance(one.ctx, ast.Store)
        and isinstance(one.value, ast.Name)
        and one.value.id == method.args.args[0].arg
    }
    return fields, assigned, {method.name for method in methods}


def test_a_class_name_is_unique() -> None:
    modules = defaultdict(set)
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                modules[node.name].add(name(path))
    assert not {class_name: sorted(files) for class_name, files in modules.items() if len(files) > 1}


def test_a_module_name_is_unique() -> None:
    """A package counts too."""
    modules = defaultdict(list)
    for path in SOURCES:
        if path.name != "__main__.py":
            modules[path.parent.name if path.name == "__init__.py" else path.stem].append(name(path))
    repeated = {module: files for module, files in modules.items() if len(files) > 1}
    assert repeated.keys() == REPEATED.keys(), repeated
    assert all(len(files) == 2 for files in repeated.values()), repeated


def test_a_stand_in_says_which_real_thing_it_was_compared_with() -> None:
    """The first lines of a stand-in for another program name the program and its version, or say that it met none."""
    files = [
        one
        for folder in ("hack", "tests")
        for one in (ROOT / folder).rglob("*")
        if one.suffix in (".py", ".c", "")
    ]
    texts = {one: one.read_bytes().decode(errors="replace") for one in files if one.is_file()}
    found = {
        one: text[:3000]
        for one, text in texts.items()
        if re.match(r'(#!.*\n)?("""|/\* )A stand-in for', text)
    }
    assert len(found) >= 8
    assert not [one for one, text in found.items() if not re.search("[Cc]ompared|[Hh]eld against", text)]


def test_no_file_holds_a_todo() -> None:
    written = [*SOURCES, *OTHERS, *(ROOT / "protos").iterdir(), ROOT / "Makefile", ROOT / "pyproject.toml"]
    assert not [name(path) for path in written if LATER.search(path.read_text())]


def test_only_these_files_catch_every_exception() -> None:
    assert {name(path) for path in SOURCES if any(catches_all(tree(path)))} == CATCH_ALL


def catches_all(module: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(module):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None or everything(node.type):
                yield node
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "suppress":
            yield from filter(everything, node.args)


def everything(expression: ast.AST) -> bool:
    names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    return bool(names & {"Exception", "BaseException"})


def test_pure_rooms_neither_open_nor_print() -> None:
    """The contracts bind their imports; these builtins need no import."""
    called = {
        (name(path), node.func.id)
        for path in SOURCES
        if name(path).removeprefix("nodeagent/").startswith(PURE)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not {
        call for call in called if call[1] in {"open", "print", "input", "exec", "eval", "__import__"}
    }


def test_values_are_frozen() -> None:
    """Facts are immutable."""
    modules = [
        tree(ROOT / "nodeagent" / file)
        for file in ("facts/model.py", "facts/allocation.py", "facts/gpu_usage.py")
    ]
    classes = [node for module in modules for node in module.body if isinstance(node, ast.ClassDef)]
    bases = {node.name: [ast.unparse(base) for base in node.bases] for node in classes}
    structs = [node for node in classes if bases[node.name] == ["msgspec.Struct"]]
    assert "Snapshot" in bases
    assert [name for name, of in bases.items() if of not in (["msgspec.Struct"], ["StrEnum"])] == []
    loose = [
        node.name
        for node in structs
        if "frozen=True" not in (ast.unparse(keyword) for keyword in node.keywords)
    ]
    assert structs
    assert not loose


def test_each_kind_of_device_stands_in_the_contract_of_kinds() -> None:
    kinds = {kind.__module__ for kind in device_kinds()}
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (independent,) = (
        contract for contract in contracts if contract["name"] == "Kinds are independent of each other"
    )
    assert independent["type"] == "independence"
    assert kinds
    assert set(independent["modules"]) == kinds, "add it to the contract in pyproject.toml"


def test_each_feature_stands_in_the_contracts_of_features() -> None:
    """None of them imports another, and no daemon imports one."""
    features = {
        f"nodeagent.features.{path.stem}"
        for path in (ROOT / "nodeagent/features").iterdir()
        if path.stem not in ("__init__", "__pycache__", "seam")
    }
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    named = {one["name"]: one for one in contracts}
    assert features
    assert set(named["Features are independent of each other"]["modules"]) == features
    core = named["The core of a daemon names no feature"]
    assert set(core["forbidden_modules"]) == features


def test_the_page_of_design_has_each_room_on_its_storey_and_its_floor() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(
        one["layers"] for one in contracts if one["type"] == "layers" and one["containers"] == ["nodeagent"]
    )
    floors = {room: at for at, layer in enumerate(layers, 1) for room in re.findall(r"\w+", layer)}
    page = (ROOT / "docs" / "design.md").read_text()
    storeys = page.partition("\n## Seven storeys\n")[2].partition("\n## ")[0]
    listed = [
        re.findall(r"`(\w+)`", line.split("|")[3]) for line in storeys.splitlines() if line.startswith("| ")
    ][1:]
    assert len(listed) == 7
    rooms = [room for storey in listed for room in storey]
    assert sorted(rooms) == sorted(floors), "docs/design.md, Seven storeys: each room once"
    for upper, lower in pairwise(listed):
        assert max(floors[room] for room in upper) < min(floors[room] for room in lower), (upper, lower)
    table = page.partition("\n## Rooms\n")[2].partition("\n## ")[0]
    stated = {
        room: int(floor)
        for floor, names in re.findall(r"^\| (\d+) \| ([^|]+) \|", table, re.M)
        for room in re.findall(r"`(\w+)/?`", names)
    }
    assert stated == floors, "docs/design.md, Rooms: the floor of each room"


def test_each_kind_of_device_has_every_method_without_a_default() -> None:
    required = [
        name
        for name, method in vars(DeviceKind).items()
        if inspect.isfunction(method) and "NotImplementedError" in method.__code__.co_names
    ]
    assert {"devices", "choose", "allocate"} <= set(required)
    lacking = [
        f"{kind.__name__}.{name}"
        for kind in device_kinds()
        for name in required
        if getattr(kind, name) is vars(DeviceKind)[name]
    ]
    assert not lacking
    without = [kind.__name__ for kind in device_kinds() if kind.resource is DeviceKind.resource]
    assert not without


def device_kinds() -> list[type[DeviceKind]]:
    """The classes of kinds from which no other one is derived."""
    for path in (ROOT / "nodeagent" / "kinds").glob("*.py"):
        importlib.import_module(f"nodeagent.kinds.{path.stem}")
    derived = [DeviceKind, *DeviceKind.__subclasses__()]
    derived += [kind for base in derived[1:] for kind in base.__subclasses__()]
    own = [kind for kind in derived if kind.__module__.startswith("nodeagent.")]  # tests derive some too
    return [kind for kind in own if not set(own) & {*kind.__subclasses__()}]


def test_no_test_uses_mock() -> None:
    """Tests use small real stand-ins; a patch tests an assumption about our own code."""
    named = [path for path in OTHERS if "mock" in path.read_text(encoding="utf-8")]
    guilty = [
        name(path) for path in named for module in imported(parsed(path)) if "mock" in module.split(".")
    ]
    assert named
    assert not guilty


@pytest.mark.parametrize(
    ("module", "costs"),
    [
        ("nodeagent.cli", {"grpc", "msgspec", "yaml", "prometheus_client", "pyroute2", "pynvml"}),
        ("nodeagent.cli; nodeagent.cli._parser()", ROOMS),
        ("nodeagent.agent_config", {"grpc", "google", "prometheus_client", "pyroute2", "pynvml"}),
        ("nodeagent.commands.scan.listing", {"grpc", "google", "prometheus_client", "pyroute2", "pynvml"}),
        ("nodeagent.agent", {"google", "prometheus_client", "pyroute2", "pynvml"}),
        (
            "nodeagent.agent",
            {"dataclasses", "email", "http", "shutil", "tempfile"},
        ),
        ("nodeagent.agent", {"nodeagent.kube.client", "nodeagent.lldp.lldpdu", "nodeagent.sampling.sampler"}),
        (
            "nodeagent.agent",
            {
                "rich",
                "h11",
                "nodeagent.commands",
                "nodeagent.console",
                "nodeagent.doctor",
                "nodeagent.fabric",
                "nodeagent_lab.sim",
            },
        ),
        ("nodeagent.controller", {"rich", "nodeagent.commands", "nodeagent.console", "nodeagent.doctor"}),
        *(
            (
                f"nodeagent.cli; nodeagent.cli._parser({verb!r})",
                ROOMS | {f"nodeagent.commands.{other}" for other in NO_DAEMON},
            )
            for verb in ("run", "controller")
        ),
    ],
)
def test_an_import_loads_no_package_that_it_does_not_use(module: str, costs: set[str]) -> None:
    """``--help`` is fast and loads no room, a node without GPUs does not load NVML, and the start of the agent imports
    only what registration needs."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert not costs & set(done.stdout.split()), "import it in the function that needs it"


def test_a_public_name_means_one_thing() -> None:
    """A reader who meets a name, or searches for it, finds one definition."""
    repeated = house.repeated_names(house.trees())
    assert repeated.keys() == REPEATED_NAMES, (
        "name the thing, or begin the name with _ where no other module uses it; remove what no longer repeats"
    )
    assert all(module.startswith("nodeagent.commands.") for module in repeated["add"])


def test_no_module_imports_itself_through_others() -> None:
    """In functions and for types alone too: such modules are one module, or a part of one stands in the wrong place."""
    assert not house.circles(house.imports(house.trees()))


def test_annotations_of_settings_are_not_texts() -> None:
    """msgspec would compile them at each start (see ``nodeagent/config/setting.py``)."""
    late = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree(path).body)
        and any(
            isinstance(node, ast.ClassDef)
            and any(isinstance(base, ast.Name) and base.id == "Settings" for base in node.bases)
            for node in tree(path).body
        )
    }
    assert not late


def test_the_help_lists_every_verb() -> None:
    """A function with the parameter ``add`` alone declares a verb."""
    declared = {
        (
            ".".join(
                path.relative_to(BESIDE.parent if path.is_relative_to(BESIDE) else ROOT).with_suffix("").parts
            ).removesuffix(".__init__"),
            node.name,
        )
        for path in SOURCES
        if any(path.is_relative_to(folder) for folder in (ROOT / "nodeagent/commands", BESIDE))
        for node in tree(path).body
        if isinstance(node, ast.FunctionDef) and [arg.arg for arg in node.args.args] == ["add"]
    }
    listed = {(verb.__module__, verb.__name__) for verb in declarations()}
    assert declared == listed, "enter it in VERBS of nodeagent/commands/__init__.py"


def test_the_type_checker_treats_all_generated_messages_alike() -> None:
    """An editable install hides the errors of those that the list forgets."""
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    (listed,) = (one["module"] for one in overrides if "disallow_any_generics" in one)
    generated = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "nodeagent").rglob("*_pb2.py")
    }
    assert {*listed} == generated
