"""``python -m tests.chaos --seeds 1-10 --kills 100``: long runs, a line for each seed, and a sum."""

import argparse
import asyncio
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

from redis_servers import BINARIES

from .faults import WEIGHTS
from .run import Plan, Report, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seeds", default="1", help="one, or first-last")
    parser.add_argument("--kills", type=int, default=100, help="of workers, for each seed, beside poison's")
    parser.add_argument("--minutes", type=float, default=0, help="at most, for each seed; 0 for no limit")
    parser.add_argument("--server", choices=[*BINARIES, "both"], default="both", help="both: by turns")
    parser.add_argument("--fsync", choices=["always", "everysec"], default="always")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=16, help="requests under way")
    parser.add_argument("--lease", type=float, default=1.0, help="seconds")
    parser.add_argument("--poison", type=float, default=0.0, help="share of requests that kill workers")
    parser.add_argument("--keep", type=Path, help="folder to leave the logs of servers and workers in")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    reports: list[Report] = []
    for seed in range(int(first), int(last or first) + 1):
        kinds = list(BINARIES) if arguments.server == "both" else [arguments.server]
        weights = dict(WEIGHTS)
        if arguments.fsync == "everysec":
            weights |= {"redis_kill": 0, "power_loss": 4}
        plan = Plan(
            seed=seed,
            kills=arguments.kills,
            minutes=arguments.minutes,
            server=kinds[seed % len(kinds)],
            fsync=arguments.fsync,
            workers=arguments.workers,
            concurrency=arguments.concurrency,
            lease=arguments.lease,
            poison=arguments.poison,
            weights=weights,
        )
        reports.append(_one(plan, arguments.keep))
    if len(reports) > 1:
        _print_sum(reports)
    return 1 if any(report.violations for report in reports) else 0


def _one(plan: Plan, keep: Path | None) -> Report:
    with tempfile.TemporaryDirectory() as name:
        folder = keep / f"seed-{plan.seed}" if keep else Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        report = asyncio.run(run(plan, folder))
        _print(report)
        if report.violations:
            for violation in report.violations[:20]:
                print(f"  VIOLATION {violation}")
    return report


def _print(report: Report) -> None:
    plan = report.plan
    faults = ", ".join(f"{name} {count}" for name, count in sorted(report.faults.items()))
    print(
        f"seed {plan.seed} ({plan.server}, {plan.fsync}): "
        f"{report.kills} kills ({report.poison_kills} by poison), "
        f"{report.requests} requests {dict(report.ended)}, {report.tokens} tokens, "
        f"{report.subscribers} subscribers, {report.messages} messages ({report.repetitions} overlapping), "
        f"{report.resubmitted} submitted again, {len(report.violations)} violations, "
        f"recovery median {report.recovery_median:.2f} s worst {report.recovery_worst:.2f} s "
        f"of {report.recoveries} (lease {plan.lease:g} s), {report.seconds:.0f} s\n  {faults}",
        flush=True,
    )


def _print_sum(reports: list[Report]) -> None:
    median = statistics.median(report.recovery_median for report in reports)
    print(
        f"in all: {sum(report.kills for report in reports)} kills, "
        f"{sum(report.requests for report in reports)} requests, "
        f"{sum(report.tokens for report in reports)} tokens, "
        f"{sum(report.subscribers for report in reports)} subscribers, "
        f"{sum(len(report.violations) for report in reports)} violations, "
        f"recovery median {median:.2f} s worst {max(report.recovery_worst for report in reports):.2f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
