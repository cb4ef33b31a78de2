"""Where the first calls spend their time: each moment of a thread is given to the innermost part that the thread is in.

So the parts of a call are disjoint, none is negative, and together they are the call. What other threads do for it, such as
those of autograd, is time in which it waits, and no part of its own.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flexwarm.costs import Part
from flexwarm.errors import UnsupportedError
from flexwarm.events import Costs
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api import TorchApi, timing

#: The name of what no event of torch's begins.
_CALL, _IMPORT, _LOOKUP = "flexwarm: a first call", "flexwarm: an import", "flexwarm: a lookup"
#: What begins an account in a program: there nobody says where a call begins.
_OUTERMOST = (Part.IMPORT, Part.DYNAMO)
#: What is inside of these is all of them: a module that is imported by another, code that is loaded to be compiled.
_WHOLE = (Part.IMPORT, Part.COMPILE)


class _Here(threading.local):
    """The calling thread: whose time it spends, what it is in, and since when."""

    def __init__(self) -> None:
        self.account: dict[Part, float] = {}
        self.known = False
        self.open: list[tuple[str, Part]] = []
        self.since = 0.0


class Meter:
    """The clock of one process.

    Args:
        alone: a compile begins an account by itself, as in a program of the user's. Otherwise only :meth:`first_call` does.
    """

    def __init__(self, recorder: Recorder, *, alone: bool) -> None:
        self._recorder, self._alone = recorder, alone
        self._here = _Here()
        self._accounts: list[dict[Part, float]] = []
        self._seen: set[Part] = set()
        self._follows, self._probes = False, False

    @classmethod
    def of_worker(cls, api: TorchApi, recorder: Recorder) -> Meter:
        """In a process that has imported everything."""
        meter = cls(recorder, alone=False)
        meter.follow_torch()
        meter.follow_aot_lookups(api)
        meter.follow_fx_lookups(api)
        meter.follow_probes()
        return meter

    # ---- what is told ------------------------------------------------------------------------------------------------------

    def begin(self, name: str, part: Part | None) -> None:
        """The calling thread enters something; None: it stays in the part that it is in."""
        here = self._here
        if part is not None:
            self._seen.add(part)
        if not here.open:
            if not self._alone or part not in _OUTERMOST:
                return
            self._join(here)
            within = part
        else:
            within = here.open[-1][1]
        now = time.perf_counter()
        self._charge(here, now)
        here.open.append((name, within if part is None or within in _WHOLE else part))

    def end(self, name: str) -> None:
        """The calling thread leaves what it entered last under this name, and whatever it entered since then."""
        here = self._here
        for at in range(len(here.open) - 1, -1, -1):
            if here.open[at][0] == name:
                self._charge(here, time.perf_counter())
                del here.open[at:]
                return

    @staticmethod
    def _charge(here: _Here, now: float) -> None:
        if here.open:
            part = here.open[-1][1]
            here.account[part] = here.account.get(part, 0.0) + now - here.since
        here.since = now

    def _join(self, here: _Here) -> None:
        if not here.known:
            here.known = True
            self._accounts.append(here.account)

    # ---- who tells ---------------------------------------------------------------------------------------------------------

    def follow_torch(self) -> None:
        """From now on torch's own events are followed. A torch that has none leaves these parts unknown."""
        try:
            timing.follow(lambda name: self.begin(name, timing.EVENTS.get(name)), self.end)
        except UnsupportedError:
            return
        self._follows = True

    def follow_aot_lookups(self, api: TorchApi) -> None:
        """Around the witnesses' own wrappers, so that what those do for a hit is in the part that it delays."""
        api.aot_module.autograd_cache_key = self._in(Part.KEYS, api.aot_module.autograd_cache_key)
        api.aot_cache.try_load = staticmethod(self._in(Part.LOAD, api.aot_cache.try_load))

    def follow_fx_lookups(self, api: TorchApi) -> None:
        """The same for Inductor's cache."""
        api.fx_cache.prepare_key = staticmethod(self._in(Part.KEYS, api.fx_cache.prepare_key))
        api.fx_cache.load_with_key = staticmethod(self._in(Part.LOAD, api.fx_cache.load_with_key))

    def follow_probes(self) -> None:
        """What Inductor tries out on the processor. A torch that does it in another way leaves this part unknown."""
        try:
            kind = timing.instructions()
        except UnsupportedError:
            return
        kind.check_build = self._in(Part.PROBE, kind.check_build)
        self._probes = True

    def _in(self, part: Part, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.begin(_LOOKUP, part)
            try:
                return function(*args, **kwargs)
            finally:
                self.end(_LOOKUP)

        return timed

    @contextmanager
    def importing(self) -> Iterator[None]:
        """The calling thread imports a part of torch."""
        self.begin(_IMPORT, Part.IMPORT)
        try:
            yield
        finally:
            self.end(_IMPORT)

    def imported(self, seconds: float) -> None:
        """Something was imported before this clock was there."""
        self._join(self._here)
        self._here.account[Part.IMPORT] = self._here.account.get(Part.IMPORT, 0.0) + seconds

    @contextmanager
    def first_call(self) -> Iterator[None]:
        """A call of a job that nothing was compiled or loaded for; said when it has returned."""
        here = self._here
        here.account, here.open = {}, [(_CALL, Part.RUN)]
        here.since = time.perf_counter()
        try:
            yield
            self.end(_CALL)
        finally:
            account, here.account, here.open = here.account, {}, []
        self._say(account)

    # ---- what is said ------------------------------------------------------------------------------------------------------

    def tell(self) -> None:
        """All that this process has spent until now, of every thread that compiled; nothing if none did."""
        found: dict[Part, float] = {}
        for account in list(self._accounts):
            for part, seconds in account.copy().items():
                found[part] = found.get(part, 0.0) + seconds
        if found:
            self._say(found)

    def forget(self) -> None:
        """In a forked child: what was spent is the parent's."""
        self._here, self._accounts, self._seen = _Here(), [], set()

    def _say(self, account: Mapping[Part, float]) -> None:
        parts = {part.value: round(seconds, 6) for part, seconds in self._known(account).items()}
        whole = round(sum(parts.values()), 6)
        job = None if self._alone else self._recorder.job
        self._recorder.emit(Costs(t=time.time(), job=job, whole_seconds=whole, parts=parts))

    def _known(self, account: Mapping[Part, float]) -> dict[Part, float]:
        """Without what this torch does not tell: 0 of a part is said only where it would have been seen."""
        # A lookup outside of all that Dynamo begins: its events have other names here, or are none.
        blind = not self._follows or (Part.DYNAMO not in self._seen and bool(self._seen & {Part.KEYS, Part.LOAD}))
        rest = Part.OTHER if blind else Part.RUN
        found = {part: account.get(part, 0.0) for part in (Part.KEYS, Part.LOAD, rest)}
        if self._alone:
            del found[rest]  # of a program's calls nobody sees the end
        if self._probes:
            found[Part.PROBE] = account.get(Part.PROBE, 0.0)
        if self._follows:
            found |= {part: account.get(part, 0.0) for part in (Part.IMPORT, Part.COMPILE)}
            found |= {part: account.get(part, 0.0) for part in timing.TOLD_BY_EVENTS if part in self._seen}
        loose = sum(seconds for part, seconds in account.items() if part not in found)
        if loose and rest in found:
            found[rest] += loose
        elif loose:
            found[Part.OTHER] = loose
        return found
