"""One run: faults from a deck that the seed shuffles, each healed and waited for, then an orderly end and the audit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import bowstring

from chaos import audit
from chaos.faults import EXCHANGE, KINDS, STARTING, Scene, Untried
from chaos.report import Report, Tried
from chaos.rig import Job, Rig

# A rank without an event for longer hangs: none of its waits is longer than 45 s.
SILENT = 75.0
# A job that takes longer counts as not recovered.
LONGEST = 240.0
# Probability that two faults come at once.
TWO = 0.2


def deck(draw: Random, kinds: list[str]) -> Iterator[str]:
    """All kinds in a random order, again and again."""
    while True:
        yield from draw.sample(kinds, len(kinds))


class Run:
    """One run on a rig."""

    def __init__(self, rig: Rig, report: Report, say: Callable[[str], None]) -> None:
        self.rig, self.report, self.say = rig, report, say
        self.started = time.monotonic()

    def jobs(self, names: tuple[str, ...]) -> list[Job]:
        return [self.rig.jobs[name] for name in names]

    def settle(self, names: tuple[str, ...], since: float) -> tuple[float | None, bool]:
        """Waits until the jobs have recovered; returns the seconds since then, `None` if they have not, and true if a rank hung."""
        jobs = self.jobs(names)
        while not all(job.settled(since) for job in jobs):
            if max(job.silent(since) for job in jobs) > SILENT:
                return None, True
            if time.monotonic() > since + LONGEST:
                return None, False
            self.rig.wait(0.05)
        return time.monotonic() - since, False

    def fault(self, kinds: list[str], draw: Random) -> None:
        """One fault, or several at once."""
        before, begin = self.rig.network.counts(), time.monotonic()
        self.rig.lag = 0.0
        running, scenes = [], []
        try:
            for kind in kinds:
                generator = KINDS[kind](self.rig, draw)
                scenes.append(next(generator))
                running.append(generator)
        except Untried as why:
            self.report.untried[kind] = str(why)
            kinds = kinds[: len(running)]
            if not running:
                return
        self.hold(scenes)
        healed = time.monotonic()
        for generator in reversed(running):
            next(generator, None)
        jobs = tuple(sorted({job for scene in scenes for job in scene.jobs}))
        recovered, hung = self.settle(jobs, healed)
        after = self.rig.network.counts()
        for job in self.jobs(jobs):
            job.tend()
        errors = [
            event["t"] - begin
            for job in self.jobs(jobs)
            for events in job.events
            for event in events
            if event["e"] == "error" and event["t"] > begin
        ]
        texts = [scene.what for scene in scenes]
        if len(scenes) > 1:
            texts = [f"{kind}: {what}" for kind, what in zip(kinds, texts, strict=True)]
        tried = Tried(
            kind=kinds[0] if len(scenes) == 1 else "two at once",
            what="; ".join(texts),
            at=begin - self.started,
            hold=healed - begin,
            jobs=jobs,
            notice=min(errors, default=None),
            recover=recovered,
            stall=max(self.stall(job, begin) for job in self.jobs(jobs)),
            hung=hung,
            lag=self.rig.lag,
            load=os.getloadavg()[0],
            packets={key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)},
            notes={note: value for scene in scenes for note, value in scene.notes.items()},
        )
        self.report.tried.append(tried)
        self.say(str(tried))
        if recovered is None:
            how = f"a rank hung for {SILENT:.0f} s" if hung else f"not recovered within {LONGEST:.0f} s"
            self.report.failures.append(
                f"{how} after {tried.kind} ({tried.what}) at {tried.at:.1f} s, load {tried.load:.1f}"
            )
            # The next faults need running jobs.
            for job in self.jobs(jobs):
                for process in job.processes:
                    if process is not None:
                        process.kill()
            self.settle(jobs, time.monotonic())

    def hold(self, scenes: list[Scene]) -> None:
        end = time.monotonic() + max(scene.hold for scene in scenes)
        while (left := end - time.monotonic()) > 0:
            for scene in scenes:
                if scene.toggle:
                    scene.toggle()
            self.rig.wait(min(0.05, left))

    def stall(self, job: Job, since: float) -> float:
        """Returns the longest time between two steps of a rank, the second of them after the fault began."""
        longest = 0.0
        for events in job.events:
            last = None
            for event in events:
                if event["e"] == "step":
                    if last is not None and event["t"] > since:
                        longest = max(longest, event["t"] - last)
                    last = event["t"]
        return longest

    def watch(self) -> None:
        """Reports panics and servers that ended by themselves, and restarts these."""
        for host, server in self.rig.servers.items():
            if not server.alive:
                code = server.process.code if server.process else None
                self.report.failures.append(f"{host} ended by itself with {code}: {server.log.read_text()[-300:]}")
                server.start()
        for log in self.rig.home.rglob("*.log"):
            failure = f"a panic, see {log}"
            if failure not in self.report.failures and "panicked" in log.read_text(errors="replace"):
                self.report.failures.append(failure)

    def finish(self) -> None:
        """Lets all jobs reach the end of an epoch, and judges them."""
        self.rig.network.clear()
        for job in self.rig.jobs.values():
            job.tend()
            job.end()
        until = time.monotonic() + LONGEST
        while not all(job.done for job in self.rig.jobs.values()) and time.monotonic() < until:
            self.rig.wait(0.1)
        for name, job in self.rig.jobs.items():
            job.tend()
            if not job.done:
                self.report.failures.append(f"{name} did not end within {LONGEST:.0f} s")
            self.judge(name, job)

    def judge(self, name: str, job: Job) -> None:
        end = int((job.home / "end").read_text())
        verdict = audit.judged(job.events, self.rig.ids, end if job.done else 0)
        second = self.second_opinion(job)
        self.report.jobs[name] = {
            "epochs": verdict.epochs,
            "rows": verdict.rows,
            "lives": verdict.lives,
            "restarts": job.restarts,
            "steps rolled back": verdict.rolled_back,
            "lost": verdict.lost,
            "doubled": verdict.doubled,
            "foreign": verdict.foreign,
            "wrong values": verdict.wrong,
            "bowstring audit": second,
        }
        if not verdict.exact:
            self.report.failures.append(f"{name}: {self.report.jobs[name]}, {verdict.findings[:5]}")
        if job.done and second != "exact, complete":
            self.report.failures.append(f"{name}: bowstring's own audit says {second}")
        # The faults during the epochs that are not whole.
        for epoch in verdict.bad_epochs:
            times = [event["t"] for events in job.events for event in events if event.get("epoch") == epoch]
            for one in self.report.tried:
                if times and name in one.jobs and min(times) - 1 < one.at + self.started < max(times) + 1:
                    one.lost, one.doubled = one.lost + verdict.lost, one.doubled + verdict.doubled

    def second_opinion(self, job: Job) -> str:
        """Returns the verdict of bowstring's own audit, by the certificates of the run."""
        found = bowstring.audit(sorted((job.home / "certificates").glob("*.json")))
        said = "exact" if found["exact"] else f"not exact: {json.dumps(found['findings'][:3])}"
        return f"{said}, {'complete' if found['complete'] else 'not complete'}"


def machine() -> str:
    """Describes the machine that the figures are from."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "",
    )
    day = subprocess.run(["date", "+%F"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{os.cpu_count()} x {model or platform.machine()}, Linux {platform.release()}, {day}"


def run(
    rig: Rig, seconds: float, kinds: list[str], say: Callable[[str], None], *, two: float = TWO, most: int | None = None
) -> Report:
    """Runs faults for `seconds`, or `most` of them, then ends and judges the jobs."""
    settings = rig.settings
    report = Report(settings.seed, seconds, machine=machine())
    draw = Random(settings.seed)
    this = Run(rig, report, say)
    begun = this.settle(tuple(rig.jobs), this.started)[0] is not None
    while begun and not all(job.is_resumable for job in rig.jobs.values()):
        rig.wait(0.05)
        begun = time.monotonic() < this.started + LONGEST
    if not begun:
        report.failures.append("the jobs never began")
        return report
    say(f"{time.monotonic() - this.started:6.1f} s  all ranks train")
    this.started = time.monotonic()
    cards = deck(draw, kinds)
    while time.monotonic() < this.started + seconds and (most is None or len(report.tried) < most):
        hand = [next(cards)]
        if draw.random() < two:
            hand.append(next(cards))
        # What begins first ends last. An exchange waits for all servers, which the other fault may stop or cut off; a server that
        # is started needs its store.
        hand.sort(key=lambda kind: (kind != EXCHANGE, kind not in STARTING))
        this.fault(hand, draw)
        this.watch()
    report.packets = rig.network.counts()
    this.finish()
    if settings.former is None:
        report.untried["upgrade from a former release"] = (
            "no --former BINARY was given; servers were restarted with the same one"
        )
    report.untried["dm-error"] = "not used: EIO comes from an ext4 on a loop device without sectors"
    report.seconds = time.monotonic() - this.started
    return report
