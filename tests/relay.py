"""`relay.py COMMAND...`: as ssh to another node, without a network. Run by path, in a process of its own.

The command gets a bare environment (and our TMPDIR), a session and a parent that are not ours, and three
pipes. It does not end when the relay does; its pipes break, as sshd's do.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

CODE = 3
LOGIN = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": "/nowhere", "FROM_LOGIN": "yes"}


def server(argv: list[str]) -> None:
    """Run the command and write its exit code; stands for sshd."""
    os.set_inheritable(CODE, False)
    done = subprocess.Popen(argv)
    for standard in (0, 1, 2):
        os.close(standard)
    code = done.wait()
    with os.fdopen(CODE, "w") as file:
        file.write(str(code if code >= 0 else 255))


def client(argv: list[str]) -> int:
    """Start the server and copy the three streams."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    pipes = [os.pipe() for _ in range(4)]
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            theirs = [
                os.dup2(end, 100 + number) for number, end in enumerate([pipes[0][0], *(w for _, w in pipes[1:])])
            ]
            for number, end in enumerate(theirs):
                os.dup2(end, number, inheritable=True)
            os.closerange(4, 200)
            login = {**LOGIN, "TMPDIR": os.environ.get("TMPDIR", "/tmp")}
            os.execve(sys.executable, [sys.executable, "-I", "-S", __file__, "--server", *argv], login)
        os._exit(0)
    os.wait()
    os.close(pipes[0][0])
    for _, write in pipes[1:]:
        os.close(write)
    routes = {0: pipes[0][1], pipes[1][0]: 1, pipes[2][0]: 2}
    outputs = {pipes[1][0], pipes[2][0]}
    while outputs:
        for source in select.select(list(routes), [], [])[0]:
            data = os.read(source, 1 << 16)
            if not data:
                if source == 0:
                    os.close(routes[source])
                del routes[source]
                outputs.discard(source)
            try:
                while data:
                    data = data[os.write(routes[source], data) :]
            except BrokenPipeError:  # the command reads no more
                continue
    with os.fdopen(pipes[3][0]) as file:
        return int(file.read() or 255)


if __name__ == "__main__":
    if sys.argv[1] == "--server":
        server(sys.argv[2:])
    else:
        sys.exit(client(sys.argv[1:]))
