"""Run a user's launch line under observation: pass its output and signals through, read what its programs say, end it.

Interprets nothing: it returns what was said, how the command ended, and which processes used torch and said nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO

from flexwarm import events, reaper
from flexwarm.compiler_lines import is_build_tool, runs_compiler
from flexwarm.errors import StoreError, UsageError
from flexwarm.events import Bye, Event, Hang, Refused
from flexwarm.files import list_names
from flexwarm.launch import POLL_SECONDS, reaping
from flexwarm.program_events import ERROR_TIMES, SILENCED, Forked, Held, Nodes, Program
from flexwarm.programs import Ended, SeenCompiler, Told, Unseen

#: A launch in which one program stands at a miss goes on for so long, so that others may say theirs.
SETTLE_SECONDS = 2.0
#: What the command gets to end after a signal that was passed on, before all is killed.
GRACE_SECONDS = 30.0
#: What its own helpers get to end after it.
LEFT_SECONDS = 5.0
#: How long the words of programs on other machines may take to come here.
REMOTE_SECONDS = 5.0
#: Between two looks at the processes; importing torch takes longer.
LOOK_SECONDS = 0.25
#: For so long torch is looked for in a process at each look, and then each so many seconds.
OFTEN_SECONDS, RARELY_SECONDS = 100.0, 5.0
#: In so many looks in a row torch must be there: between fork and exec a child has its parent's for a moment.
_SURE = 2

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SI_KERNEL = 0x80
#: In every process that imports torch; the C++ that Inductor tries out in processes of its own links the others.
_TORCH_LIBRARY = "libtorch_python.so"
#: torch's own helpers, which it starts with another path: they compile for a program that reports it, or try an extension of
#: the processor out.
_HELPERS = (os.path.join("torch", "_inductor", "compile_worker"), "\ncdll.LoadLibrary(")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRun:
    """What a launch line came to.

    Attributes:
        status: the command's exit status, or minus the signal that ended it.
        signum: the signal with which flexwarm was asked to end it, if it was.
        left: processes that outlived the command by more than :data:`LEFT_SECONDS`.
        compilers: those that were seen at work.
    """

    status: int
    ended: Ended
    signum: int | None
    seconds: float
    programs: tuple[Told, ...]
    unseen: tuple[Unseen, ...]
    left: tuple[int, ...]
    compilers: tuple[SeenCompiler, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How a command is run.

    Attributes:
        stdout: where its standard output goes; None for our own.
        patient: it is the user's real job: nothing but its own end, or a program that is held at a miss, ends it.
        limit_seconds: of the whole command; None for none.
        on_end: called with the command's status once it has ended by itself, before anything is made of what it said.
    """

    stdout: IO[str] | None = None
    patient: bool = False
    limit_seconds: float | None = None
    on_end: Callable[[int], None] = lambda status: None


def run_command(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    directory: Path,
    run_id: str,
    conditions: Conditions,
    on_event: Callable[[Event], None],
) -> CommandRun:
    """Run ``argv`` to its end.

    Args:
        environ: all of its environment, but for the run's marker.
        directory: where its programs write their event files.
        run_id: marks its processes.
        on_event: called with each event as it arrives, in this thread.

    Raises:
        UsageError: there is no such command.
    """
    began = time.monotonic()
    reaper.adopt_orphans()
    others = frozenset(reaper.children(os.getpid()))
    with reaping(run_id) as helper, contextlib.ExitStack() as held:
        # From before its start on: a signal that came in between would end us and leave the command.
        mask = held.enter_context(_signals_held())
        popen = _start(argv, {**environ, reaper.MARKER: run_id}, conditions.stdout, mask)
        watch = _Watch(popen, directory, run_id, others | {helper}, on_event)
        supervision = _Supervision(watch, conditions, began)
        try:
            try:
                supervision.until_ended()
            except Exception:
                if conditions.patient:
                    supervision.only_pass_signals_on()  # it is our fault, and not that of the job
                raise
            finally:
                held.close()
        finally:
            if not (conditions.patient and supervision.ended is Ended.BY_ITSELF):
                reaper.kill_run(run_id)
                reaper.kill_descendants(others | {helper})
                if popen.poll() is None:
                    popen.kill()
            popen.wait()  # a real job's end, also where it is our own supervision that failed
            if supervision.ended is Ended.BY_ITSELF:
                conditions.on_end(popen.returncode)
            watch.read()
            watch.close()
    return CommandRun(
        status=popen.returncode,
        ended=supervision.ended,
        signum=supervision.signum,
        seconds=time.monotonic() - began,
        programs=watch.told(),
        unseen=watch.unseen(),
        left=supervision.left,
        compilers=watch.compilers(),
    )


def _start(
    argv: Sequence[str], environ: Mapping[str, str], stdout: IO[str] | None, mask: set[int | signal.Signals]
) -> subprocess.Popen[bytes]:
    # In the foreground of a terminal it stays in our group: Ctrl-C and Ctrl-Z reach it as if it ran without us.
    own_group = not _in_foreground()

    def prepare() -> None:
        if own_group:
            os.setpgrp()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    try:
        return subprocess.Popen(
            list(argv),
            env=dict(environ),
            stdout=stdout,
            # What we were given beside the three, it gets; our own are not inherited by anybody.
            close_fds=False,
            preexec_fn=prepare,
        )
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"there is no command {argv[0]!r}", "write the launch line after -- as a shell would run it"
        ) from error
    except OSError as error:
        raise UsageError(f"{argv[0]!r} cannot be started: {error.strerror}", "is it a program, and may you run it?") from error


def _in_foreground() -> bool:
    for fd in (0, 1, 2):
        try:
            if os.tcgetpgrp(fd) == os.getpgrp():
                return True
        except OSError:
            continue  # not a terminal, or closed
    return False


@contextlib.contextmanager
def _signals_held() -> Iterator[set[int | signal.Signals]]:
    """Signals wait until they are asked for, with who sent them. Yields what was blocked before, for the command."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    try:
        yield before
    finally:
        # What has come and was not taken is dealt with as at any other time.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Supervision:
    """Waits for the end of a command, and brings it about where it must."""

    def __init__(self, watch: _Watch, conditions: Conditions, began: float) -> None:
        self._watch, self._conditions, self._began = watch, conditions, began
        self.ended = Ended.BY_ITSELF
        self.signum: int | None = None
        self.left: tuple[int, ...] = ()
        self._deadline: float | None = None

    def until_ended(self) -> None:
        watch = self._watch
        while not watch.has_ended():
            self._pass_signals_on()
            watch.read()
            watch.look()
            self._note_why()
            if self._deadline is not None and time.monotonic() > self._deadline:
                self._end()
                return
        if self.signum is not None:
            self.ended = Ended.INTERRUPTED
        self._let_helpers_end()
        # What came as a real job ended has nobody to go to, and changes nothing of how that ended.
        while self._conditions.patient and signal.sigpending() & set(_PASSED_ON):
            signal.sigtimedwait(_PASSED_ON, 0)

    def only_pass_signals_on(self) -> None:
        """Until the command has ended; nothing else is looked at."""
        while not self._watch.has_ended():
            self._pass_signals_on()

    def _pass_signals_on(self) -> None:
        """Wait a moment for signals; those that the terminal sent have reached the command as well."""
        # Not by `sigtimedwait` alone: stopped and continued by job control, it ends early with a signal that never came.
        if not signal.sigpending() & set(_PASSED_ON):
            time.sleep(POLL_SECONDS)
            return
        info = signal.sigtimedwait(_PASSED_ON, 0)
        if info is None or info.si_signo not in _PASSED_ON:
            return
        if info.si_code != _SI_KERNEL or not _in_foreground():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._watch.pid, info.si_signo)
        if info.si_signo in _ENDING and not self._conditions.patient:
            # Whoever asks twice does not want to wait.
            self._deadline = time.monotonic() + (GRACE_SECONDS if self.signum is None else 0.0)
            self.signum = self.signum or info.si_signo

    def _note_why(self) -> None:
        if self._deadline is not None:
            return
        limit = self._conditions.limit_seconds
        if self._watch.held:
            self.ended, self._deadline = Ended.AT_A_MISS, time.monotonic() + SETTLE_SECONDS
        elif self._watch.hung and not self._conditions.patient:
            self.ended, self._deadline = Ended.HUNG, time.monotonic()
        elif limit is not None and time.monotonic() - self._began > limit:
            self.ended, self._deadline = Ended.TIMED_OUT, time.monotonic()

    def _end(self) -> None:
        if self.signum is not None:
            self.ended = Ended.INTERRUPTED
        if self._watch.has_programs_elsewhere() or self._watch.has_programs_of_a_service():
            # Only the launcher can end what runs on other machines, and give back what a service lent it for its programs.
            os.kill(self._watch.pid, signal.SIGTERM)
            deadline = time.monotonic() + GRACE_SECONDS
            while not self._watch.has_ended() and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)

    def _let_helpers_end(self) -> None:
        """Programs that the command leaves behind, such as a compiler's helpers, end by themselves in a moment."""
        self._watch.rescan()
        self._watch.read()  # a command may be over before anything of it was read
        deadline = time.monotonic() + (REMOTE_SECONDS if self._watch.waits_for_words_from_elsewhere() else LEFT_SECONDS)
        while time.monotonic() < deadline:
            self._watch.read()
            alive = self._watch.alive()
            if not alive and not self._watch.waits_for_words_from_elsewhere():
                return
            self._watch.look()
            time.sleep(POLL_SECONDS)
        self.left = tuple(self._watch.alive())


@dataclass(slots=True)
class _File:
    """One program's event file."""

    path: Path
    stream: BinaryIO
    said: list[Event] = field(default_factory=list)
    rest: bytes = b""

    def silenced(self) -> int | None:
        """The number of the error for which the program could not write it any more, if it left that as a sign."""
        try:
            time_of_file = int(os.fstat(self.stream.fileno()).st_mtime)
        except OSError:
            return None
        return time_of_file if 0 <= time_of_file < ERROR_TIMES else None

    @property
    def program(self) -> Program | None:
        first = self.said[0] if self.said else None
        return first if isinstance(first, Program) else None

    @property
    def said_bye(self) -> bool:
        return bool(self.said) and isinstance(self.said[-1], Bye)


@dataclass(slots=True)
class _Process:
    """A process of the run that was seen alive.

    Attributes:
        image: which program it ran at the last look: see :func:`flexwarm.reaper.image`; ``argv`` is that one's command line.
        torch: looks in a row that found torch loaded in that one.
        since: when this program was first seen, and ``next_torch`` when torch is looked for again; of ``time.monotonic``.
        used: image -> command line, of those that surely had it.
        builds: it is a build tool; its compilers come and go.
    """

    started: int
    image: int = 0
    argv: tuple[str, ...] = ()
    torch: int = 0
    used: dict[int, tuple[str, ...]] = field(default_factory=dict)
    since: float | None = None
    next_torch: float = 0.0
    builds: bool = False
    gone_unix: float | None = None


class _Watch:
    """Reads the event files and looks at the processes."""

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        directory: Path,
        run_id: str,
        others: frozenset[int],
        on_event: Callable[[Event], None],
    ) -> None:
        self._popen, self._directory, self._run_id, self._others, self._on_event = popen, directory, run_id, others, on_event
        self._files: dict[str, _File] = {}
        #: Event file -> number of the error for which it fell silent.
        self._silenced: dict[str, int] = {}
        self._processes: dict[int, _Process] = {}
        self._past: list[tuple[int, _Process]] = []
        #: Of the programs that said who they are, and of what they forked: the images, and (pid, when it was started) of all
        #: and of those that could not tell theirs.
        self._images: set[int] = set()
        self._known: set[tuple[int, int]] = set()
        self._imageless: set[tuple[int, int]] = set()
        self._compilers: list[SeenCompiler] = []
        self._next_look = self._next_scan = self._scanned_for = 0.0
        #: Processes with the run's mark -> when they were started, at the last look through all of the machine.
        self._marked_then: dict[int, int] = {}
        self._host = socket.gethostname()
        self.held = self.hung = False

    @property
    def pid(self) -> int:
        return self._popen.pid

    def has_ended(self) -> bool:
        """Not reaped yet, so that its number is still its own."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    # ---- what is said --------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Read the whole lines that have arrived since the last call.

        What cannot be read now is tried again at the next call: a store that is deleted, or a disk that fails for a moment,
        must not end the user's job. What nobody reads in the end is missing evidence.
        """
        names: list[str] = []
        with contextlib.suppress(StoreError):
            names = sorted(list_names(self._directory))
        for name in names:
            if name.endswith(".jsonl") and name not in self._files:
                path = self._directory / name
                with contextlib.suppress(OSError):
                    self._files[name] = _File(path=path, stream=path.open("rb"))
            if name.endswith(SILENCED):
                with contextlib.suppress(OSError, ValueError):
                    self._silenced[name.removesuffix(SILENCED)] = int(os.readlink(self._directory / name))
        for name, file in self._files.items():
            data = file.rest
            with contextlib.suppress(OSError):
                data += file.stream.read()
            *lines, file.rest = data.split(b"\n")
            if name not in self._silenced and (number := file.silenced()) is not None:
                self._silenced[name] = number  # at once: with space again, a later line takes the sign back
            for line in lines:
                event = _event(line, file.path)
                file.said.append(event)
                if isinstance(event, (Program, Forked)):
                    self._known.add((event.pid, event.started))
                    if event.image:
                        self._images.add(event.image)
                    else:
                        self._imageless.add((event.pid, event.started))
                # A rank that is stopped on another node will not come to the next collective, and ours would wait for it.
                self.held |= isinstance(event, Held) or (isinstance(event, Nodes) and bool(event.missed.keys() - {event.own}))
                self.hung |= isinstance(event, Hang)
                self._on_event(event)

    def has_programs_elsewhere(self) -> bool:
        return any(file.program is not None and file.program.host != self._host for file in self._files.values())

    def has_programs_of_a_service(self) -> bool:
        """Programs on this machine that do not descend from the command: it had a service start them, as srun has slurmd."""
        # Looked at twice: what begins, ends or loses its parent during a look is not where it is looked for.
        found = set(self._marked()) - set(self._descendants())
        return bool(found and (found & set(self._marked())) - set(self._descendants()))

    def waits_for_words_from_elsewhere(self) -> bool:
        return any(
            file.program is not None and file.program.host != self._host and not file.said_bye for file in self._files.values()
        )

    def told(self) -> tuple[Told, ...]:
        found = [
            Told(events=tuple(file.said), gone_unix=self._gone(file.program), silenced=self._silenced.get(name))
            for name, file in sorted(self._files.items())
        ]
        fileless = [number for name, number in sorted(self._silenced.items()) if name not in self._files]
        return (*found, *(Told(events=(), gone_unix=None, silenced=number) for number in fileless))

    def _gone(self, program: Program | None) -> float | None:
        if program is None or program.host != self._host:
            return None
        seen = [process for pid, process in self._all() if (pid, process.started) == (program.pid, program.started)]
        return seen[0].gone_unix if seen else None

    def close(self) -> None:
        for file in self._files.values():
            file.stream.close()

    # ---- what is there -------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Which processes there are, and which of them have torch loaded."""
        programs = {file.program.pid for file in self._files.values() if file.program is not None}
        # Who ended first is told by this, so it is looked for each time.
        self._note_gone({pid for pid in programs & self._processes.keys() if reaper.is_zombie(pid)})
        if time.monotonic() < self._next_look:
            return
        began = time.monotonic()
        alive = set(self.alive())
        self._note_gone(self._processes.keys() - alive)
        for pid in alive - self._processes.keys():
            self._processes[pid] = _Process(started=reaper.started(pid))
        for pid, process in self._processes.items():
            image = reaper.image(pid)
            if image != process.image or process.since is None:
                process.image, process.torch, process.since = image, 0, began
                self._runs(pid, process, _argv(pid))
            elif not image and (argv := _argv(pid)) != process.argv:
                self._runs(pid, process, argv)  # another program, or only another title
            often = began - process.since < OFTEN_SECONDS or began >= process.next_torch
            if image not in process.used and often and not self._is_known(pid, process, image):
                process.torch = process.torch + 1 if _has_torch(pid) else 0
                if not process.torch:
                    process.next_torch = began + RARELY_SECONDS
                process.argv = _argv(pid) or process.argv
                if process.torch >= _SURE:
                    process.used[image] = process.argv
        reaper.reap_adopted(self._others | {self.pid})
        # A compiler under a build tool may take less than the time between two looks.
        pause, share = (0.0, 4) if any(process.builds for process in self._processes.values()) else (LOOK_SECONDS, 20)
        # A look at very many processes must not become a load itself.
        self._next_look = time.monotonic() + max(pause, share * (time.monotonic() - began - self._scanned_for))

    def _runs(self, pid: int, process: _Process, argv: tuple[str, ...]) -> None:
        """A process was met for the first time, or has another command line."""
        process.argv, process.builds = argv, is_build_tool(argv)
        if runs_compiler(argv):
            self._compilers.append(SeenCompiler(pid=pid, argv=argv))

    def _note_gone(self, pids: Iterable[int]) -> None:
        for pid in list(pids):
            process = self._processes.pop(pid)
            process.gone_unix = time.time()
            self._past.append((pid, process))

    def alive(self) -> list[int]:
        """The launch's processes; the command itself is none once it has ended.

        Those that descend from us are known by that. What a service of this machine has started for it is known by the mark.
        """
        return list(dict.fromkeys([*self._descendants(), *self._strangers()]))

    def rescan(self) -> None:
        """Look through all of the machine's processes at the next look."""
        self._next_scan = 0.0

    def _strangers(self) -> list[int]:
        """Those with the mark, as they were last looked for among all processes of the machine, if they still run."""
        began, self._scanned_for = time.monotonic(), 0.0
        if began >= self._next_scan:
            with contextlib.suppress(OSError):  # too many open files, say: a real job must not suffer for it
                self._marked_then = {pid: reaper.started(pid) for pid in self._marked()}
            self._scanned_for = time.monotonic() - began
            self._next_scan = time.monotonic() + max(LOOK_SECONDS, 20 * self._scanned_for)
        return [pid for pid, at in self._marked_then.items() if reaper.started(pid) == at and not reaper.is_zombie(pid)]

    def _descendants(self) -> list[int]:
        """But for those that were there before."""
        mine = [pid for pid in reaper.children(os.getpid()) if pid not in self._others]
        found = [pid for child in mine for pid in (child, *reaper.descendants(child))]
        return [pid for pid in found if not reaper.is_zombie(pid)]

    def _marked(self) -> list[int]:
        return [pid for pid in reaper.members(self._run_id) if pid not in self._others and not reaper.is_zombie(pid)]

    def _all(self) -> list[tuple[int, _Process]]:
        return [*self._past, *self._processes.items()]

    def compilers(self) -> tuple[SeenCompiler, ...]:
        return tuple(self._compilers)

    def unseen(self) -> tuple[Unseen, ...]:
        """Processes that had torch loaded, wrote no file, and were not forked from one that did."""
        known_pids = {int(name.partition(".")[0]) for name in self._files if name.partition(".")[0].isdigit()}
        # One that could not even say who it is has its process id in the name of its file: host-pid-started.
        wordless = [name for name in {*self._files, *self._silenced} if name not in self._files or not self._files[name].said]
        known_pids |= {int(pid) for pid in (name.split("-")[-2] for name in wordless if "-" in name) if pid.isdigit()}
        return tuple(
            Unseen(pid=pid, argv=argv)
            for pid, process in self._all()
            for image, argv in process.used.items()
            if not self._is_known(pid, process, image)
            and pid not in known_pids
            and not any(helper in argument for argument in argv for helper in _HELPERS)
        )

    def _is_known(self, pid: int, process: _Process, image: int) -> bool:
        """Whether that program said who it is, or was forked from one that did."""
        name = (pid, process.started)
        # Where either side could not tell the image, it is the process that counts.
        return image in self._images if image and name not in self._imageless else name in self._known


_HINT = "is the store's disk full, or does another flexwarm write there?"


def _event(line: bytes, path: Path) -> Event:
    """A line that cannot be read hides evidence. It is told of, and the command, which may be a real job, goes on."""
    try:
        return events.foreign_from_line(line.decode())
    except ValueError as error:
        return Refused(t=time.time(), message=f"{path} has a line that is no event: {error}", hint=_HINT)


def _has_torch(pid: int) -> bool:
    try:
        return _TORCH_LIBRARY in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False  # it has just ended, or may not be asked


def _argv(pid: int) -> tuple[str, ...]:
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(os.fsdecode(item) for item in data.split(b"\0")[:-1])
