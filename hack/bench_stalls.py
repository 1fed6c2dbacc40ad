"""How often would a job be called stalled that is not? Jobs with pauses of all kinds, in simulated time.

    python hack/bench_stalls.py [--jobs 200] [--hours 1000] [--quick]

The kinds of jobs, their pauses and the readings are those of `tests/support/job_traffic_sim.py`. It prints the alarms,
which are all false, and the writes of levels for each node and hour. Exit status 1: there was an alarm.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.job_traffic_sim import KINDS, PODS, run

NODES_OF_CLUSTER = 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--hours", type=float, default=1000.0)
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first job")
    parser.add_argument("--quick", action="store_true", help="7 jobs of 100 hours")
    options = parser.parse_args()
    jobs, hours = (7, 100.0) if options.quick else (options.jobs, options.hours)
    began, writes = time.perf_counter(), Counter[str]()
    alarms, count = [], Counter[str]()
    for number in range(jobs):
        kind = KINDS[number % len(KINDS)]
        tally = run(kind, hours, options.seed + number)
        writes[kind.name] += tally.writes
        count[kind.name] += 1
        alarms += [
            f"{kind.name}, seed {options.seed + number}: {at:.0f} s, {phase}"
            for at, phase in tally.alarms[:1]
        ]
    print(
        f"{jobs} jobs, {hours:g} hours each: {len(alarms)} with an alarm, in {time.perf_counter() - began:.0f} s"
    )
    print("\n".join(alarms))
    for name, number in writes.items():
        print(f"{number / (count[name] * hours * PODS):8.3f} writes per node and hour: {name}")
    rate = sum(writes.values()) / (jobs * hours * PODS)
    print(
        f"{rate:8.3f} over all; {NODES_OF_CLUSTER} nodes: {NODES_OF_CLUSTER * rate / 3600:.3f} writes a second"
    )
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
