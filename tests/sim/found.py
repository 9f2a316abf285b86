"""Schedules that a wide search has found broken, shrunk: each shows one hole, which is mended."""

from __future__ import annotations

from sim.programs import (
    Catch,
    Join,
    Keeps,
    Late,
    Launch,
    Own,
    Print,
    Program,
    Raise,
    Repeat,
    Schedule,
    Set,
    Sleep,
    Thread,
)

FOUND = {
    "a rank at the gate of a later cell lacks what that cell waits for": Schedule(
        seed=1052077,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (Launch(where="0,1,2", program=1, meant=(1, 2), name="c"),),
                    1: (Launch(where="0,1,2", program=1, meant=(1, 2), name="c"),),
                },
                queued=True,
            ),
            Program(
                number=2,
                client=0,
                steps={
                    0: (Launch(where="0,1", program=2, meant=(2, 1), name="d"), Print(name="d")),
                    1: (Launch(where="0,1", program=2, meant=(2, 1), name="d"), Print(name="d")),
                    2: (Print(name="d"),),
                },
                queued=True,
            ),
            Program(number=3, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="partial",
        guilty=frozenset({(1, 2)}),
        lateness=0.02,
    ),
    "a value is pulled that a stopped cell has left unlike on the ranks": Schedule(
        seed=31060840,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Late(
                            seconds=3.05,
                            steps=(Launch(where="0,1,2", program=1, meant=(1, 0), name="t"),),
                        ),
                    ),
                    1: (
                        Late(
                            seconds=0.25,
                            steps=(Launch(where="0,1,2", program=1, meant=(1, 0), name="t"),),
                        ),
                    ),
                    2: (
                        Late(
                            seconds=1.55,
                            steps=(Launch(where="0,1,2", program=1, meant=(1, 0), name="t"),),
                        ),
                    ),
                },
                queued=False,
            ),
            Program(number=21, client=1, steps={}, queued=False, act=("pull", "p")),
            Program(
                number=2,
                client=0,
                steps={
                    0: (Set(name="p", what=2),),
                    1: (Set(name="p", what=2),),
                    2: (Set(name="p", what=2),),
                },
                queued=True,
            ),
            Program(
                number=3,
                client=0,
                steps={
                    0: (Set(name="p", what=3),),
                    1: (Sleep(seconds=0.7, awaits=True), Set(name="p", what=3)),
                    2: (Sleep(seconds=0.7, awaits=True), Set(name="p", what=3)),
                },
                queued=False,
                stop_at=1.646101654693399,
            ),
        ),
        is_tuned=True,
    ),
    "a value is pulled that a cell has left unlike, which a rank was stopped before": Schedule(
        seed=31106722,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=2,
                client=0,
                steps={
                    0: (Set(name="p", what=2),),
                    1: (Set(name="p", what=2),),
                    2: (Set(name="p", what=2),),
                },
                queued=False,
            ),
            Program(
                number=3,
                client=0,
                steps={
                    0: (Sleep(seconds=0.01, awaits=True), Set(name="p", what=3)),
                    1: (Sleep(seconds=0.01, awaits=True), Set(name="p", what=3)),
                    2: (Sleep(seconds=0.01, awaits=True), Set(name="p", what=3)),
                },
                queued=False,
                stop_at=0.23957362684722416,
            ),
            Program(number=20, client=0, steps={}, queued=False, act=("pull", "p")),
        ),
        lateness=0.3,
    ),
    "the ranks have new processes before an attached notebook's cell is settled": Schedule(
        seed=30000906,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=1,
                steps={
                    0: (Launch(where="0,1,2", program=2, meant=(1, 0), name="a"),),
                    1: (Launch(where="0,1,2", program=2, meant=(1, 0), name="a"),),
                    2: (Launch(where="0,1,2", program=2, meant=(1, 0), name="a"),),
                },
                queued=False,
                timeout_s=0.13901682498713552,
            ),
            Program(number=21, client=0, steps={}, queued=False, pause_s=1.0, act=("restart", "q")),
        ),
        lateness=0.3,
    ),
    "the ranks have new processes before their own notebook's cell is settled": Schedule(
        seed=1,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (Launch(where="0,1,2", program=2, meant=(1, 0), name="a"),),
                    1: (Launch(where="0,1,2", program=2, meant=(1, 0), name="a"),),
                    2: (Launch(where="0,1,2", program=2, meant=(1, 0), name="a"),),
                },
                queued=True,
                stop_at=0.3,
            ),
            Program(number=21, client=0, steps={}, queued=False, pause_s=1.0, act=("restart", "q")),
        ),
        lateness=0.3,
    ),
    "a withdrawn cell's gate holds up another notebook's cell": Schedule(
        seed=1123176,
        num_ranks=3,
        inline=True,
        programs=(
            Program(number=1, client=1, steps={0: (), 1: (), 2: ()}, queued=False),
            Program(
                number=2,
                client=0,
                steps={0: (Sleep(seconds=1.5),), 1: (Sleep(seconds=0.5),), 2: ()},
                queued=True,
                timeout_s=0.6207533259749913,
            ),
            Program(number=3, client=0, steps={0: (), 1: (), 2: ()}, queued=True),
            Program(
                number=4,
                client=0,
                steps={
                    0: (Launch(where="0,1,2", program=1, meant=(4, 2), name="a", inputs=("b",)),),
                    1: (Launch(where="0,1,2", program=1, meant=(4, 2), name="a", inputs=("b",)),),
                },
                queued=False,
            ),
        ),
        fault="partial",
        guilty=frozenset({(4, 2)}),
        lateness=0.3,
    ),
    "a withdrawn cell's gate, with cells that run": Schedule(
        seed=22580,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (Launch(where="0,1", program=1, meant=(1, 0), name="d"), Print(name="d")),
                    1: (
                        Sleep(seconds=1.5),
                        Launch(where="0,1", program=1, meant=(1, 0), name="d"),
                        Launch(where="0,1,2", program=1, meant=(1, 1), name="b"),
                    ),
                    2: (Sleep(seconds=1.5), Print(name="d")),
                },
                queued=True,
            ),
            Program(number=2, client=1, steps={0: (), 1: (), 2: ()}, queued=False),
            Program(number=3, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="partial",
        guilty=frozenset({(4, 0)}),
        lateness=0.3,
    ),
    "ranks are still in a stopped cell, and others wait behind it": Schedule(
        seed=1043894,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    1: (
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                        Launch(where="0,1", program=1, meant=(1, 1), name="d"),
                        Launch(where="0,1", program=1, meant=(1, 2), name="d"),
                        Launch(where="0,1,2", program=1, meant=(1, 3), name="c"),
                        Print(name="c"),
                    ),
                    2: (
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                        Launch(where="0,1,2", program=1, meant=(1, 3), name="c"),
                        Print(name="c"),
                    ),
                },
                queued=True,
                stop_at=0.06359704168407707,
            ),
            Program(
                number=2,
                client=0,
                steps={
                    0: (Launch(where="0,1", program=1, meant=(2, 1), name="d"),),
                    1: (Launch(where="0,1", program=1, meant=(2, 1), name="d"),),
                    2: (),
                },
                queued=False,
            ),
        ),
        fault="partial",
        guilty=frozenset({(1, 0)}),
        lateness=0.02,
    ),
    "a timer makes a launch that an error has kept a rank from": Schedule(
        seed=1157357,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Late(
                            seconds=0.25,
                            steps=(Launch(where="0,1,2", program=1, meant=(1, 0), name="t"),),
                        ),
                    ),
                    1: (
                        Late(
                            seconds=3.05,
                            steps=(Launch(where="0,1,2", program=1, meant=(1, 0), name="t"),),
                        ),
                    ),
                    2: (
                        Late(
                            seconds=0.05,
                            steps=(Launch(where="0,1,2", program=1, meant=(1, 0), name="t"),),
                        ),
                    ),
                },
                queued=False,
                stop_at=0.005717521311867691,
            ),
            Program(
                number=9,
                client=0,
                steps={
                    0: (Launch(where="0,1,2", program=1, meant=(9, 0), name="c"),),
                    1: (Raise(), Launch(where="0,1,2", program=1, meant=(9, 0), name="c")),
                    2: (Launch(where="0,1,2", program=1, meant=(9, 0), name="c"),),
                },
                queued=False,
            ),
        ),
        fault="raise",
        guilty=frozenset({(9, 1)}),
        lateness=0.3,
    ),
    "a cell behind one that was stopped and has not ended is not diverged": Schedule(
        seed=1128783,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Repeat(
                            times=200,
                            steps=(
                                Launch(where="0,1,2", program=1, meant=(1, 0), name="b"),
                                Sleep(seconds=0.05),
                                Launch(where="0,1,2", program=1, meant=(1, 1), name="b"),
                                Print(name="b"),
                                Print(name="b"),
                            ),
                        ),
                    ),
                    1: (
                        Repeat(
                            times=200,
                            steps=(
                                Launch(where="0,1,2", program=1, meant=(1, 0), name="b"),
                                Sleep(seconds=0.05),
                                Launch(where="0,1,2", program=1, meant=(1, 1), name="b"),
                                Print(name="b"),
                                Print(name="b"),
                            ),
                        ),
                    ),
                    2: (
                        Repeat(
                            times=200,
                            steps=(
                                Launch(where="0,1,2", program=1, meant=(1, 0), name="b"),
                                Sleep(seconds=0.05),
                                Launch(where="0,1,2", program=1, meant=(1, 1), name="b"),
                                Print(name="b"),
                                Print(name="b"),
                            ),
                        ),
                    ),
                },
                queued=True,
                stop_at=0.7555859320807773,
            ),
            Program(number=2, client=0, steps={0: (), 1: (), 2: ()}, queued=True),
            Program(number=3, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="",
        guilty=frozenset(),
        lateness=0.3,
    ),
    "a replay that takes long is nobody's skip": Schedule(
        seed=1148562,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Raise(),
                        Launch(where="0,1", program=1, meant=(1, 1), name="d"),
                        Launch(where="0,1,2", program=1, meant=(1, 2), name="a", inputs=("c",)),
                    ),
                    1: (
                        Launch(where="0,1", program=1, meant=(1, 1), name="d"),
                        Launch(where="0,1,2", program=1, meant=(1, 2), name="a", inputs=("c",)),
                    ),
                    2: (Launch(where="0,1,2", program=1, meant=(1, 2), name="a", inputs=("c",)),),
                },
                queued=True,
            ),
            Program(number=2, client=1, steps={0: (), 1: (), 2: ()}, queued=True),
            Program(number=3, client=1, steps={0: (), 1: (), 2: ()}, queued=False),
            Program(number=4, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="raise",
        guilty=frozenset({(1, 0)}),
        lateness=0.3,
    ),
    "what a cell has assigned that was given up is not trusted": Schedule(
        seed=1090335,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                        Sleep(seconds=0.5),
                        Launch(where="0,1,2", program=1, meant=(1, 1), name="c"),
                    ),
                    1: (
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                        Launch(where="0,1,2", program=1, meant=(1, 1), name="c"),
                    ),
                    2: (
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                        Launch(where="0,1,2", program=2, meant=(1, "other"), name="c"),
                    ),
                },
                queued=True,
                stop_at=0.09724659265740486,
            ),
            Program(number=2, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
            Program(
                number=3,
                client=0,
                steps={0: (Print(name="c"),), 1: (Print(name="c"),), 2: (Print(name="c"),)},
                queued=False,
            ),
        ),
        fault="other",
        guilty=frozenset({(1, 2)}),
        lateness=0.02,
    ),
    "a rank that did not run the cell has died, and cells behind it wait": Schedule(
        seed=2022037,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=1,
                steps={
                    0: (Launch(where="0,1,2", program=1, meant=(1, 1), name="c", inputs=("a",)),),
                    1: (Launch(where="0,1,2", program=1, meant=(1, 1), name="c", inputs=("a",)),),
                    2: (Launch(where="0,1,2", program=1, meant=(1, 1), name="c", inputs=("a",)),),
                },
                queued=False,
            ),
            Program(
                number=3,
                client=0,
                steps={
                    0: (Launch(where="0,1,2", program=1, meant=(3, 1), name="a"),),
                    1: (
                        Sleep(seconds=1.5),
                        Launch(where="0,1,2", program=1, meant=(3, 1), name="a"),
                    ),
                },
                queued=False,
            ),
        ),
        fault="partial",
        guilty=frozenset({(3, 2)}),
        death=(0.8739566098543161, 2),
        lateness=0.02,
    ),
    "a stop hides a launch that was made once more": Schedule(
        seed=2028567,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Launch(where="0,1,2", program=1, meant=(1, "extra"), name="b"),
                        Launch(where="0,1,2", program=1, meant=(1, 1), name="b"),
                        Sleep(seconds=0.3, awaits=True),
                    ),
                    1: (
                        Sleep(seconds=0.5),
                        Launch(where="0,1,2", program=1, meant=(1, 1), name="b"),
                        Sleep(seconds=0.3, awaits=True),
                    ),
                    2: (
                        Sleep(seconds=0.5),
                        Launch(where="0,1,2", program=1, meant=(1, 1), name="b"),
                        Sleep(seconds=0.3, awaits=True),
                    ),
                },
                queued=False,
                stop_at=0.7314369836520165,
            ),
        ),
        fault="extra",
        guilty=frozenset({(1, 0)}),
        lateness=0.02,
        is_strict=True,
    ),
    "a stop that code has heard hides a launch that was skipped": Schedule(
        seed=1151506,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Catch(
                            steps=(
                                Launch(
                                    where="0,1,2", program=1, meant=(1, 0), name="c", inputs=("b",)
                                ),
                                Launch(where="0,1,2", program=1, meant=(1, 1), name="a"),
                            ),
                            of_stop=True,
                        ),
                    ),
                    1: (
                        Catch(
                            steps=(
                                Launch(
                                    where="0,1,2", program=1, meant=(1, 0), name="c", inputs=("b",)
                                ),
                                Launch(where="0,1,2", program=1, meant=(1, 1), name="a"),
                            ),
                            of_stop=True,
                        ),
                    ),
                    2: (
                        Catch(
                            steps=(
                                Sleep(seconds=0.5),
                                Launch(where="0,1,2", program=1, meant=(1, 1), name="a"),
                            ),
                            of_stop=True,
                        ),
                    ),
                },
                queued=True,
                timeout_s=0.14478482235297274,
            ),
            Program(number=2, client=1, steps={0: (), 1: (), 2: ()}, queued=False),
            Program(number=3, client=0, steps={0: (), 1: (), 2: ()}, queued=True),
            Program(number=4, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="skip",
        guilty=frozenset({(1, 2)}),
        lateness=0.3,
    ),
    "a late answer hides that a stopped cell's launch has met another line's": Schedule(
        seed=50013213,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (Sleep(seconds=0.5), Launch("0,1", 1, (1, 0), "d")),
                    1: (
                        Launch("0,1", 1, (1, "extra"), "d"),
                        Launch("0,1", 1, (1, 0), "d"),
                    ),
                    2: (),
                },
                queued=True,
                stop_at=0.0668458328427932,
            ),
            Program(number=2, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="extra",
        guilty=frozenset({(1, 1)}),
        lateness=0.3,
    ),
    "a stop has parted threads, and a launch of one has met a cell's": Schedule(
        seed=16524,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Catch(
                            steps=(
                                Thread(
                                    steps=(
                                        Sleep(seconds=0.0),
                                        Launch(where="0,1,2", program=1, meant=(1, 0), name="t"),
                                        Sleep(seconds=0.01),
                                    )
                                ),
                            ),
                            of_stop=True,
                        ),
                    ),
                    1: (
                        Catch(
                            steps=(
                                Thread(
                                    steps=(
                                        Sleep(seconds=1.5),
                                        Launch(where="0,1,2", program=1, meant=(1, 0), name="t"),
                                        Sleep(seconds=0.4),
                                    )
                                ),
                            ),
                            of_stop=True,
                        ),
                    ),
                    2: (
                        Catch(
                            steps=(
                                Thread(
                                    steps=(
                                        Sleep(seconds=3.0),
                                        Launch(where="0,1,2", program=1, meant=(1, 0), name="t"),
                                        Sleep(seconds=0.01),
                                    )
                                ),
                            ),
                            of_stop=True,
                        ),
                    ),
                },
                queued=False,
                stop_at=0.048009112822546045,
            ),
            Program(
                number=9,
                client=0,
                steps={
                    0: (
                        Join(),
                        Launch(where="0,1,2", program=1, meant=(9, 0), name="c"),
                        Print(name="c"),
                        Print(name="t"),
                    ),
                    1: (
                        Join(),
                        Launch(where="0,1,2", program=1, meant=(9, 0), name="c"),
                        Print(name="c"),
                        Print(name="t"),
                    ),
                    2: (
                        Join(),
                        Launch(where="0,1,2", program=1, meant=(9, 0), name="c"),
                        Print(name="c"),
                        Print(name="t"),
                    ),
                },
                queued=False,
            ),
        ),
        fault="",
        guilty=frozenset(),
        lateness=0.3,
        is_strict=True,
    ),
    "a rank dies while another one replays what a cell that heard a stop has launched": Schedule(
        seed=2010658,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    rank: (
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                        Launch(where="0,1,2", program=2, meant=(1, 0), name="c", inputs=("b",)),
                    )
                    for rank in (1, 2)
                },
                queued=False,
                stop_at=0.3587359511871038,
            ),
        ),
        fault="partial",
        guilty=frozenset({(1, 0)}),
        death=(1.9687100580899755, 1),
        lateness=0.3,
    ),
    "what ranks lack is a timer's at one look, and has completed at the next": Schedule(
        seed=2012664,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    rank: (
                        Late(
                            seconds=seconds,
                            steps=(
                                Launch(where="0,1,2", program=1, meant=(1, 0), name="t"),
                                Launch(where="0,1,2", program=1, meant=(1, 1), name="t"),
                            ),
                        ),
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                    )
                    for rank, seconds in enumerate((0.25, 3.05, 3.05))
                },
                queued=True,
                stop_at=1.55317364379977,
            ),
            Program(
                number=9,
                client=0,
                steps={
                    0: (Launch(where="0,1,2", program=1, meant=(9, 0), name="c"),),
                    1: (Launch(where="0,1,2", program=1, meant=(9, 0), name="c"),),
                    2: (Launch(where="0,1,2", program=2, meant=(9, "other"), name="c"),),
                },
                queued=False,
            ),
        ),
        fault="other",
        guilty=frozenset({(9, 2)}),
        lateness=0.3,
    ),
    "a dead rank has what a cell made that is undone, with another one queued": Schedule(
        seed=72,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (Set("q", (1, 0)), Launch("0,1,2", 1, (1, 1), "c")),
                    1: (Set("q", (1, 0)),),
                    2: (Set("q", (1, 0)), Launch("0,1,2", 1, (1, 1), "c")),
                },
                queued=True,
            ),
            Program(number=2, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="refused",
        guilty=frozenset({(1, 1)}),
        keeps=Keeps(deaths=((0.8847561031936783, "rank", 1),)),
    ),
    "a rank that died before a cell was taken back has what it made": Schedule(
        seed=110,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=2,
                client=0,
                steps={
                    0: (Launch("0,1,2", 1, (2, 0), "a"), Set("o", (2, 0))),
                    1: (Launch("0,1,2", 1, (2, 0), "a"), Set("o", (2, 1))),
                    2: (Launch("0,1,2", 2, (2, "other"), "a"), Set("o", (2, 2))),
                },
                queued=False,
            ),
            Program(number=8, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="other",
        guilty=frozenset({(2, 2)}),
        keeps=Keeps(deaths=((0.15, "rank", 2),)),
    ),
    "what a dead rank had before a notebook's first cell is not said to be lost": Schedule(
        seed=100,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=3,
                client=1,
                steps={
                    0: (Set("p", (3, 0)), Set("n", 0)),
                    1: (Sleep(1.5), Set("p", (3, 0)), Set("n", 1)),
                    2: (Set("p", (3, 0)), Set("n", 2)),
                },
                queued=False,
            ),
            Program(
                number=1,
                client=0,
                steps={
                    0: (Sleep(1.5), Launch("0,1,2", 1, (1, 0), "b")),
                    1: (Launch("0,1,2", 1, (1, 0), "b"),),
                    2: (Launch("0,1,2", 1, (1, 0), "b"),),
                },
                queued=False,
            ),
        ),
        lateness=0.3,
        keeps=Keeps(
            nbytes=18000,
            deaths=((2.330719759551154, "rank", 1), (3.0369018199119138, "rank", 0)),
        ),
    ),
    "a cell is taken back while another one gives the ranks new processes": Schedule(
        seed=119,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Launch("0,1,2", 1, (1, 0), "b", ("b",)),
                        Launch("0,1,2", 2, (1, 1), "c", ("c",)),
                    ),
                    1: (
                        Launch("0,1,2", 1, (1, 0), "b", ("b",)),
                        Launch("0,1,2", 2, (1, 1), "c", ("c",)),
                    ),
                    2: (Launch("0,1,2", 2, (1, 1), "c", ("c",)),),
                },
                queued=True,
                timeout_s=0.11028765898841117,
            ),
            Program(number=8, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="refused",
        guilty=frozenset({(1, 2)}),
        lateness=0.3,
        keeps=Keeps(hosts=(0, 0, 1), is_on=False, deaths=((0.15834852288698442, "host", 1),)),
    ),
    "a rank has run what waits elsewhere for a cell that is taken back": Schedule(
        seed=1247,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    rank: (
                        Launch("0,1,2", 1, (1, 0), "b"),
                        Launch("0,1,2", 1, (1, 1), "b"),
                    )
                    for rank in (0, 2)
                },
                queued=True,
            ),
            Program(2, 0, {rank: (Set("p", (2, 0)),) for rank in range(3)}, True),
            Program(number=8, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="partial",
        guilty=frozenset({(1, 1)}),
        keeps=Keeps(is_on=False, deaths=((0.8734480861176012, "rank", 2),)),
    ),
    "what a copy brings back of an earlier cell is said to be undone": Schedule(
        seed=3883,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={rank: (Launch("0,1,2", 1, (1, 1), "a"),) for rank in (0, 1)},
                queued=True,
            ),
            Program(
                number=2,
                client=0,
                steps={
                    rank: (
                        *((Sleep(1.5),) if rank == 0 else ()),
                        Launch("0,1,2", 1, (2, 1), "c", ("c",)),
                        Launch("0,1,2", 1, (2, 2), "c", ("c",)),
                    )
                    for rank in range(3)
                },
                queued=False,
            ),
        ),
        fault="partial",
        guilty=frozenset({(1, 2)}),
        keeps=Keeps(deaths=((1.4178444703743416, "rank", 0),)),
    ),
    "a copy of after a cell is said to be of before it": Schedule(
        seed=1719,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=3,
                client=0,
                steps={
                    1: (
                        Launch("0,1", 1, (3, 0), "d"),
                        Launch("0,1,2", 1, (3, 1), "a", ("c",)),
                        Launch("0,1,2", 1, (3, 2), "c", ("b",)),
                        Launch("0,1", 1, (3, 3), "d"),
                    ),
                    2: (
                        Launch("0,1,2", 1, (3, 1), "a", ("c",)),
                        Launch("0,1,2", 1, (3, 2), "c", ("b",)),
                    ),
                },
                queued=True,
            ),
            Program(
                number=8,
                client=0,
                steps={
                    0: (Launch("0,1", 1, (8, 0), "d"),),
                    1: (Launch("0,1", 1, (8, 0), "d"),),
                    2: (),
                },
                queued=False,
            ),
        ),
        fault="partial",
        guilty=frozenset({(3, 0)}),
        keeps=Keeps(deaths=((1.0704856264626574, "rank", 1),)),
    ),
    "a rank ends a cell after it was saved, and before it is replaced": Schedule(
        seed=3079,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    rank: (
                        *((Sleep(0.5),) if rank == 0 else ()),
                        Launch("0,1,2", 2, (1, 1), "c"),
                        Set("q", (1, 3)),
                    )
                    for rank in range(3)
                },
                queued=True,
            ),
            Program(
                number=3,
                client=0,
                steps={
                    0: (Set("q", (3, 1)),),
                    1: (Set("q", (3, 1)),),
                    2: (Sleep(1.5), Set("q", (3, 1))),
                },
                queued=True,
            ),
            Program(number=8, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        keeps=Keeps(hosts=(0, 1, 1), deaths=((3.383797452247937, "rank", 0),), cut=0.1),
    ),
    "what met zeros is not looked for where a rank has died": Schedule(
        seed=68692,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=1,
                steps={
                    0: (
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                        Sleep(seconds=0.5),
                        Set(name="q", what=(1, 0)),
                        Launch(where="0,1", program=1, meant=(1, 1), name="d"),
                    ),
                    2: (
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                        Set(name="q", what=(1, 0)),
                    ),
                },
                queued=True,
                stop_at=0.050603479520550554,
            ),
        ),
        fault="partial",
        guilty=frozenset({(1, 1)}),
        death=(1.526178847188274, 2),
        lateness=0.3,
    ),
    "a cell is taken back while the other notebook replaces the ranks": Schedule(
        seed=2235568,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=1,
                steps={
                    0: (
                        Sleep(seconds=0.5),
                        Launch(where="0,1", program=1, meant=(1, 0), name="d"),
                        Print(name="d"),
                    ),
                    1: (Launch(where="0,1", program=1, meant=(1, 0), name="d"), Print(name="d")),
                    2: (Sleep(seconds=0.5), Print(name="d")),
                },
                queued=True,
            ),
            Program(
                number=2,
                client=1,
                steps={
                    0: (
                        Sleep(seconds=1.5),
                        Launch(where="0,1,2", program=2, meant=(2, 2), name="a"),
                        Print(name="a"),
                    ),
                    1: (
                        Sleep(seconds=0.01),
                        Launch(where="0,1,2", program=2, meant=(2, 2), name="a"),
                        Print(name="a"),
                    ),
                    2: (
                        Sleep(seconds=0.01),
                        Launch(where="0,1,2", program=2, meant=(2, 2), name="a"),
                        Print(name="a"),
                    ),
                },
                queued=False,
            ),
            Program(
                number=3,
                client=0,
                steps={
                    0: (Launch(where="0,1,2", program=1, meant=(3, 0), name="a"), Print(name="a")),
                    1: (Launch(where="0,1,2", program=1, meant=(3, 0), name="a"), Print(name="a")),
                    2: (Launch(where="0,1,2", program=1, meant=(3, 0), name="a"), Print(name="a")),
                },
                queued=False,
            ),
            Program(number=5, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        death=(1.7273295680064313, 2),
        lateness=0.3,
    ),
    "nobody hears of what another notebook's cell has bound": Schedule(
        seed=20,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=1,
                steps={0: (Set(name="o", what=(1, 0)),), 1: (Set(name="o", what=(1, 1)),)},
                queued=False,
            ),
            Program(number=8, client=0, steps={0: (), 1: (), 2: ()}, queued=False, pause_s=0.4),
        ),
        fault="partial",
        guilty=frozenset({(1, 2)}),
        keeps=Keeps(hosts=(0, 1, 2), is_on=False, deaths=((0.1084277724086996, "host", 1),)),
    ),
    "nobody hears of what another notebook takes back": Schedule(
        seed=2371,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=1,
                steps={
                    0: (Launch(where="0,1,2", program=1, meant=(1, 0), name="c", inputs=("a",)),),
                    1: (Launch(where="0,1,2", program=1, meant=(1, 0), name="c", inputs=("a",)),),
                    2: (
                        Launch(
                            where="0,1,2", program=2, meant=(1, "other"), name="c", inputs=("a",)
                        ),
                    ),
                },
                queued=False,
            ),
            Program(number=2, client=0, steps={0: (), 1: (), 2: ()}, queued=False, pause_s=1.5),
        ),
        fault="other",
        guilty=frozenset({(1, 2)}),
        lateness=0.3,
        keeps=Keeps(deaths=((1.004140057725866, "rank", 2),)),
    ),
    "a cell that ends after its rank was saved has ended well": Schedule(
        seed=4846,
        num_ranks=3,
        inline=False,
        programs=(
            Program(number=2, client=0, steps={0: (), 1: (), 2: ()}, queued=False, pause_s=1.5),
            Program(
                number=3,
                client=1,
                steps={
                    0: (Set(name="q", what=(3, 0)),),
                    1: (Sleep(seconds=1.5), Set(name="q", what=(3, 0))),
                    2: (Set(name="q", what=(3, 0)),),
                },
                queued=False,
                pause_s=0.05,
            ),
        ),
        fault="other",
        guilty=frozenset({(1, 0)}),
        keeps=Keeps(hosts=(0, 1, 2), deaths=((1.321208981517596, "host", 0),)),
    ),
    "of two cells that are taken back, a dead rank's copy has the first": Schedule(
        seed=38372,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    1: (Set(name="o", what=(1, 1)), Sleep(1.5), Launch("0,1", 1, (1, 0), "d")),
                    2: (),
                },
                queued=True,
                timeout_s=0.14197628656828515,
            ),
            Program(number=8, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="partial",
        guilty=frozenset({(1, 0)}),
        lateness=0.3,
        keeps=Keeps(deaths=((2.411506039012287, "rank", 1),)),
    ),
    "a circle with a cell of another notebook, whose own finding is in the way": Schedule(
        seed=10031766,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={1: (Launch(where="0,1", program=2, meant=(1, 0), name="d"),), 2: ()},
                queued=False,
            ),
            Program(
                number=2,
                client=1,
                steps={
                    0: (
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                        Launch(where="0,1,2", program=2, meant=(2, 0), name="c", inputs=("a",)),
                    ),
                    1: (
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                        Launch(where="0,1,2", program=2, meant=(2, 0), name="c", inputs=("a",)),
                    ),
                    2: (
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                        Launch(where="0,1,2", program=2, meant=(2, 0), name="c", inputs=("a",)),
                    ),
                },
                queued=False,
                stop_at=0.007436223124135544,
            ),
        ),
        fault="partial",
        guilty=frozenset({(1, 0)}),
        lateness=0.02,
        is_strict=True,
    ),
    "a rank announces in strict mode what a replay has made on another one": Schedule(
        seed=10124643,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=1,
                steps={
                    0: (
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                        Launch(where="0,1,2", program=2, meant=(1, 1), name="a"),
                    ),
                    1: (
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                        Catch(
                            steps=(
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(1, 1),
                                    name="a",
                                    is_refused=True,
                                ),
                            )
                        ),
                        Launch(where="0,1,2", program=2, meant=(1, 1), name="a"),
                    ),
                    2: (
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                        Catch(
                            steps=(
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(1, 1),
                                    name="a",
                                    is_refused=True,
                                ),
                            )
                        ),
                    ),
                },
                queued=False,
                stop_at=0.07113333661214659,
            ),
            Program(number=2, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="refused",
        guilty=frozenset({(1, 2)}),
        lateness=0.02,
        is_strict=True,
    ),
    "a rank that another notebook has stopped in a circle came no further": Schedule(
        seed=10217362,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=2,
                client=1,
                steps={
                    0: (
                        Print(name="d"),
                        Launch(where="0,1", program=1, meant=(2, 2), name="d"),
                        Print(name="d"),
                        Launch(where="0,1,2", program=2, meant=(2, 3), name="a"),
                        Launch(where="0,1", program=1, meant=(2, 4), name="d"),
                    ),
                    1: (
                        Print(name="d"),
                        Print(name="d"),
                        Launch(where="0,1,2", program=2, meant=(2, 3), name="a"),
                        Launch(where="0,1", program=1, meant=(2, 4), name="d"),
                    ),
                    2: (
                        Print(name="d"),
                        Print(name="d"),
                        Launch(where="0,1,2", program=2, meant=(2, 3), name="a"),
                    ),
                },
                queued=False,
            ),
            Program(number=3, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
            Program(number=4, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="refused",
        guilty=frozenset({(2, 1)}),
        lateness=0.02,
    ),
    "a rank that another notebook has stopped, behind two cells": Schedule(
        seed=10327415,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=3,
                client=1,
                steps={
                    0: (
                        Launch(where="0,1", program=1, meant=(3, 0), name="d"),
                        Print(name="d"),
                        Launch(where="0,1,2", program=1, meant=(3, 1), name="a", inputs=("b",)),
                        Launch(where="0,1", program=1, meant=(3, 2), name="d"),
                        Print(name="d"),
                    ),
                    1: (
                        Print(name="d"),
                        Launch(where="0,1,2", program=1, meant=(3, 1), name="a", inputs=("b",)),
                        Launch(where="0,1", program=1, meant=(3, 2), name="d"),
                        Print(name="d"),
                    ),
                    2: (
                        Print(name="d"),
                        Launch(where="0,1,2", program=1, meant=(3, 1), name="a", inputs=("b",)),
                        Print(name="d"),
                    ),
                },
                queued=False,
            ),
            Program(number=4, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="refused",
        guilty=frozenset({(3, 1)}),
        lateness=0.3,
    ),
    "two cells of one notebook settle at once, and one of them replaces the ranks": Schedule(
        seed=10638942,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Launch(where="0,1", program=2, meant=(1, 1), name="d"),
                        Print(name="d"),
                        Launch(where="0,1,2", program=1, meant=(1, 2), name="a"),
                    ),
                    2: (
                        Set(name="h", what=Own(number=1, rank=2)),
                        Print(name="d"),
                        Launch(where="0,1,2", program=1, meant=(1, 2), name="a"),
                    ),
                },
                queued=True,
            ),
            Program(
                number=2,
                client=0,
                steps={
                    0: (
                        Launch(where="0,1,2", program=2, meant=(2, 0), name="a", inputs=("a",)),
                        Print(name="a"),
                    ),
                    1: (
                        Set(name="n", what=1),
                        Launch(where="0,1,2", program=2, meant=(2, 0), name="a", inputs=("a",)),
                        Print(name="a"),
                    ),
                    2: (
                        Launch(where="0,1,2", program=2, meant=(2, 0), name="a", inputs=("a",)),
                        Print(name="a"),
                    ),
                },
                queued=True,
            ),
            Program(number=8, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="partial",
        guilty=frozenset({(1, 1)}),
        lateness=0.02,
        keeps=Keeps(),
    ),
    "a replay that is asked for late, of a cell that heard a stop and went on": Schedule(
        seed=10745642,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=1,
                steps={0: (), 1: (Sleep(seconds=1.5),), 2: (Sleep(seconds=1.5),)},
                queued=False,
            ),
            Program(
                number=2,
                client=0,
                steps={
                    0: (
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                        Sleep(seconds=1.5),
                        Launch(where="0,1,2", program=2, meant=(2, 0), name="b", inputs=("c",)),
                        Launch(where="0,1", program=1, meant=(2, 1), name="d"),
                    ),
                    1: (
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                        Launch(where="0,1,2", program=2, meant=(2, 0), name="b", inputs=("c",)),
                        Launch(where="0,1", program=1, meant=(2, 1), name="d"),
                    ),
                },
                queued=False,
                stop_at=1.0514667072439785,
            ),
        ),
        fault="partial",
        guilty=frozenset({(2, 2)}),
        lateness=0.3,
    ),
    "a stopped cell waits for ranks that wait for each other in another notebook": Schedule(
        seed=12163207,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=1,
                steps={
                    0: (
                        Sleep(seconds=0.5),
                        Launch(where="0,1,2", program=1, meant=(1, 1), name="b"),
                        Launch(where="0,1", program=1, meant=(1, 2), name="d"),
                    ),
                    1: (
                        Sleep(seconds=1.5),
                        Launch(where="0,1,2", program=1, meant=(1, 1), name="b"),
                        Launch(where="0,1", program=1, meant=(1, 2), name="d"),
                    ),
                    2: (
                        Sleep(seconds=1.5),
                        Launch(where="0,1,2", program=1, meant=(1, 1), name="b"),
                    ),
                },
                queued=False,
            ),
            Program(
                number=2,
                client=0,
                steps={
                    0: (Catch(steps=(Sleep(seconds=1.5),), of_stop=True),),
                    2: (
                        Catch(
                            steps=(Launch(where="0,1,2", program=1, meant=(2, 0), name="a"),),
                            of_stop=True,
                        ),
                    ),
                },
                queued=False,
                stop_at=0.06151441702030846,
            ),
        ),
        fault="partial",
        guilty=frozenset({(2, 1)}),
        lateness=0.02,
    ),
    "a notebook goes before it has undone what a rank has met with zeros": Schedule(
        seed=8068,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (Launch(where="0,1,2", program=1, meant=(1, 0), name="c", inputs=("a",)),),
                    1: (Launch(where="0,1,2", program=1, meant=(1, 0), name="c", inputs=("a",)),),
                    2: (Launch(where="0,1,2", program=1, meant=(1, 0), name="c", inputs=("a",)),),
                },
                queued=False,
            ),
            Program(
                number=2,
                client=1,
                steps={
                    0: (Launch(where="0,1,2", program=1, meant=(2, 1), name="a"),),
                    1: (
                        Sleep(seconds=0.5),
                        Raise(),
                        Launch(where="0,1,2", program=1, meant=(2, 1), name="a"),
                    ),
                    2: (
                        Sleep(seconds=0.5),
                        Launch(where="0,1,2", program=1, meant=(2, 1), name="a"),
                    ),
                },
                queued=False,
            ),
        ),
        fault="raise",
        guilty=frozenset({(2, 1)}),
        lateness=0.02,
        leaves_at=0.6295185103170549,
    ),
    "a notebook goes in a cell whose mixed programs have completed": Schedule(
        seed=48133,
        num_ranks=3,
        inline=False,
        programs=(
            Program(number=1, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
            Program(
                number=2,
                client=0,
                steps={
                    0: (
                        Launch(where="0,1,2", program=1, meant=(2, 0), name="b", inputs=("b",)),
                        Launch(where="0,1,2", program=2, meant=(2, 1), name="x", inputs=("a",)),
                    ),
                    1: (
                        Launch(where="0,1,2", program=1, meant=(2, 0), name="b", inputs=("b",)),
                        Launch(where="0,1,2", program=2, meant=(2, 1), name="x", inputs=("a",)),
                    ),
                    2: (
                        Launch(where="0,1,2", program=1, meant=(2, 0), name="b", inputs=("b",)),
                        Catch(
                            steps=(
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(2, 1),
                                    name="x",
                                    inputs=("a",),
                                    is_cut=True,
                                ),
                            )
                        ),
                    ),
                },
                queued=False,
            ),
            Program(
                number=3,
                client=1,
                steps={
                    0: (
                        Sleep(seconds=1.5),
                        Launch(
                            where="0,1,2", program=1, meant=(3, "other"), name="b", inputs=("c",)
                        ),
                    ),
                    1: (Launch(where="0,1,2", program=2, meant=(3, 1), name="b", inputs=("c",)),),
                    2: (Launch(where="0,1,2", program=2, meant=(3, 1), name="b", inputs=("c",)),),
                },
                queued=False,
            ),
        ),
        fault="other",
        guilty=frozenset({(3, 0)}),
        lateness=0.02,
        leaves_at=0.9183000579412108,
    ),
    "a notebook goes in a cell that strict mode has refused": Schedule(
        seed=78602,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=1,
                steps={
                    0: (
                        Launch(where="0,1,2", program=2, meant=(1, "extra"), name="c"),
                        Launch(where="0,1,2", program=2, meant=(1, 1), name="c"),
                        Launch(where="0,1,2", program=1, meant=(1, 2), name="b"),
                    ),
                    1: (
                        Launch(where="0,1,2", program=2, meant=(1, 1), name="c"),
                        Launch(where="0,1,2", program=1, meant=(1, 2), name="b"),
                    ),
                    2: (
                        Launch(where="0,1,2", program=2, meant=(1, 1), name="c"),
                        Launch(where="0,1,2", program=1, meant=(1, 2), name="b"),
                    ),
                },
                queued=False,
            ),
            Program(
                number=3,
                client=0,
                steps={
                    0: (Launch(where="0,1,2", program=1, meant=(3, 1), name="b", inputs=("c",)),),
                    1: (Launch(where="0,1,2", program=1, meant=(3, 1), name="b", inputs=("c",)),),
                    2: (Launch(where="0,1,2", program=1, meant=(3, 1), name="b", inputs=("c",)),),
                },
                queued=False,
            ),
        ),
        fault="extra",
        guilty=frozenset({(1, 0)}),
        lateness=0.02,
        is_strict=True,
        leaves_at=0.03385521060069485,
    ),
    "a notebook goes in a cell whose ranks have given launches up": Schedule(
        seed=122593,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=1,
                steps={
                    0: (
                        Launch(where="0,1,2", program=1, meant=(1, 0), name="b", inputs=("c",)),
                        Launch(where="0,1,2", program=1, meant=(1, 2), name="a", inputs=("c",)),
                    ),
                    1: (
                        Launch(where="0,1,2", program=1, meant=(1, 0), name="b", inputs=("c",)),
                        Launch(where="0,1,2", program=1, meant=(1, 2), name="a", inputs=("c",)),
                    ),
                    2: (Launch(where="0,1,2", program=1, meant=(1, 2), name="a", inputs=("c",)),),
                },
                queued=False,
                timeout_s=0.05421490255437211,
            ),
            Program(
                number=2,
                client=0,
                steps={0: (Print(name="b"),), 1: (Print(name="b"),), 2: (Print(name="b"),)},
                queued=False,
            ),
        ),
        fault="skip",
        guilty=frozenset({(1, 2)}),
        lateness=0.3,
        is_strict=True,
        leaves_at=1.234914323998886,
    ),
    "a notebook goes whose rank announces what others do not come to": Schedule(
        seed=10256,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Catch(
                            steps=(Launch(where="0,1,2", program=2, meant=(1, 1), name="b"),),
                            of_stop=True,
                        ),
                    ),
                    1: (
                        Catch(
                            steps=(Launch(where="0,1,2", program=2, meant=(1, 1), name="b"),),
                            of_stop=True,
                        ),
                    ),
                    2: (),
                },
                queued=False,
                stop_at=0.04463946034088161,
            ),
            Program(
                number=2,
                client=1,
                steps={
                    0: (),
                    1: (),
                    2: (Launch(where="0,1,2", program=2, meant=(2, "extra"), name="b"),),
                },
                queued=False,
            ),
        ),
        fault="shift",
        guilty=frozenset({(1, 2), (2, 2)}),
        lateness=0.02,
        is_strict=True,
        leaves_at=0.07579413189432649,
    ),
    "a stop that comes late hides that another's replay has met the cell": Schedule(
        seed=30046356,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=1,
                steps={
                    0: (
                        Sleep(seconds=0.01),
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                1,
                                0,
                            ),
                            name="a",
                            inputs=("b",),
                        ),
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                1,
                                1,
                            ),
                            name="b",
                            inputs=("b",),
                        ),
                    ),
                    1: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                1,
                                0,
                            ),
                            name="a",
                            inputs=("b",),
                        ),
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                1,
                                1,
                            ),
                            name="b",
                            inputs=("b",),
                        ),
                    ),
                },
                queued=True,
                stop_at=0.06582459320395496,
            ),
            Program(
                number=7,
                client=1,
                steps={0: (), 1: (), 2: ()},
                queued=False,
                stop_at=0.12625915423486478,
            ),
            Program(number=2, client=0, steps={0: (), 1: (), 2: ()}, queued=True),
            Program(number=3, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="partial",
        guilty=frozenset(
            {
                (
                    1,
                    2,
                )
            }
        ),
        lateness=0.3,
    ),
    "a launch that one rank makes once more meets what the others' threads launch": Schedule(
        seed=14026840,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Thread(
                            steps=(
                                Sleep(seconds=0.0),
                                Launch(where="0,1,2", program=1, meant=(1, 0), name="t"),
                                Sleep(seconds=0.4),
                            )
                        ),
                    ),
                    1: (
                        Thread(
                            steps=(
                                Sleep(seconds=0.2),
                                Launch(where="0,1,2", program=1, meant=(1, 0), name="t"),
                                Sleep(seconds=0.4),
                            )
                        ),
                    ),
                    2: (
                        Thread(
                            steps=(
                                Sleep(seconds=0.2),
                                Launch(where="0,1,2", program=1, meant=(1, 0), name="t"),
                                Sleep(seconds=0.4),
                            )
                        ),
                    ),
                },
                queued=True,
            ),
            Program(
                number=9,
                client=0,
                steps={
                    0: (
                        Launch(where="0,1,2", program=1, meant=(9, "extra"), name="c"),
                        Print(name="c"),
                    ),
                    1: (Print(name="c"),),
                    2: (Print(name="c"),),
                },
                queued=False,
            ),
        ),
        fault="extra",
        guilty=frozenset({(9, 0)}),
        lateness=0.02,
    ),
    "a stop is raised on some ranks before a name is bound": Schedule(
        seed=30118803,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Repeat(
                            times=200,
                            steps=(
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(
                                        1,
                                        0,
                                    ),
                                    name="a",
                                ),
                                Sleep(seconds=0.1),
                            ),
                        ),
                    ),
                    1: (
                        Repeat(
                            times=200,
                            steps=(
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(
                                        1,
                                        0,
                                    ),
                                    name="a",
                                ),
                                Sleep(seconds=0.1),
                            ),
                        ),
                    ),
                    2: (
                        Repeat(
                            times=200,
                            steps=(
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(
                                        1,
                                        0,
                                    ),
                                    name="a",
                                ),
                                Sleep(seconds=0.1),
                            ),
                        ),
                    ),
                },
                queued=True,
                interrupt_at=0.5075865613667966,
            ),
            Program(
                number=2,
                client=0,
                steps={
                    0: (
                        Launch(
                            where="0,1,2",
                            program=2,
                            meant=(
                                2,
                                0,
                            ),
                            name="c",
                            inputs=("a",),
                        ),
                    ),
                    1: (
                        Launch(
                            where="0,1,2",
                            program=2,
                            meant=(
                                2,
                                0,
                            ),
                            name="c",
                            inputs=("a",),
                        ),
                    ),
                    2: (
                        Launch(
                            where="0,1,2",
                            program=2,
                            meant=(
                                2,
                                0,
                            ),
                            name="c",
                            inputs=("a",),
                        ),
                    ),
                },
                queued=False,
            ),
        ),
        lateness=0.3,
        is_raised_early=True,
    ),
    "a notebook goes whose cell has not come to all ranks": Schedule(
        seed=3727,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={0: (Sleep(seconds=0.01),), 1: (), 2: (Sleep(seconds=0.01),)},
                queued=False,
            ),
            Program(
                number=3,
                client=1,
                steps={
                    0: (Launch(where="0,1,2", program=1, meant=(3, 0), name="c", inputs=("b",)),),
                    1: (Launch(where="0,1,2", program=1, meant=(3, 0), name="c", inputs=("b",)),),
                    2: (Launch(where="0,1,2", program=1, meant=(3, 0), name="c", inputs=("b",)),),
                },
                queued=False,
            ),
        ),
        lateness=0.3,
        leaves_at=0.02,
        leaver=0,
    ),
    "a notebook goes whose cell has met the next one of a rank that it has not come to": Schedule(
        seed=20512,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=2,
                client=0,
                steps={
                    0: (Launch(where="0,1", program=1, meant=(2, 0), name="d"),),
                    1: (Launch(where="0,1", program=1, meant=(2, 0), name="d"),),
                    2: (),
                },
                queued=False,
            ),
            Program(
                number=30,
                client=2,
                steps={
                    0: (
                        Launch(where="0,1", program=1, meant=(30, 0), name="d"),
                        Launch(where="0,1,2", program=1, meant=(30, 1), name="c"),
                    ),
                    1: (
                        Launch(where="0,1", program=1, meant=(30, 0), name="d"),
                        Launch(where="0,1,2", program=1, meant=(30, 1), name="c"),
                    ),
                    2: (Launch(where="0,1,2", program=1, meant=(30, 1), name="c"),),
                },
                queued=False,
            ),
        ),
        lateness=0.3,
        leaves_at=0.02,
        leaver=0,
    ),
    "a loop that another notebook has stopped leaves a name of different steps": Schedule(
        seed=31113386,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Repeat(
                            times=200,
                            steps=(
                                Sleep(seconds=0.1),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        1,
                                        0,
                                    ),
                                    name="b",
                                ),
                            ),
                        ),
                    ),
                    1: (
                        Repeat(
                            times=200,
                            steps=(
                                Sleep(seconds=0.1),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        1,
                                        0,
                                    ),
                                    name="b",
                                ),
                            ),
                        ),
                    ),
                    2: (
                        Repeat(
                            times=200,
                            steps=(
                                Sleep(seconds=0.1),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        1,
                                        0,
                                    ),
                                    name="b",
                                ),
                            ),
                        ),
                    ),
                },
                queued=False,
                interrupt_at=0.2514271251331387,
            ),
            Program(
                number=3,
                client=0,
                steps={
                    0: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                3,
                                1,
                            ),
                            name="b",
                            inputs=("b",),
                        ),
                    ),
                    1: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                3,
                                1,
                            ),
                            name="b",
                            inputs=("b",),
                        ),
                    ),
                    2: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                3,
                                1,
                            ),
                            name="b",
                            inputs=("b",),
                        ),
                    ),
                },
                queued=False,
            ),
        ),
        fault="raise",
        guilty=frozenset(
            {
                (
                    2,
                    1,
                )
            }
        ),
        lateness=0.3,
        donates=True,
        is_raised_early=True,
    ),
    "a px on some ranks waits in strict mode while a cell before it is brought back": Schedule(
        seed=618,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=1,
                steps={0: (), 1: (Sleep(seconds=1.5),), 2: ()},
                queued=True,
            ),
            Program(
                number=20,
                client=0,
                steps={
                    0: (Launch(where="0,1,2", program=3, meant=(20, 1), name="x"),),
                    1: (Launch(where="0,1,2", program=3, meant=(20, 1), name="x"),),
                },
                queued=False,
                pause_s=0.3,
                act=("px", ""),
            ),
            Program(number=3, client=1, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="px",
        lateness=0.02,
        is_strict=True,
    ),
    "a thread's launch is refused in strict mode while a px waits with another": Schedule(
        seed=1320,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    rank: (
                        Thread(
                            steps=(
                                Sleep(seconds=seconds),
                                Launch(where="0,1,2", program=2, meant=(1, 0), name="t"),
                            )
                        ),
                    )
                    for rank, seconds in enumerate((0.2, 0.2, 3.0))
                },
                queued=False,
            ),
            Program(
                number=20,
                client=0,
                steps={
                    0: (Launch(where="0,1,2", program=3, meant=(20, 1), name="x"),),
                    1: (Launch(where="0,1,2", program=3, meant=(20, 1), name="x"),),
                    2: (Launch(where="0,1,2", program=3, meant=(20, 1), name="x"),),
                },
                queued=False,
                pause_s=0.3,
                act=("px", ""),
            ),
            Program(
                number=9,
                client=0,
                steps={
                    0: (Join(), Launch(where="0,1,2", program=2, meant=(9, 0), name="b")),
                    1: (Join(), Launch(where="0,1,2", program=2, meant=(9, 0), name="b")),
                    2: (Join(), Launch(where="0,1,2", program=2, meant=(9, 0), name="b")),
                },
                queued=False,
            ),
        ),
        fault="px",
        lateness=0.02,
        is_strict=True,
    ),
    "a thread waits in strict mode while a px before it is refused": Schedule(
        seed=25910,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    rank: (
                        Thread(
                            steps=(
                                Sleep(seconds=seconds),
                                Launch(where="0,1,2", program=1, meant=(1, 0), name="t"),
                                Sleep(seconds=0.01 if rank == 2 else 0.4),
                                Launch(where="0,1,2", program=1, meant=(1, 1), name="t"),
                            )
                        ),
                    )
                    for rank, seconds in enumerate((3.0, 1.5, 1.5))
                },
                queued=False,
            ),
            Program(number=3, client=0, steps={0: (), 1: (), 2: ()}, queued=True),
            Program(
                number=20,
                client=0,
                steps={
                    0: (Launch(where="0,1,2", program=3, meant=(20, 1), name="x"),),
                    1: (Launch(where="0,1,2", program=3, meant=(20, 1), name="x"),),
                },
                queued=False,
                act=("px", ""),
            ),
            Program(
                number=9,
                client=0,
                steps={
                    0: (Join(),),
                    1: (Join(),),
                    2: (Join(), Launch(where="0,1,2", program=1, meant=(9, 0), name="x")),
                },
                queued=False,
            ),
        ),
        fault="refused",
        guilty=frozenset({(9, 0)}),
        lateness=0.3,
        is_strict=True,
    ),
    "a rank in the compiler waits for one that waits for it in a launch": Schedule(
        seed=57,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (Launch(where="0,1,2", program=1, meant=(1, 0), name="b", inputs=("c",)),),
                    2: (Launch(where="0,1,2", program=1, meant=(1, 0), name="b", inputs=("c",)),),
                },
                queued=True,
            ),
            Program(
                number=2,
                client=0,
                steps={
                    0: (
                        Launch(where="0,1,2", program=1, meant=(2, 0), name="b"),
                        Launch(where="0,1", program=1, meant=(2, 1), name="d"),
                    ),
                    1: (
                        Launch(where="0,1,2", program=1, meant=(2, 0), name="b"),
                        Launch(where="0,1", program=1, meant=(2, 1), name="d"),
                    ),
                    2: (Launch(where="0,1,2", program=1, meant=(2, 0), name="b"),),
                },
                queued=False,
            ),
        ),
        fault="partial",
        guilty=frozenset({(1, 1)}),
        lateness=0.3,
        is_tuned=True,
    ),
    "a px is compiled on one rank while a thread of it launches": Schedule(
        seed=16731,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    rank: (
                        Thread(
                            (
                                Sleep(slow),
                                Launch(where="0,1,2", program=2, meant=(1, 0), name="t"),
                                Sleep(0.01),
                                Launch(where="0,1,2", program=2, meant=(1, 1), name="t"),
                            )
                        ),
                    )
                    for rank, slow in ((0, 1.5), (1, 3.0), (2, 1.5))
                },
                queued=False,
            ),
            Program(
                number=9,
                client=0,
                steps={
                    0: (Join(), Launch(where="0,1", program=1, meant=(9, 0), name="d")),
                    1: (Join(),),
                    2: (Join(),),
                },
                queued=False,
            ),
            Program(
                number=20,
                client=1,
                steps={0: (Launch(where="0,1,2", program=3, meant=(20, 1), name="x"),)},
                queued=False,
                pause_s=1.0,
                act=("px", ""),
            ),
        ),
        fault="caught",
        guilty=frozenset({(9, 1)}),
        is_tuned=True,
    ),
    "a px begins on some ranks between the look of an undo and the undo": Schedule(
        seed=5,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=2,
                client=0,
                steps={rank: (Set(name="q", what=(2, 0)),) for rank in range(3)},
                queued=False,
            ),
            Program(number=21, client=0, steps={}, queued=False, pause_s=0.02, act=("undo", "a")),
            Program(
                number=20,
                client=1,
                steps={rank: (Set(name="x", what=(20, 0)),) for rank in range(3)},
                queued=False,
                pause_s=0.03,
                act=("px", ""),
            ),
        ),
        lateness=0.02,
    ),
    "a px meets a launch of a stopped cell that one rank was refused": Schedule(
        seed=23842,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Launch(
                            where="0,1,2",
                            program=2,
                            meant=(
                                1,
                                0,
                            ),
                            name="a",
                        ),
                    ),
                    1: (
                        Launch(
                            where="0,1,2",
                            program=2,
                            meant=(
                                1,
                                0,
                            ),
                            name="a",
                        ),
                    ),
                    2: (
                        Catch(
                            steps=(
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(
                                        1,
                                        0,
                                    ),
                                    name="a",
                                    is_refused=True,
                                ),
                            )
                        ),
                    ),
                },
                queued=True,
                stop_at=0.5326727068250674,
            ),
            Program(
                number=3,
                client=0,
                steps={
                    0: (
                        Launch(
                            where="0,1,2",
                            program=2,
                            meant=(
                                3,
                                0,
                            ),
                            name="c",
                        ),
                    ),
                    1: (
                        Launch(
                            where="0,1,2",
                            program=2,
                            meant=(
                                3,
                                0,
                            ),
                            name="c",
                        ),
                    ),
                    2: (
                        Launch(
                            where="0,1,2",
                            program=2,
                            meant=(
                                3,
                                0,
                            ),
                            name="c",
                        ),
                    ),
                },
                queued=False,
            ),
            Program(
                number=20,
                client=1,
                steps={
                    0: (
                        Launch(
                            where="0,1,2",
                            program=3,
                            meant=(
                                20,
                                1,
                            ),
                            name="x",
                        ),
                    ),
                    1: (
                        Launch(
                            where="0,1,2",
                            program=3,
                            meant=(
                                20,
                                1,
                            ),
                            name="x",
                        ),
                    ),
                    2: (
                        Launch(
                            where="0,1,2",
                            program=3,
                            meant=(
                                20,
                                1,
                            ),
                            name="x",
                        ),
                    ),
                },
                queued=False,
                pause_s=0.02,
                act=(
                    "px",
                    "",
                ),
            ),
        ),
        fault="refused",
        guilty=frozenset(
            {
                (
                    1,
                    2,
                )
            }
        ),
        is_strict=True,
    ),
    "a launch of a stopped cell has met one of a thread, and ranks are even": Schedule(
        seed=14726,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Thread(
                            steps=(
                                Sleep(seconds=3.0),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        1,
                                        0,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.4),
                            )
                        ),
                    ),
                    1: (
                        Thread(
                            steps=(
                                Sleep(seconds=0.2),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        1,
                                        0,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.01),
                            )
                        ),
                    ),
                    2: (
                        Thread(
                            steps=(
                                Sleep(seconds=3.0),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        1,
                                        0,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.4),
                            )
                        ),
                    ),
                },
                queued=False,
            ),
            Program(
                number=20,
                client=0,
                steps={
                    0: (
                        Launch(
                            where="0,1,2",
                            program=3,
                            meant=(
                                20,
                                1,
                            ),
                            name="x",
                        ),
                    ),
                    2: (
                        Launch(
                            where="0,1,2",
                            program=3,
                            meant=(
                                20,
                                1,
                            ),
                            name="x",
                        ),
                    ),
                },
                queued=False,
                act=(
                    "px",
                    "",
                ),
            ),
            Program(number=2, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
            Program(
                number=9,
                client=0,
                steps={
                    0: (
                        Join(),
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                9,
                                0,
                            ),
                            name="c",
                            inputs=("a",),
                        ),
                    ),
                    1: (
                        Join(),
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                9,
                                0,
                            ),
                            name="c",
                            inputs=("a",),
                        ),
                    ),
                    2: (Join(),),
                },
                queued=False,
                stop_at=1.3293940822215524,
            ),
        ),
        fault="skip",
        guilty=frozenset(
            {
                (
                    9,
                    2,
                )
            }
        ),
    ),
    "a launch too many has met one of a thread, and ranks are even at the cell's end": Schedule(
        seed=8,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Thread(
                            steps=(
                                Sleep(seconds=0.2),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        1,
                                        0,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.01),
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(
                                        1,
                                        1,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.4),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        1,
                                        2,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.01),
                            )
                        ),
                    ),
                    1: (
                        Thread(
                            steps=(
                                Sleep(seconds=0.0),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        1,
                                        0,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.01),
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(
                                        1,
                                        1,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.01),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        1,
                                        2,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.01),
                            )
                        ),
                    ),
                    2: (
                        Thread(
                            steps=(
                                Sleep(seconds=3.0),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        1,
                                        0,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.01),
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(
                                        1,
                                        1,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.01),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        1,
                                        2,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.01),
                            )
                        ),
                    ),
                },
                queued=False,
            ),
            Program(
                number=2,
                client=0,
                steps={
                    0: (),
                    1: (),
                    2: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                2,
                                "extra",
                            ),
                            name="e",
                        ),
                    ),
                },
                queued=False,
            ),
        ),
        fault="extra",
        guilty=frozenset(
            {
                (
                    2,
                    2,
                )
            }
        ),
    ),
    "a launch too many has met one of a timer, in a cell that is left to those behind it": Schedule(
        seed=4693,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Late(
                            seconds=0.05,
                            steps=(
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(
                                        1,
                                        0,
                                    ),
                                    name="t",
                                ),
                            ),
                        ),
                    ),
                    1: (
                        Late(
                            seconds=3.05,
                            steps=(
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(
                                        1,
                                        0,
                                    ),
                                    name="t",
                                ),
                            ),
                        ),
                    ),
                    2: (
                        Late(
                            seconds=0.25,
                            steps=(
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(
                                        1,
                                        0,
                                    ),
                                    name="t",
                                ),
                            ),
                        ),
                    ),
                },
                queued=True,
            ),
            Program(
                number=2,
                client=0,
                steps={
                    0: (Sleep(seconds=0.01, awaits=True),),
                    1: (Sleep(seconds=0.01, awaits=True),),
                    2: (
                        Sleep(seconds=0.01, awaits=True),
                        Sleep(seconds=0.01, awaits=True),
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                2,
                                "extra",
                            ),
                            name="e",
                        ),
                    ),
                },
                queued=True,
            ),
            Program(number=9, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="extra",
        guilty=frozenset(
            {
                (
                    2,
                    2,
                )
            }
        ),
    ),
    "a rank is in a circle of other cells, and its next cell waits for ever": Schedule(
        seed=116531,
        num_ranks=3,
        inline=False,
        programs=(
            Program(number=1, client=1, steps={0: (), 1: (), 2: ()}, queued=True),
            Program(
                number=2, client=0, steps={0: (Sleep(seconds=0.5),), 1: (), 2: ()}, queued=True
            ),
            Program(
                number=4,
                client=0,
                steps={
                    0: (
                        Launch(
                            where="0,1",
                            program=1,
                            meant=(
                                4,
                                2,
                            ),
                            name="d",
                        ),
                        Print(name="d"),
                    ),
                    1: (
                        Launch(
                            where="0,1",
                            program=1,
                            meant=(
                                4,
                                2,
                            ),
                            name="d",
                        ),
                        Print(name="d"),
                    ),
                    2: (Print(name="d"),),
                },
                queued=False,
            ),
            Program(
                number=5,
                client=1,
                steps={
                    0: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                5,
                                2,
                            ),
                            name="c",
                        ),
                    ),
                    1: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                5,
                                2,
                            ),
                            name="c",
                        ),
                    ),
                    2: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                5,
                                2,
                            ),
                            name="c",
                        ),
                    ),
                },
                queued=False,
            ),
            Program(number=30, client=2, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="swap",
        guilty=frozenset(
            {
                (
                    5,
                    0,
                )
            }
        ),
        leaves_at=0.4572673790357151,
        leaver=0,
        cut_off=0.2,
    ),
    "a cell that was late has met one that nobody finds anything of": Schedule(
        seed=197561,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=1,
                steps={
                    0: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                1,
                                0,
                            ),
                            name="c",
                            inputs=("c",),
                        ),
                        Launch(
                            where="0,1",
                            program=1,
                            meant=(
                                1,
                                1,
                            ),
                            name="d",
                        ),
                    ),
                    1: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                1,
                                0,
                            ),
                            name="c",
                            inputs=("c",),
                        ),
                        Launch(
                            where="0,1",
                            program=2,
                            meant=(
                                1,
                                "other",
                            ),
                            name="d",
                        ),
                    ),
                    2: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                1,
                                0,
                            ),
                            name="c",
                            inputs=("c",),
                        ),
                    ),
                },
                queued=False,
            ),
            Program(
                number=2,
                client=0,
                steps={
                    0: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                2,
                                1,
                            ),
                            name="a",
                        ),
                    ),
                    1: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                2,
                                1,
                            ),
                            name="a",
                        ),
                    ),
                    2: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                2,
                                1,
                            ),
                            name="a",
                        ),
                    ),
                },
                queued=False,
            ),
        ),
        fault="other",
        guilty=frozenset(
            {
                (
                    1,
                    1,
                )
            }
        ),
        cut_off=0.2,
    ),
    "a thread launches while ranks are told to count from zero": Schedule(
        seed=4805,
        num_ranks=3,
        inline=True,
        programs=(
            Program(number=1, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
            Program(
                number=2,
                client=0,
                steps={
                    0: (
                        Launch(
                            where="0,1,2",
                            program=2,
                            meant=(
                                2,
                                1,
                            ),
                            name="b",
                        ),
                    ),
                    1: (
                        Launch(
                            where="0,1,2",
                            program=2,
                            meant=(
                                2,
                                1,
                            ),
                            name="b",
                        ),
                    ),
                    2: (
                        Launch(
                            where="0,1,2",
                            program=2,
                            meant=(
                                2,
                                1,
                            ),
                            name="b",
                        ),
                    ),
                },
                queued=False,
            ),
            Program(
                number=3,
                client=0,
                steps={
                    0: (
                        Thread(
                            steps=(
                                Sleep(seconds=0.2),
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(
                                        3,
                                        70,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=1.5),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        3,
                                        71,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=1.5),
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(
                                        3,
                                        72,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.4),
                            )
                        ),
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                3,
                                0,
                            ),
                            name="b",
                            inputs=("c",),
                        ),
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                3,
                                1,
                            ),
                            name="c",
                        ),
                    ),
                    1: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                3,
                                0,
                            ),
                            name="b",
                            inputs=("c",),
                        ),
                        Thread(
                            steps=(
                                Sleep(seconds=0.0),
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(
                                        3,
                                        70,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.01),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        3,
                                        71,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.01),
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(
                                        3,
                                        72,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.01),
                            )
                        ),
                    ),
                    2: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                3,
                                0,
                            ),
                            name="b",
                            inputs=("c",),
                        ),
                        Thread(
                            steps=(
                                Sleep(seconds=0.01),
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(
                                        3,
                                        70,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.01),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        3,
                                        71,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=1.5),
                                Launch(
                                    where="0,1,2",
                                    program=2,
                                    meant=(
                                        3,
                                        72,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.4),
                            )
                        ),
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                3,
                                1,
                            ),
                            name="c",
                        ),
                    ),
                },
                queued=False,
            ),
            Program(
                number=9,
                client=0,
                steps={
                    0: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                9,
                                0,
                            ),
                            name="a",
                        ),
                    ),
                    1: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                9,
                                0,
                            ),
                            name="a",
                        ),
                    ),
                    2: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                9,
                                0,
                            ),
                            name="a",
                        ),
                    ),
                },
                queued=False,
            ),
        ),
        fault="threads",
        lateness=0.3,
    ),
    "a thread's launch meets one that a cell has ended without": Schedule(
        seed=1244,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Thread(
                            steps=(
                                Sleep(seconds=0.01),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        1,
                                        70,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.4),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        1,
                                        71,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.01),
                            )
                        ),
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                1,
                                1,
                            ),
                            name="b",
                        ),
                    ),
                    1: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                1,
                                1,
                            ),
                            name="b",
                        ),
                        Thread(
                            steps=(
                                Sleep(seconds=0.01),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        1,
                                        70,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=1.5),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        1,
                                        71,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.4),
                            )
                        ),
                    ),
                    2: (
                        Thread(
                            steps=(
                                Sleep(seconds=3.0),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        1,
                                        70,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.01),
                                Launch(
                                    where="0,1,2",
                                    program=1,
                                    meant=(
                                        1,
                                        71,
                                    ),
                                    name="t",
                                ),
                                Sleep(seconds=0.01),
                            )
                        ),
                    ),
                },
                queued=False,
            ),
            Program(
                number=2,
                client=0,
                steps={
                    0: (
                        Launch(
                            where="0,1",
                            program=1,
                            meant=(
                                2,
                                0,
                            ),
                            name="d",
                        ),
                        Print(name="d"),
                    ),
                    1: (
                        Launch(
                            where="0,1",
                            program=1,
                            meant=(
                                2,
                                0,
                            ),
                            name="d",
                        ),
                        Print(name="d"),
                    ),
                    2: (Print(name="d"),),
                },
                queued=False,
            ),
        ),
        fault="refused",
        guilty=frozenset(
            {
                (
                    1,
                    2,
                )
            }
        ),
        donates=True,
    ),
    "a px beside a cell that one rank was not sent, which was stopped": Schedule(
        seed=48982,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=20,
                client=0,
                steps={
                    0: (
                        Set(
                            name="q",
                            what=(
                                20,
                                0,
                            ),
                        ),
                        Launch(
                            where="0,1,2",
                            program=3,
                            meant=(
                                20,
                                1,
                            ),
                            name="x",
                        ),
                    ),
                    1: (
                        Set(
                            name="q",
                            what=(
                                20,
                                0,
                            ),
                        ),
                        Launch(
                            where="0,1,2",
                            program=3,
                            meant=(
                                20,
                                1,
                            ),
                            name="x",
                        ),
                    ),
                    2: (
                        Set(
                            name="q",
                            what=(
                                20,
                                0,
                            ),
                        ),
                        Launch(
                            where="0,1,2",
                            program=3,
                            meant=(
                                20,
                                1,
                            ),
                            name="x",
                        ),
                    ),
                },
                queued=False,
                pause_s=0.3,
                act=(
                    "px",
                    "",
                ),
            ),
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                        Sleep(seconds=0.01),
                        Launch(
                            where="0,1,2",
                            program=2,
                            meant=(
                                1,
                                0,
                            ),
                            name="b",
                            inputs=("a",),
                        ),
                        Print(name="b"),
                        Launch(
                            where="0,1",
                            program=2,
                            meant=(
                                1,
                                1,
                            ),
                            name="d",
                        ),
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                1,
                                2,
                            ),
                            name="b",
                        ),
                    ),
                    2: (
                        Catch(steps=(Sleep(seconds=1.5),), of_stop=True),
                        Sleep(seconds=0.5),
                        Launch(
                            where="0,1,2",
                            program=2,
                            meant=(
                                1,
                                0,
                            ),
                            name="b",
                            inputs=("a",),
                        ),
                        Print(name="b"),
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                1,
                                2,
                            ),
                            name="b",
                        ),
                    ),
                },
                queued=True,
                stop_at=0.9516038891943384,
            ),
            Program(
                number=2,
                client=0,
                steps={
                    0: (
                        Sleep(seconds=1.5),
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                2,
                                0,
                            ),
                            name="c",
                        ),
                    ),
                    1: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                2,
                                0,
                            ),
                            name="c",
                        ),
                    ),
                    2: (
                        Launch(
                            where="0,1,2",
                            program=1,
                            meant=(
                                2,
                                0,
                            ),
                            name="c",
                        ),
                    ),
                },
                queued=False,
            ),
        ),
        fault="partial",
        guilty=frozenset(
            {
                (
                    1,
                    1,
                )
            }
        ),
    ),
    "what only a dead rank had, of which no word has come": Schedule(
        seed=40027646,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=1,
                steps={
                    0: (
                        Catch(steps=(Sleep(seconds=0.5), Set(name="q", what=(1, 0))), of_stop=True),
                    ),
                    1: (
                        Set(name="o", what=(1, 1)),
                        Catch(steps=(Set(name="q", what=(1, 0)),), of_stop=True),
                    ),
                    2: (
                        Catch(steps=(Sleep(seconds=1.5), Set(name="q", what=(1, 0))), of_stop=True),
                    ),
                },
                queued=False,
                stop_at=0.37079805413029976,
            ),
            Program(number=2, client=0, steps={0: (), 1: (), 2: ()}, queued=False, pause_s=0.05),
        ),
        is_strict=True,
        keeps=Keeps(hosts=(0, 1, 1), nbytes=7000, deaths=((0.2019266888341657, "rank", 1),)),
    ),
    "a later cell's thread launches while ranks wait at an earlier gate": Schedule(
        seed=30084602,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=1,
                client=0,
                steps={
                    0: (
                        Thread(
                            steps=(
                                Sleep(seconds=1.5),
                                Launch(where="0,1,2", program=2, meant=(1, 0), name="t"),
                                Sleep(seconds=0.4),
                                Launch(where="0,1,2", program=1, meant=(1, 1), name="t"),
                                Sleep(seconds=0.4),
                                Launch(where="0,1,2", program=1, meant=(1, 2), name="t"),
                                Sleep(seconds=0.01),
                            )
                        ),
                    ),
                    1: (
                        Thread(
                            steps=(
                                Sleep(seconds=0.0),
                                Launch(where="0,1,2", program=2, meant=(1, 0), name="t"),
                                Sleep(seconds=0.01),
                                Launch(where="0,1,2", program=1, meant=(1, 1), name="t"),
                                Sleep(seconds=0.4),
                                Launch(where="0,1,2", program=1, meant=(1, 2), name="t"),
                                Sleep(seconds=0.4),
                            )
                        ),
                    ),
                    2: (
                        Thread(
                            steps=(
                                Sleep(seconds=1.5),
                                Launch(where="0,1,2", program=2, meant=(1, 0), name="t"),
                                Sleep(seconds=0.01),
                                Launch(where="0,1,2", program=1, meant=(1, 1), name="t"),
                                Sleep(seconds=0.4),
                                Launch(where="0,1,2", program=1, meant=(1, 2), name="t"),
                                Sleep(seconds=0.4),
                            )
                        ),
                    ),
                },
                queued=True,
            ),
            Program(
                number=9,
                client=0,
                steps={
                    0: (Launch(where="0,1", program=1, meant=(9, 0), name="d"),),
                    1: (Launch(where="0,1", program=2, meant=(9, "other"), name="d"),),
                    2: (),
                },
                queued=False,
            ),
            Program(
                number=7,
                client=1,
                steps={0: (), 1: (), 2: ()},
                queued=False,
                stop_at=0.044006897098744314,
            ),
        ),
        fault="other",
        guilty=frozenset({(9, 1)}),
        lateness=0.3,
        donates=True,
    ),
    "another notebook finds what ranks announce no more, since they were interrupted": Schedule(
        seed=744039,
        num_ranks=3,
        inline=False,
        programs=(
            Program(number=1, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
            Program(
                number=2,
                client=1,
                steps={
                    0: (Launch(where="0,1,2", program=1, meant=(2, 1), name="a"),),
                    1: (Launch(where="0,1,2", program=1, meant=(2, 1), name="a"),),
                    2: (Launch(where="0,1,2", program=1, meant=(2, 1), name="a"),),
                },
                queued=True,
            ),
            Program(
                number=3,
                client=1,
                steps={
                    0: (
                        Launch(where="0,1,2", program=1, meant=(3, 2), name="b", inputs=("a",)),
                        Launch(where="0,1,2", program=2, meant=(3, 3), name="a", inputs=("b",)),
                    ),
                    1: (Launch(where="0,1,2", program=2, meant=(3, 3), name="a", inputs=("b",)),),
                    2: (
                        Launch(where="0,1,2", program=1, meant=(3, 2), name="b", inputs=("a",)),
                        Launch(where="0,1,2", program=2, meant=(3, 3), name="a", inputs=("b",)),
                    ),
                },
                queued=False,
            ),
        ),
        fault="skip",
        guilty=frozenset({(3, 1)}),
        is_strict=True,
        is_tuned=True,
    ),
    "new processes come while a cell behind one that was taken back runs": Schedule(
        seed=30081590,
        num_ranks=3,
        inline=False,
        programs=(
            Program(
                number=2,
                client=0,
                steps={
                    0: (Sleep(seconds=1.5),),
                    1: (),
                    2: (Set(name="o", what=(2, 2)), Sleep(seconds=1.5)),
                },
                queued=True,
            ),
            Program(
                number=3,
                client=1,
                steps={
                    0: (Launch(where="0,1", program=1, meant=(3, 0), name="d"),),
                    1: (Raise(), Launch(where="0,1", program=1, meant=(3, 0), name="d")),
                    2: (),
                },
                queued=False,
            ),
            Program(number=20, client=0, steps={}, queued=False, pause_s=1.0, act=("restart", "")),
        ),
        fault="raise",
        guilty=frozenset({(3, 1)}),
        keeps=Keeps(),
        donates=True,
    ),
    "another notebook finds a circle in which ranks announce no more": Schedule(
        seed=8005960,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=1,
                steps={
                    0: (
                        Launch(where="0,1", program=1, meant=(1, 0), name="d"),
                        Launch(where="0,1,2", program=1, meant=(1, 2), name="b", inputs=("b",)),
                    ),
                    1: (
                        Launch(where="0,1", program=1, meant=(1, 0), name="d"),
                        Launch(where="0,1", program=1, meant=(1, 1), name="d"),
                        Launch(where="0,1,2", program=1, meant=(1, 2), name="b", inputs=("b",)),
                    ),
                    2: (Launch(where="0,1,2", program=1, meant=(1, 2), name="b", inputs=("b",)),),
                },
                queued=False,
            ),
            Program(number=2, client=0, steps={0: (), 1: (), 2: ()}, queued=False),
        ),
        fault="skip",
        guilty=frozenset({(1, 0)}),
        lateness=0.3,
        is_strict=True,
        is_tuned=True,
    ),
    "a restart beside another notebook's cell that goes wrong": Schedule(
        seed=71339397,
        num_ranks=3,
        inline=True,
        programs=(
            Program(
                number=1,
                client=1,
                steps={
                    0: (Launch(where="0,1,2", program=1, meant=(1, 1), name="b"),),
                    1: (Launch(where="0,1,2", program=2, meant=(1, "other"), name="b"),),
                    2: (Launch(where="0,1,2", program=1, meant=(1, 1), name="b"),),
                },
                queued=False,
            ),
            Program(number=20, client=0, steps={}, queued=False, act=("restart", "")),
        ),
        fault="other",
        guilty=frozenset({(1, 1)}),
        lateness=0.3,
        keeps=Keeps(),
        donates=True,
        is_raised_early=True,
    ),
}
