"""Runs the ``git`` program on one repository, without the settings of a shell."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ringproof.errors import InputError
from ringproof.processes import contained

# A user's hook or shell may have set these, and they would lead to another repository.
_UNSET = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY",
          "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_NAMESPACE")  # fmt: skip
_SET = ("LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=true", "GIT_SSH_VARIANT=auto")


class GitResult(NamedTuple):
    """How a command ended: its exit code, ``None`` after a time limit; its output and messages."""

    code: int | None
    out: str
    log: str

    @property
    def reason(self) -> str:
        """Git's own last word on what failed, on one line."""
        lines = [line.strip() for line in self.log.replace("\r", "\n").splitlines()]
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
        program = shutil.which("git")
        if program is None:
            problem, remedy = "the git program is not installed", "install git 2.29 or newer"
            raise InputError("upstream", None, problem, f"{remedy}, or use dir: or pip:")
        words = ["env", *(word for name in _UNSET for word in ("-u", name)), *_SET]
        words += () if self.fetches else ("GIT_ALLOW_PROTOCOL=none",)
        words += (program, "-c", "core.fsmonitor=false")
        words += (word for setting in self.settings for word in ("-c", setting))
        if self.folder is not None:
            inside = self.folder / ".git"
            words.append(f"--git-dir={inside if inside.exists() else self.folder}")
        return [*words, *arguments]

    def run(self, *arguments: str, feed: str = "", seconds: float | None = None) -> GitResult:
        """Run one command in a session of its own, so that its helpers end with it.

        Args:
            feed: Standard input.
            seconds: Time limit.
        """
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        kept = () if self.lock is None else (self.lock,)
        command = self.command(*arguments)
        with contained(command, pass_fds=kept, text=True, errors="replace", **pipes) as process:
            try:
                out, log = process.communicate(feed, timeout=seconds)
            except subprocess.TimeoutExpired:
                return GitResult(None, "", "")
            return GitResult(process.returncode, out, log)


class BlobReader:
    """Reads files of a repository by their ids, in one process of ``git cat-file --batch``."""

    def __init__(self, git: Git) -> None:
        self._process = subprocess.Popen(
            git.command("cat-file", "--batch"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def read(self, blob: str, limit: int) -> bytes:
        """Return the content of a file.

        Raises:
            OverflowError: It is larger than the limit; nothing else can be read after that.
            OSError: It is missing or damaged.
        """
        source, sink = self._process.stdout, self._process.stdin
        assert source is not None and sink is not None
        with contextlib.suppress(BrokenPipeError):
            sink.write(f"{blob}\n".encode())
            sink.flush()
        header = source.readline().split()
        if len(header) != 3:  # "ID missing", or the process ended
            log = "" if header else self._process.communicate()[1].decode("utf-8", "replace")
            raise OSError(GitResult(None, "", log).reason if log else f"{blob} is missing")
        size = int(header[2])
        if size > limit:
            raise OverflowError(f"{size:,} bytes")
        data = source.read(size + 1)[:size]
        if len(data) < size:
            raise OSError(f"{blob} is cut short")
        return data

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def first_line(git: Git, *arguments: str) -> str:
    """Return the first line that a command prints; empty if it fails or there is no git."""
    if shutil.which("git") is None:
        return ""
    ended = git.run(*arguments, seconds=30)
    return ended.out.partition("\n")[0].strip() if ended.code == 0 else ""
