"""Generate the PrometheusRule from ``rules.yaml``, and the dashboards, in ``daemonset/monitoring/``.

    python hack/monitoring.py [FOLDER]

A test generates them again and compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parent))

from dashboards import DASHBOARDS
from grafana import model

FOLDER = Path(__file__).parents[1] / "daemonset" / "monitoring"

HEAD = """\
# Made from rules.yaml by hack/monitoring.py, for the Prometheus operator. Do not edit.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: nodeagent
  namespace: nodeagent
spec:
"""


def rule(plain: str) -> str:
    """Copy the groups of the plain file below ``spec``, with their comments."""
    body = plain[plain.index("groups:\n") :]
    text = HEAD + "".join(f"  {line}" if line.strip() else line for line in body.splitlines(keepends=True))
    if yaml.safe_load(text)["spec"] != yaml.safe_load(plain):
        raise SystemExit("rules.yaml cannot be indented: its groups must begin in the first column")
    return text


def files() -> dict[str, str]:
    """The generated files by name below the folder."""
    boards = {
        f"dashboards/{name}.json": json.dumps(model(board), indent=1) + "\n"
        for name, board in DASHBOARDS.items()
    }
    return {"prometheusrule.yaml": rule((FOLDER / "rules.yaml").read_text()), **boards}


def main(folder: Path) -> None:
    for name, text in files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
