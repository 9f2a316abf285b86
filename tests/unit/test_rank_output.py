"""What of a rank's log is shown under a cell, and where a rank's print goes."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxcluster.rank import output
from jaxcluster.rank.output import CellOutput, LogTail, RankStream, is_usable
from jaxcluster.rank.places import CELL_DIRECTORY

# --------------------------------------------------------------------------- the log


class Log:
    """A rank's log as its file descriptors 1 and 2 write it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("from before the cell\n")
        self.tail = LogTail(str(path))

    def write(self, data: str) -> None:
        with open(self.path, "a") as log:
            log.write(data)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "rank-0.log")


def test_of_a_flood_the_end_is_shown(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be of gigabytes, and nothing interrupts a cell's end."""
    monkeypatch.setattr(output, "READ_NBYTES", 64)
    log.write("half a line")
    assert log.tail.read() == ""
    log.write(" and the rest\n")
    assert log.tail.read() == "half a line and the rest\n"
    lines = [f"line {k:03}\n" for k in range(100)]  # 9 bytes each
    log.write("".join(lines))
    left_out, _, rest = log.tail.read(last=True).partition("]\n")
    assert left_out == "\n[... 836 bytes, only in this rank's log ..."
    assert rest == "".join(lines)[-64:]
    assert log.tail.read(last=True) == ""


def output_of(runner: SimpleNamespace, log: Log) -> tuple[CellOutput, list[str]]:
    """A cell's output, and what of it was sent."""
    sent: list[str] = []
    runner.current.log = log.tail
    output = CellOutput(runner)  # type: ignore[arg-type]
    output.print = lambda name, text: sent.append(text) or True  # type: ignore[method-assign]
    return output, sent


def runner_in_a_cell(*, behind: bool = False) -> SimpleNamespace:
    control = SimpleNamespace(ticking=True, is_behind=lambda ident: behind)
    running = SimpleNamespace(request=SimpleNamespace(ident=b"notebook"))
    return SimpleNamespace(current=running, control=control)


def test_a_cells_end_waits_for_what_the_control_thread_has_read_and_not_sent(log: Log) -> None:
    """Else it was sent after the cell's reply, or not at all."""
    runner = runner_in_a_cell()
    output, sent = output_of(runner, log)
    has_read, may_send = threading.Event(), threading.Event()
    read = log.tail.read

    def read_slowly(last: bool = False) -> str:
        text = read(last)
        if threading.current_thread() is ticks:
            has_read.set()
            assert may_send.wait(30)
        return text

    log.tail.read = read_slowly  # type: ignore[method-assign]
    ticks = threading.Thread(target=output.show_log)
    log.write("from C\n")
    ticks.start()
    assert has_read.wait(30)

    def end_the_cell() -> None:
        runner.control.ticking = False
        output.show_log(last=True)
        runner.current = None
        sent.append("the reply")

    ends = threading.Thread(target=end_the_cell)
    ends.start()
    ends.join(0.1)
    may_send.set()
    ends.join(30)
    ticks.join(30)
    assert sent == ["from C\n", "the reply"]


CHATTER = """\
[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peers is : 3
E0000 00:00:1729000000.123456   12345 cuda_dnn.cc:8310] Unable to register cuDNN factory
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
2026-01-01 10:00:00.123456: I external/xla/xla/service.cc:1] Platform CUDA
gpu-07:123:456 [0] NCCL INFO Bootstrap : Using eth0
[2026-11-27 00:50:40] h:5:7 [0] transport/rma.cc:32 (ncclRmaInit) NCCL WARN no GDRCopy
NCCL version 2.32.3+cuda13.4
[IPEngine] Completed registration with id 0
"""


def test_the_transports_chatter_stays_in_the_log(log: Log) -> None:
    log.write(f"before\n{CHATTER}after\n")
    assert log.tail.read() == "before\nafter\n"
    assert CHATTER in log.path.read_text()


def test_what_only_looks_like_chatter_is_shown(log: Log) -> None:
    shown = "Gloo is a library\n  [Gloo] quoted\n2026-01-01 10:00:00 my own line\nI1 is a name\n"
    log.write(shown)
    assert log.tail.read() == shown


# ---------------------------------------------------------------------------------- cells' places


def test_what_python_writes_of_a_cell_names_the_cell_instead_of_its_file() -> None:
    file = f"{CELL_DIRECTORY}/9-0123456789ab.py"
    written: list[str] = []
    stream = RankStream("stderr", io.StringIO(), lambda name, text: bool(written.append(text)))
    stream.write(f'  File "{file}", line 5, in go\n')
    stream.write(f"{file}:7: UserWarning: hm\n")
    stream.write('  File "/home/a/train.py", line 5, in go\n')
    assert written == [
        "  cell [9] line 5, in go\n",
        "cell [9] line 7: UserWarning: hm\n",
        '  File "/home/a/train.py", line 5, in go\n',
    ]


def test_what_scripts_do_to_their_stream_costs_no_later_cell_its_output() -> None:
    sent: list[str] = []
    stream = RankStream("stdout", io.StringIO(), lambda name, text: sent.append(text) or True)
    io.TextIOWrapper(stream.buffer, "utf-8").close()
    print("é \ud800", file=stream)
    assert "".join(sent) == "é \\ud800\n"
    assert is_usable(stream)
    print("own", file=io.TextIOWrapper(stream.detach(), "utf-8", write_through=True))
    assert "".join(sent).endswith("\nown\n")
    assert not is_usable(stream) and not is_usable(None)

    class Odd:
        write = property(lambda self: 1 / 0)

    assert not is_usable(Odd())
