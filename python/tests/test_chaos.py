"""The chaos suite: its judge finds every kind of error, its wire follows its rules, and two real faults lose nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_flight import binary

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from chaos import audit, links, rows  # noqa: E402
from chaos.journal import Tail, Writer  # noqa: E402
from chaos.rig import epochs_to_end  # noqa: E402
from chaos.wire import Direction, Rule, Wire  # noqa: E402

Event = dict[str, Any]
IDS = np.arange(8, dtype=np.int64) * 10


def life(number: int, start: tuple[int, int], t: float = 0.0) -> Event:
    return {"t": t, "e": "life", "life": number, "start": list(start)}


def step(number: int, epoch: int, at: int, *ids: int) -> Event:
    return {"t": 1.0, "e": "step", "life": number, "epoch": epoch, "step": at, "ids": list(ids)}


def ack(number: int, epoch: int, at: int, asked: float = 1.0) -> Event:
    return {"t": asked, "e": "ack", "life": number, "epoch": epoch, "step": at, "asked": asked}


def whole(rank: int, number: int = 0, epoch: int = 0, start: int = 0) -> list[Event]:
    """Returns the steps of one of two ranks in an epoch of two steps of four rows each."""
    first = rank * 20
    made = [step(number, epoch, 0, first, first + 10), step(number, epoch, 1, first + 40, first + 50)]
    return made[start:]


def test_a_run_without_faults_and_one_that_rolled_back_are_exact() -> None:
    plain = [[life(0, (0, 0)), *whole(rank)] for rank in range(2)]
    verdict = audit.judged(plain, IDS, 1)
    assert verdict.exact
    assert (verdict.rows, verdict.rolled_back) == (8, 0)
    # Rank 1 was killed in step 1; what rank 0 did there is made again.
    again = [
        [life(0, (0, 0)), *whole(0), life(1, (0, 1)), *whole(0, 1, start=1)],
        [life(0, (0, 0)), *whole(1)[:1], life(1, (0, 1)), *whole(1, 1, start=1)],
    ]
    verdict = audit.judged(again, IDS, 1)
    assert verdict.exact, verdict
    assert (verdict.rows, verdict.rolled_back, verdict.lives) == (8, 1, 2)


def test_lost_doubled_foreign_and_wrong_rows_are_counted() -> None:
    journals = [[life(0, (0, 0)), *whole(rank)] for rank in range(2)]
    journals[1][-1] = step(0, 0, 1, 0, 7)
    journals[0].append({"t": 2.0, "e": "wrong", "life": 0, "epoch": 0, "step": 1, "rows": 3})
    verdict = audit.judged(journals, IDS, 1)
    assert (verdict.lost, verdict.doubled, verdict.foreign, verdict.wrong) == (2, 1, 1, 3)
    assert verdict.bad_epochs == {0}
    # An epoch that is not over may lack rows, but not have them twice.
    begun = [[life(0, (0, 0)), step(0, 0, 0, 0, 10)], [life(0, (0, 0)), step(0, 0, 0, 10, 20)]]
    verdict = audit.judged(begun, IDS, 0)
    assert (verdict.lost, verdict.doubled) == (0, 1)
    # An epoch without any step is lost as a whole.
    assert audit.judged([[life(0, (0, 0)), *whole(rank)] for rank in range(2)], IDS, 2).lost == len(IDS)


def test_what_a_gang_must_not_do_is_found() -> None:
    def findings(*journals: list[Event]) -> str:
        return " ".join(audit.judged(journals, IDS, 0).findings)

    assert "twice in life 0" in findings([life(0, (0, 0)), step(0, 0, 0, 0), step(0, 0, 0, 0)])
    assert "begins at [(0, 0), (0, 1)]" in findings([life(0, (0, 0))], [life(0, (0, 1))])
    both = [life(1, (0, 0)), ack(1, 0, 0), ack(1, 0, 1)]
    assert "had acknowledged (0, 1)" in findings([*both, life(2, (0, 1))], [*both, life(2, (0, 1))])
    assert findings([*both, life(2, (0, 2), 5.0)], [*both, life(2, (0, 2), 5.0)]) == ""
    # A process that was left over says at 6 what the next generation, begun at 5, must not hear.
    stale = [*both, ack(1, 0, 2, asked=6.0)]
    assert "generation 1 acknowledged a step after 2" in findings(stale, [*both, life(2, (0, 2), 5.0)])


def test_the_journal_of_a_killed_process_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "journal")
    killed = Writer(tmp_path / "journal")
    killed.write("step", commit=True, step=1)
    killed.file.write(b'{"e":"st')
    killed.file.close()
    assert [event["e"] for event in tail.events()] == ["step"]
    for number in range(2):
        later = Writer(tmp_path / "journal")
        later.write("life", life=number)
        later.file.close()
    assert [(event["e"], event["life"]) for event in tail.events()] == [("life", 0), ("life", 1)]


def test_no_rank_can_have_passed_the_end_before_it_is_written() -> None:
    def end(*made: tuple[int, int]) -> int:
        return epochs_to_end([[step(0, epoch, at)] for epoch, at in made], 100)

    assert epochs_to_end([[], []], 100) == 1
    assert end((3, 49), (3, 48)) == 4
    # The first rank may have ended its epoch by now, looked for the end and begun the next one.
    assert end((3, 99), (3, 98)) == 5
    assert end((4, 0), (3, 99)) == 5


def test_values_tell_rows_apart() -> None:
    ids = rows.ids(500, 3)
    assert np.unique(ids).size == 500
    batch = {"id": ids, "x": rows.values(ids)}
    assert rows.wrong(batch) == 0
    batch["x"][7, 3] += 1
    batch["x"][[10, 11]] = batch["x"][[11, 10]]
    assert rows.wrong(batch) == 3


class Recorded(Wire):
    """A wire whose packets come to a list."""

    def __init__(self, **rule: Any) -> None:
        super().__init__({1: 0, 2: 0}, 7)
        self.directions[1, 2] = Direction(Rule(**rule))
        self.got: list[int] = []

    def put(self, target: int, packet: bytes) -> None:
        self.got.append(packet[20])

    def sent(self, source: int, target: int, count: int) -> list[int]:
        head = bytearray(20)
        head[0], head[15], head[19] = 0x45, source, target
        for number in range(count):
            self.take(bytes(head) + bytes([number]))
        # Delayed packets arrive in the order of their times.
        self.got += [packet[20] for *_, packet in sorted(self.due)]
        return self.got


def test_the_wire_does_what_its_rules_say() -> None:
    everything = list(range(200))
    assert Recorded().sent(1, 2, 200) == everything
    assert Recorded(cut=True).sent(1, 2, 200) == []
    assert Recorded(cut=True).sent(2, 1, 200) == everything, "the other way is whole"
    assert 100 < len(Recorded(loss=0.2).sent(1, 2, 200)) < 190
    doubled = Recorded(duplicate=0.5).sent(1, 2, 200)
    assert (set(doubled), 250 < len(doubled) < 350) == (set(everything), True)
    assert Recorded(delay=0.5, jitter=0.4).sent(1, 2, 200) == everything, "delays alone keep the order"
    mixed = Recorded(delay=0.5, reorder=0.3).sent(1, 2, 200)
    assert (sorted(mixed), mixed != everything) == (everything, True)
    # 19 packets fill its queue; each second that the test itself takes lets 47 more pass.
    assert 10 < len(Recorded(rate=1000).sent(1, 2, 200)) < 100, "a slow link drops what it cannot hold"
    # The same seed, the same fate.
    assert Recorded(loss=0.2).sent(1, 2, 200) == Recorded(loss=0.2).sent(1, 2, 200)


@pytest.mark.skipif("BOWSTRING_SOAK" not in os.environ, reason="twelve namespaces and processes: part of the soak")
@pytest.mark.timeout(400)
def test_a_killed_server_and_a_partition_over_real_links_lose_nothing(tmp_path: Path) -> None:
    try:
        links.check()
    except links.Missing as missing:
        pytest.skip(str(missing))
    kinds = ["--only", "SIGKILL of a server", "--only", "partition, full"]
    command = [sys.executable, "-m", "chaos", "--seed", "5", "--faults", "2", *kinds]
    command += ["--binary", str(binary()), "--home", str(tmp_path / "chaos")]
    package = str(Path(sys.modules["bowstring"].__file__ or "").parents[1])
    paths = os.pathsep.join([package, str(ROOT / "tests")])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
    assert "each row once per epoch, nobody hung" in done.stdout
    assert "2 faults" in done.stdout
