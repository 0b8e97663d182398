"""What a command sets for its own process."""

import signal

import pytest

from kedge.utils.process import interrupts_held


def test_interrupts_wait_for_the_end() -> None:
    done = []

    def import_something() -> None:
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            done.append("import")

    with pytest.raises(KeyboardInterrupt):
        import_something()
    assert done == ["import"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
