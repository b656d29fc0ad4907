"""Signals: raised where the work is, held back where something is cleaned up."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import __main__ as harness_main
from harness.interrupts import SIGNALS, deaf, interruptible, shielded


@pytest.fixture(autouse=True)
def default_signals() -> Iterator[None]:
    """As in a terminal: a shell's background job, or nohup, would have some of them ignored."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    os.kill(os.getpid(), number)
    for _ in range(1000):  # Python runs handlers between bytecodes
        pass


def interrupted(work: Callable[[], object]) -> bool:
    """Whether the work ended with a KeyboardInterrupt."""
    try:
        with interruptible():
            work()
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_a_keyboard_interrupt(number: int) -> None:
    before = signal.getsignal(number)
    assert interrupted(lambda: send(number))
    assert signal.getsignal(number) is before


def test_a_shield_holds_signals_back_until_its_end() -> None:
    seen = []

    def work() -> None:
        with shielded():
            with shielded():
                send(signal.SIGINT)
            send(signal.SIGINT)
            seen.append("cleaned up")
        seen.append("never")

    assert interrupted(work)
    assert seen == ["cleaned up"]


def test_every_clean_up_runs_when_signals_come_during_each() -> None:
    cleaned = []

    def work() -> None:
        try:
            try:
                send(signal.SIGINT)
            finally:
                with shielded():
                    send(signal.SIGINT)
                    cleaned.append("inner")
        finally:
            with shielded():
                send(signal.SIGTERM)
                cleaned.append("outer")

    assert interrupted(work)
    assert cleaned == ["inner", "outer"]


def test_an_error_in_a_shield_gives_way_to_the_interrupt() -> None:
    def work() -> None:
        with shielded():
            send(signal.SIGINT)
            raise ValueError

    assert interrupted(work)


def test_a_shield_without_a_signal_changes_nothing() -> None:
    def work() -> None:
        with shielded():
            pass
        with pytest.raises(ValueError, match="mine"), shielded():
            raise ValueError("mine")

    assert not interrupted(work)


def test_handlers_that_a_library_installs_in_a_shield_are_taken_back() -> None:
    def work() -> None:
        with shielded():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        send(signal.SIGTERM)

    assert interrupted(work)


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        assert not interrupted(lambda: send(signal.SIGHUP))
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_are_lost_on_a_deaf_program() -> None:
    def work() -> None:
        with deaf():
            for number in SIGNALS:
                send(number)

    assert not interrupted(work)
    assert interrupted(lambda: send(signal.SIGINT))  # and heard again


class Impatient(io.StringIO):
    """An output on whose every write another Ctrl-C comes."""

    def write(self, text: str) -> int:
        send(signal.SIGINT)
        return super().write(text)


def test_a_second_ctrl_c_while_the_first_is_answered_gets_the_same_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness_main, "_run_locked", lambda *args: send(signal.SIGINT))
    said = Impatient()
    monkeypatch.setattr("sys.stderr", said)
    assert harness_main.main(["experiment=plan", "tracker=none", f"results_dir={tmp_path}"]) == 130
    assert (
        said.getvalue().strip() == f"interrupted; finished points are in {tmp_path / 'plan'}, the same command goes on"
    )
