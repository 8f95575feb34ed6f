"""Runs the ``git`` program on one bare repository, and says in one line why it failed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringproof.errors import InputError

# A user's hook or shell may have set these, and they would lead to another repository.
_UNSET = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY",
          "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_NAMESPACE")  # fmt: skip
_SET = ("LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=true", "GIT_SSH_VARIANT=auto")
_UNREACHABLE = re.compile(
    r"[Cc]ould not resolve|[Cc]onnection (refused|reset|timed out)|[Ff]ailed to connect"
    r"|[Cc]ouldn't connect|unable to (connect|look up)|[Nn]etwork is unreachable|No route to host"
    r"|[Oo]peration (timed out|too slow)|early EOF|hung up unexpectedly|SSL|HTTP 5\d\d"
    r"|error: 5\d\d|Proxy|403|407"
)
_UNKNOWN = re.compile(
    r"not our ref|couldn't find remote ref|no such remote ref|unadvertised object"
)
_FULL = re.compile(r"No space left on device|[Dd]isk quota exceeded|File too large")
_ACCESS = re.compile(r"^fatal: (unable to access '[^']*': )?")
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@|[^/\s@:]+:[^/\s@:]+@")


class Unreachable(InputError):
    """The server of a repository does not answer. Other repositories there will not, either."""


@dataclass(frozen=True)
class GitProgram:
    """The ``git`` program for a bare repository in the cache.

    Attributes:
        folder: The repository; ``None`` for commands that need none.
        url: Where it is fetched from.
        lock: File descriptor of the lock of the cache, which the program keeps while it runs.
    """

    folder: Path | None
    url: str
    lock: int

    def run(
        self, *arguments: str, feed: str = "", seconds: float | None = None, what: str = ""
    ) -> str:
        """Run one command and return its standard output.

        Args:
            feed: Standard input.
            seconds: Time limit.
            what: What is fetched, for messages.

        Raises:
            Unreachable: The server does not answer in time.
            InputError: The command failed.
        """
        command = [
            *("env", *(word for name in _UNSET for word in ("-u", name)), *_SET, _program()),
            *("-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60"),
            *("-c", f"remote.origin.url={self.url}", "-c", "core.fsmonitor=false"),
            *("-c", "fetch.negotiationAlgorithm=noop", "-c", "maintenance.auto=false"),
            *(() if self.folder is None else (f"--git-dir={self.folder}",)),
            *arguments,
        ]
        code, out, log = _ended(command, feed, seconds, self.lock)
        if code != 0:
            raise self._failure(what, log, seconds if code is None else None)
        return out

    def _failure(self, what: str, log: str, seconds: float | None) -> InputError:
        url = _CREDENTIALS.sub("", self.url)
        reason = f"no answer within {seconds:g} s" if seconds is not None else _reason(log)
        name = f"{what} from {url}" if what else url
        if _FULL.search(log):
            return InputError("--cache", self.folder, "the disk is full", "free space, and go on")
        if seconds is not None or _UNREACHABLE.search(log):
            remedy = "check the network, or name another server with --from NAME=URL"
            return Unreachable("upstream", None, f"{url} cannot be reached: {reason}", remedy)
        if _UNKNOWN.search(log):
            remedy = "correct the card, or name another server with --from NAME=URL"
            return InputError("upstream", None, f"has no such commit: {name}", remedy)
        remedy = "name another server with --from NAME=URL"
        return InputError("upstream", None, f"cannot be fetched: {name}: {reason}", remedy)


def _program() -> str:
    found = shutil.which("git")
    if found is None:
        problem = "the git program is not installed"
        raise InputError("upstream", None, problem, "install git 2.29 or newer, or give --upstream")
    return found


def _ended(
    command: Sequence[str], feed: str, seconds: float | None, lock: int
) -> tuple[int | None, str, str]:
    """Run a command in a session of its own, so that it can be ended with all its helpers.

    Returns:
        Its exit code, ``None`` after the time limit; its standard output; its messages.
    """
    with subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        pass_fds=(lock,),
        text=True,
        errors="replace",
    ) as process:
        try:
            out, log = process.communicate(feed, timeout=seconds)
            return process.returncode, out, log
        except subprocess.TimeoutExpired:
            return None, "", ""
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)


def _reason(log: str) -> str:
    """Return git's own last word on what failed, on one line and without passwords."""
    lines = [line.strip() for line in log.replace("\r", "\n").splitlines() if line.strip()]
    named = [line for line in lines if line.startswith(("fatal:", "error:", "remote: fatal:"))]
    said = _ACCESS.sub("", (named or lines or ["git gave no reason"])[0])
    return _CREDENTIALS.sub("", " ".join(said.split()))[:200]
