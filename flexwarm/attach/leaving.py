"""With which status this program ends, as far as that can be known before it has ended.

Nothing tells a program at its end whether a ``SystemExit`` ends it: no hook is called, and Python has let go of it by then.
So ``sys.exit`` says what it was asked for; and whether that was caught is told by the program's main code, which came to
its last instruction or did not.
"""

from __future__ import annotations

import dis
import sys
import threading
import traceback
from types import FrameType
from typing import Any

#: What is kept of the words with which a program leaves.
_WORDS = 500


class Leaving:
    """What the program asked for, and what became of its main code."""

    def __init__(self) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        self._main = _main_code(frame)
        self._asked: int | None = None
        #: Where the main code stood when it asked.
        self._asked_at = -1
        self._why = ""
        #: The status that an error gives, which is not kept itself: its stack holds all that the program had.
        self._raised: tuple[int | None] | None = None

    def ask(self, status: object, caller: FrameType | None) -> None:
        """``sys.exit`` is called, from ``caller``. In another thread than the main one that ends the thread alone."""
        if threading.current_thread() is not threading.main_thread():
            return
        main = _main_code(caller)
        if main is None:
            return  # Python's own end calls it, where it ends nothing any more
        self._main, self._asked_at = main, main.f_lasti
        self._note(status, caller)

    def raised(self, error: BaseException) -> None:
        """An error that nothing caught ends the main code; a status that was asked for before was not the end."""
        self._raised = (None if isinstance(error, KeyboardInterrupt) else 1,)

    def at_exit(self) -> tuple[int | None, str]:
        """The status with which Python ends, as its ``atexit`` sees it, and why. None where that is not known."""
        if self._raised is not None:
            return self._raised[0], ""
        if self._main is not None and _came_to_its_end(self._main):
            return 0, ""
        if self._main is not None and self._asked is not None and self._main.f_lasti != self._asked_at:
            return None, ""  # that one was caught, and something else ended the main code
        return self._asked, self._why

    def forget(self) -> None:
        """Let go of the main code: what its objects do at their end must not come later because of us."""
        self._main = None

    def at_once(self, status: object, caller: FrameType | None) -> tuple[int | None, str]:
        """The same for ``os._exit``, which nothing catches."""
        self._note(status, caller)
        return self._asked, self._why

    def _note(self, status: object, caller: FrameType | None) -> None:
        code, why = _status(status), _why(status)
        if not why and (code != self._asked or not self._why) and caller is not None:
            why = f"at {_place(caller)}"
        # What ends a program of `multiprocessing` asks once more for what its target had asked for.
        self._asked, self._why = code, ((why or self._why) if code else "")


def _main_code(frame: FrameType | None) -> FrameType | None:
    """The outermost of a thread's frames, if it is that of the program's main code: its script, or what runs its module."""
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    if frame is None:
        return None
    name = frame.f_code.co_name
    is_script = name == "<module>" and frame.f_globals.get("__name__") == "__main__"
    return frame if is_script or name == "_run_module_as_main" else None


def _came_to_its_end(frame: FrameType) -> bool:
    """Whether a frame that is over returned. One that an error went through stands where that came from."""
    at = frame.f_lasti
    return at >= 0 and dis.opname[frame.f_code.co_code[at]].startswith("RETURN_")


def _status(code: object) -> int:
    """What the system gets of the argument of ``sys.exit``."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _why(code: object) -> str:
    """The error that is being handled, or else the words that the program leaves with."""
    error = sys.exc_info()[1]
    if error is not None and not isinstance(error, SystemExit):
        frames = traceback.extract_tb(error.__traceback__)
        place = f" at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
        return f"{type(error).__name__}{place}: {_words(error)}"
    return "" if code is None or isinstance(code, int) else _words(code)


def _words(value: Any) -> str:
    try:
        return str(value)[:_WORDS]
    except Exception:  # noqa: BLE001 - it is the program's, and may fail to say what it is
        return ""


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
