"""SIGALRM at random instants of a fetch: the store stays right, readers see whole trees only."""

from __future__ import annotations

import random
import time

from tests.build.fetches import (
    MODULES,
    PARTS,
    Reader,
    check_store,
    damage,
    drop_one,
    empty,
    fetch,
    lock,
)
from tests.stand_ins.forks import start_forks
from tests.stand_ins.toolchains import World

KILLS = 9
# The system's alarm ends a process at any instant, as SIGKILL does: nothing of it handles that.
ALARM = "import signal; signal.setitimer(signal.ITIMER_REAL, {})"


def test_a_fetch_killed_at_any_instant_leaves_no_half_published_tree(
    world: World, dice: random.Random
) -> None:
    lock(world)
    with start_forks(*MODULES) as forks:
        fetch(forks, world)
        empty(world.home, dice)
        began = time.monotonic()
        fetch(forks, world)
        usual_s = time.monotonic() - began
        for number in range(KILLS):
            (empty, damage, drop_one)[number % 3](world.home, dice)
            reader = Reader(world.home)
            reader.start()
            after_s = max(dice.uniform(0, usual_s * 1.1), 0.001)
            fetch(forks, world, *dice.sample(PARTS, len(PARTS)), kill=ALARM.format(after_s))
            fetch(forks, world)
            reader.stopped.set()
            reader.join()
            assert reader.partial == []
            check_store(world.home)
