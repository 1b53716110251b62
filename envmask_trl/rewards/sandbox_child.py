"""The program inside the sandbox: reads a job from stdin, writes one line per expression to what was its stdout.

Run as a script with nothing of this package on its path, so it imports the standard library only.
"""

import _posixsubprocess
import json
import os
import resource
import sys
from collections.abc import Callable
from functools import partial
from os.path import realpath
from types import ModuleType
from typing import Any, NoReturn

REFUSED = (
    "socket.",
    "subprocess.",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "os.kill",
    "ctypes.",
)
REFUSED_MODULES = ("ctypes", "_ctypes", "_posixsubprocess")  # the last one is imported already
WRITING = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "os.chown",
)


def main() -> None:
    job = json.loads(sys.stdin.read())
    for name, value in job["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1) as out:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        scope = hidden_main()
        _posixsubprocess.fork_exec = refuse_process  # raises no audit event; `multiprocessing` calls it by itself
        sys.addaudithook(guard(os.getcwd()))
        failed = attempt(partial(run, job, scope))
        for number, expression in enumerate(job["expressions"]):
            entry = {"number": number, **(failed or attempt(partial(eval, expression, scope)))}
            out.write(json.dumps(entry) + "\n")


def hidden_main() -> dict[str, Any]:
    """The names of the code under test, whose `import __main__` finds them and not this script's."""
    sys.modules["__main__"] = module = ModuleType("__sandbox__")
    return vars(module)


def refuse_process(*_: Any) -> NoReturn:
    raise PermissionError("starting a process is not allowed here")


def run(job: dict[str, Any], scope: dict[str, Any]) -> None:
    exec(compile(job["setup"], "<setup>", "exec"), scope)
    exec(compile(job["code"], "<code>", "exec"), scope)


def attempt(work: Callable[[], Any]) -> dict[str, Any]:
    """{"value": ...} as JSON knows it, {"error": ...}, or {} for None: even SystemExit is an error of the code."""
    try:
        value = work()
        json.dumps(value, allow_nan=False)
        return {} if value is None else {"value": value}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def guard(home: str) -> Callable[[str, tuple], None]:
    """An audit hook that refuses what the code under test has no business with.

    It cannot be removed again; code that patches `os` or climbs through frames can still mislead it.
    """

    def refuse(event: str, arguments: tuple) -> None:
        if event.startswith(REFUSED) or (event == "import" and arguments[0] in REFUSED_MODULES):
            raise PermissionError(f"{event} is not allowed here")
        if event == "open" and may_write(arguments) and not inside(home, arguments[0]):
            raise PermissionError("open for writing is allowed in the current directory only")
        if event.startswith(WRITING) and not all(inside(home, path) for path in arguments[:2] if is_path(path)):
            raise PermissionError(f"{event} is allowed in the current directory only")

    return refuse


def may_write(arguments: tuple) -> bool:
    """Whether a file is opened for writing, or a directory for the calls that take one instead of a path."""
    path, mode, flags = arguments
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    return bool(writes) or (is_path(path) and os.path.isdir(path))


def is_path(value: Any) -> bool:
    return isinstance(value, str | bytes | os.PathLike)


def inside(home: str, path: Any) -> bool:
    """A number is a file that is open already, and was checked then."""
    return not is_path(path) or realpath(os.fsdecode(path)).startswith(realpath(home) + os.sep)


if __name__ == "__main__":
    main()
