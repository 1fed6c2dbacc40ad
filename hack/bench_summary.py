"""Several whole runs of `hack/bench.py` as one table: the medians over the runs.

    python hack/bench_summary.py --runs N [--folder DIR]   run the bench first, into DIR/run-1.json to run-N.json
    python hack/bench_summary.py FILE ...                  the results of runs that were made before

A single run is no evidence: beside other load the ratios of two runs differ by a factor of two. So each value is the
median over the runs, with the least and the most in brackets. The table is Markdown, for docs/reference/benchmarks.md.
A run whose file is there already is not made again, so an interrupted series goes on. Runs of several commits, machines
or versions of Python are refused, and quick ones beside whole ones.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Run = Mapping[str, Any]
"""The document of one run."""
SAME = ("commit", "python", "kernel", "machine", "cpus")
"""The circumstances that must not differ."""
STATISTICS = ("p50", "p99")


class SummaryError(Exception):
    """These runs are not of one series."""


def spread(values: Sequence[float]) -> str:
    """The median with the least and the most.

    >>> spread([2.0, 1.0, 4.0])
    '2.00 (1.00 to 4.00)'
    """
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{_number(middle)} ({_number(least)} to {_number(most)})"


def check(runs: Sequence[Run]) -> None:
    """Raises ``SummaryError`` if the runs do not belong together."""
    if not all(
        isinstance(run, dict) and {"circumstances", "figures", "ratios"} <= run.keys() for run in runs
    ):
        raise SummaryError("a file is no result of bench.py: it lacks circumstances, figures or ratios")
    for name in SAME:
        found = {str(run["circumstances"].get(name)) for run in runs}
        if len(found) > 1:
            raise SummaryError(f"the runs differ in their {name}: {', '.join(sorted(found))}")
    if len({run["quick"] for run in runs}) > 1:
        raise SummaryError("some of the runs are quick ones: make all of them with or without --quick")


def around(runs: Sequence[Run]) -> str:
    """The conditions of the series in one sentence."""
    first = runs[0]["circumstances"]
    loads = [run["circumstances"]["load_1min"] for run in runs]
    dates = sorted(run["circumstances"]["at"] for run in runs)
    kind = "quick runs, not to quote" if runs[0]["quick"] else "whole runs"
    return (
        f"Medians over {len(runs)} {kind}, with the least and the most: commit {first['commit']}, Python "
        f"{first['python']}, kernel {first['kernel']}, {first['machine']}, {first['cpus']} CPUs, load {min(loads)} to "
        f"{max(loads)} at the begin, {dates[0]} to {dates[-1]}."
    )


def by_place(runs: Sequence[Run]) -> dict[tuple[str, str, int], list[Mapping[str, Any]]]:
    """The figure of each run by group, name and, as names may repeat in a group, number of the repetition."""
    found: dict[tuple[str, str, int], list[Mapping[str, Any]]] = {}
    for run in runs:
        seen: Counter[tuple[str, str]] = Counter()
        for figure in run["figures"]:
            name = figure["group"], figure["name"]
            found.setdefault((*name, seen[name]), []).append(figure)
            seen[name] += 1
    return found


def figures_table(runs: Sequence[Run]) -> list[str]:
    lines: list[str] = []
    group = ""
    for (of_group, name, _), figures in by_place(runs).items():
        if of_group != group:
            group = of_group
            lines += ["", f"**{group}**", "", "| | n | unit | p50 | p99 |", "|---|---|---|---|---|"]
        runs_of = "" if len(figures) == len(runs) else f", in {len(figures)} runs"
        n = statistics.median_low([figure["n"] for figure in figures])
        values = [spread([figure[statistic] for figure in figures]) for statistic in STATISTICS]
        lines.append(f"| {name.strip()}{runs_of} | {n} | {figures[0]['unit']} | {' | '.join(values)} |")
    return lines


def ratios_table(runs: Sequence[Run]) -> list[str]:
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        for ratio in run["ratios"]:
            found.setdefault((ratio["goal"]["name"], ratio["statistic"]), []).append(ratio)
    lines = ["| to the floor of the same run | | ratio | goal | met in |", "|---|---|---|---|---|"]
    for (name, statistic), ratios in found.items():
        sign = "+" if ratios[0]["goal"]["plus"] else ""
        most = ratios[0]["goal"]["most"][statistic]
        met = f"{sum(ratio['met'] for ratio in ratios)} of {len(ratios)}"
        value = spread([ratio["value"] for ratio in ratios])
        lines.append(f"| {name} | {statistic} | {sign}{value} | {sign}{most:g} | {met} |")
    return lines if found else ["No ratio: `--only bare` measures the floor in the same run."]


def summary(runs: Sequence[Run]) -> str:
    """The Markdown of these runs. Raises ``SummaryError``."""
    check(runs)
    return "\n".join([around(runs), "", *ratios_table(runs), *figures_table(runs), ""])


def make(runs: int, folder: Path, arguments: Iterable[str]) -> list[Path]:
    """The files of this number of runs; those that are missing are made, one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"run-{number}.json" for number in range(1, runs + 1)]
    for file in files:
        if not file.exists():
            part = file.with_suffix(".part")
            command = [sys.executable, str(Path(__file__).with_name("bench.py")), *arguments]
            subprocess.run([*command, "--json", str(part)], check=True, stdout=sys.stderr)
            part.rename(file)
    return files


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="the JSON files of runs")
    parser.add_argument("--runs", type=int, default=0, metavar="N", help="make so many runs first")
    parser.add_argument("--folder", type=Path, default=Path("bench-runs"), help="of the runs (bench-runs)")
    parser.add_argument("--only", action="append", default=[], help="measure this (repeatable), as bench.py")
    parser.add_argument("--quick", action="store_true", help="few repetitions, as bench.py")
    options = parser.parse_args()
    if bool(options.runs) == bool(options.files):
        parser.error("name the files of runs, or ask for some with --runs")
    wanted = [*(it for name in options.only for it in ("--only", name)), *["--quick"][: options.quick]]
    files = make(options.runs, options.folder, wanted) if options.runs else options.files
    try:
        print(summary([json.loads(file.read_text()) for file in files]))
    except (SummaryError, OSError, ValueError) as error:
        sys.exit(f"bench_summary: {error}")


if __name__ == "__main__":
    main()
