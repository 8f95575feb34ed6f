"""Runs the ``git`` program on one repository, without the settings of a shell."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ringproof.errors import InputError
from ringproof.programs import PIPE, Ended, ended_by, program, run, started, variables

# A user's hook or shell may have set these, and they would lead to another repository.
_UNSET = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY",
          "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_NAMESPACE")  # fmt: skip
_SET = MappingProxyType(
    {
        "LC_ALL": "C",  # messages are compared
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "GIT_SSH_VARIANT": "auto",
    }
)


CACHED = "refs/ringproof"
"""Folder of a repository of the cache that other repositories do not have."""
_CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
"""Signals by which git ends itself, as where a file that it has mapped is cut short."""
READ_SECONDS = 300.0
"""Limit of a command that only reads; 0.1 s is usual."""


def remedy_of(folder: Path, other: str = "fetch it again in full") -> str:
    """Say how a damaged repository is mended: one of the cache, or an ``other``."""
    if (folder / CACHED).is_dir():
        return "run `ringproof upstream fetch`, which fetches it again"
    return other


def reason(log: str) -> str:
    """Return git's own last word on what failed, on one line."""
    lines = [line.strip() for line in log.replace("\r", "\n").splitlines()]
    named = [line for line in lines if line.startswith(("fatal:", "error:", "remote: fatal:"))]
    return " ".join([*named, *filter(None, lines), "git gave no reason"][0].split())


@dataclass(frozen=True)
class Git:
    """The ``git`` program for one repository.

    Attributes:
        folder: Bare repository, or folder of a work tree; ``None`` for commands that need none.
        settings: Entries ``NAME=VALUE`` of git's configuration.
        lock: File descriptor of a lock, which the program keeps while it runs.
        fetches: Whether git may fetch objects. Otherwise an object that is missing in a partial
            clone is an error, and not fetched.
    """

    folder: Path | None
    settings: tuple[str, ...] = ()
    lock: int | None = None
    fetches: bool = False

    def command(self, *arguments: str) -> list[str]:
        """Return the words of a command.

        Raises:
            InputError: There is no git.
        """
        path = program("git")
        if path is None:
            sentence = (
                "the git program is not installed; install git 2.29 or newer, or use dir: or pip:"
            )
            raise InputError("upstream", sentence)
        # A repository may name a program as its monitor of files, which git would start.
        words = [path, "-c", "core.fsmonitor=false"]
        words += (word for setting in self.settings for word in ("-c", setting))
        if self.folder is not None:
            inside = self.folder / ".git"
            words.append(f"--git-dir={inside if inside.exists() else self.folder}")
        return [*words, *arguments]

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a command."""
        none = {} if self.fetches else {"GIT_ALLOW_PROTOCOL": "none"}
        return {**variables(without=_UNSET), **_SET, **none}

    def run(self, *arguments: str, feed: str = "", seconds: float | None = None) -> Ended:
        """Run one command in a session of its own, so that its helpers end with it.

        Args:
            feed: Standard input.
            seconds: Time limit; `READ_SECONDS` by default where nothing is fetched.

        Raises:
            InputError: There is no git, or another process ended it by a signal, which says
                nothing about files.
        """
        kept = () if self.lock is None else (self.lock,)
        ended = run(
            self.command(*arguments),
            feed=feed,
            seconds=READ_SECONDS if seconds is None and not self.fetches else seconds,
            environment=self.environment,
            pass_fds=kept,
        )
        _refuse_signal(ended.code)
        return ended


def _refuse_signal(code: int | None) -> None:
    if code is not None and code < 0 and -code not in _CRASHES:
        problem = f"the git program was ended by {ended_by(code)}"
        raise InputError("git", f"{problem}; run the command again")


class BlobReader:
    """Reads files of a repository by their ids, in one process of ``git cat-file --batch``."""

    def __init__(self, git: Git) -> None:
        self._running = contextlib.ExitStack()
        command = started(
            git.command("cat-file", "--batch"),
            environment=git.environment,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )
        self._process = self._running.enter_context(command)

    def read(self, blob: str, limit: int) -> bytes:
        """Return the content of a file.

        Raises:
            OverflowError: It is larger than the limit; nothing else can be read after that.
            OSError: It is missing or damaged.
            InputError: Another process ended git by a signal.
        """
        source, sink = self._process.stdout, self._process.stdin
        assert source is not None and sink is not None
        with contextlib.suppress(BrokenPipeError):
            sink.write(f"{blob}\n".encode())
            sink.flush()
        header = source.readline().split()
        if len(header) != 3:  # "ID missing", or the process ended
            log = "" if header else self._log_of_end()
            raise OSError(reason(log) if log else f"{blob} is missing")
        size = int(header[2])
        if size > limit:
            raise OverflowError(f"{size:,} bytes")
        data = source.read(size + 1)[:size]
        if len(data) < size:
            log = self._log_of_end()
            raise OSError(reason(log) if log else f"{blob} is cut short")
        return data

    def _log_of_end(self) -> str:
        """Return what git wrote before it ended."""
        log: bytes = self._process.communicate()[1]
        _refuse_signal(self._process.returncode)
        return log.decode("utf-8", "replace")

    def close(self) -> None:
        """End the process."""
        self._running.close()


def first_line(git: Git, *arguments: str) -> str:
    """Return the first line that a command prints; empty if it fails or there is no git."""
    if program("git") is None:
        return ""
    ended = git.run(*arguments, seconds=30)
    return ended.out.partition("\n")[0].strip() if ended.code == 0 else ""
