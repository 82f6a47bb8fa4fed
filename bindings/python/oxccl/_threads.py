"""How threads of the backend end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

# Threads are given so many seconds to end: one that is in torch's code when the interpreter ends
# would end the process.
_JOIN = 1.0


def end_threads(threads: Iterable[threading.Thread]) -> None:
    """Waits for threads that are about to end."""
    deadline = time.monotonic() + _JOIN
    for thread in list(threads):
        if thread is not threading.current_thread():
            thread.join(max(deadline - time.monotonic(), 0.0))
