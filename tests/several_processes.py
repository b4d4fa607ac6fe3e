"""A script in several processes of one machine, with gloo collectives and a coordinator on the loopback device."""

import os
import pathlib
import signal
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


def free_port() -> int:
    """Return the number of a port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("localhost", 0))
        return sock.getsockname()[1]


def result_of(script: pathlib.Path, count: int, folder: pathlib.Path, *options: str, devices: int = 1) -> list[str]:
    """Run ``script PORT COUNT INDEX FOLDER [options]`` as ``count`` processes.

    Args:
      script: it prints a line "RESULT ..." on the first process.
      count: how many processes.
      folder: the folder of the run.
      options: with "die" the last process must end with exit code 9, and the others with an error that says so.
      devices: how many CPU devices each process has.

    Returns:
      The words behind "RESULT", or none where a process died.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"
    if devices > 1:
        flags += f" --xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    port = str(free_port())
    processes = []
    for index in range(count):
        process = subprocess.Popen(
            [sys.executable, str(script), port, str(count), str(index), str(folder), *options],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
    try:
        if "die" in options:
            _check_deaths(processes)
            return []
        out, errors = processes[0].communicate(timeout=300)
        assert processes[0].returncode == 0, errors
        return next(line for line in out.splitlines() if line.startswith("RESULT")).split()[1:]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _check_deaths(processes: list[subprocess.Popen]) -> None:
    """Wait for the last process to die, and for what the others say of it."""
    last = processes[-1]
    if last.wait(timeout=300) != 9:
        raise AssertionError(last.communicate()[1])
    for survivor in processes[:-1]:  # an ordinary error, where JAX alone aborts the process after a while
        _, errors = survivor.communicate(timeout=100)
        # 1, or that of an abort where JAX cannot take leave of the process that has gone.
        assert survivor.returncode in (1, -signal.SIGABRT), errors
        # Of more than two processes JAX aborts one now and then before it can say so.
        told = "If another process has ended, end all of them" in errors
        assert told or (len(processes) > 2 and survivor.returncode != 1), errors
