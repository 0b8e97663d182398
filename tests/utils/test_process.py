"""What a command sets for its own process."""

import signal
from collections.abc import Iterator

import pytest

from kedge.utils.process import interrupts_held


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts, which a process in the background ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
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
