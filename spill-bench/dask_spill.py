"""dask's SpillBuffer, measured like the others: prints its figures as JSON.

Makes itself a virtual environment in the user's cache directory the first time. Not named `dask.py`, as Python would
take it for dask itself.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

VERSION = "2026.8.0"
POOL = 32 << 20
MIB = 1 << 20


def run_in_environment() -> None:
    """Runs this again with a Python that has dask, unless this one has."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    environment = Path(caches) / "spill-bench" / f"dask-{VERSION}"
    if Path(sys.prefix) == environment:
        return
    python = environment / "bin" / "python"
    ready = environment / "ready"
    if not ready.exists():
        import venv

        venv.create(environment, clear=True, with_pip=True)
        packages = [f"dask=={VERSION}", f"distributed=={VERSION}"]
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
        subprocess.run(install, check=True, stdout=sys.stderr)
        ready.touch()
    os.execv(python, [str(python), *sys.argv])


def of_proc(path: str, name: str) -> int:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    return 0


def files_below(directory: str):
    for parent, _, names in os.walk(directory):
        for name in names:
            yield os.path.join(parent, name)


def make_cold(directory: str) -> None:
    os.sync()
    for path in files_below(directory):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def make_warm(directory: str) -> None:
    os.sync()
    for path in files_below(directory):
        with open(path, "rb") as file:
            while file.read(MIB):
                pass


class Values:
    """The value of a key: other bytes for each, which begin with the key."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.pool = os.urandom(POOL + length)

    def make(self, key: int) -> bytes:
        start = key * 0x9E3779B97F4A7C15 % POOL
        return key.to_bytes(8, "little") + self.pool[start + 8 : start + self.length]

    def check(self, key: int, value: bytes) -> None:
        if len(value) != self.length or value[:8] != key.to_bytes(8, "little"):
            raise ValueError(f"key {key}: another value")


class Meter:
    def __init__(self, memory_before: int) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self.memory_before = memory_before
        self.read = of_proc("/proc/self/io", "read_bytes:")
        self.written = of_proc("/proc/self/io", "write_bytes:")
        self.cpu = time.process_time()
        self.began = time.perf_counter()

    def figures(self, count: int, length: int, memory: int) -> dict[str, float]:
        elapsed = time.perf_counter() - self.began
        cpu = time.process_time() - self.cpu
        peak = (of_proc("/proc/self/status", "VmHWM:") << 10) - self.memory_before
        return {
            "MB/s": count * length / elapsed / 1e6,
            "CPU s/GiB": cpu / (count * length / (1 << 30)),
            "peak MiB over memory": (peak - memory) / MIB,
        }


def waits_as_figures(call: str, waits: list[float]) -> dict[str, float]:
    waits.sort()
    at = {"p50": len(waits) // 2, "p99": len(waits) * 99 // 100, "max": len(waits) - 1}
    return {f"{call} {name} µs": waits[place] * 1e6 for name, place in at.items()}


def spill(buffer, values: Values, wanted: argparse.Namespace, memory_before: int) -> dict[str, float]:
    waits = []
    meter = Meter(memory_before)
    for key in range(wanted.count):
        value = values.make(key)
        began = time.perf_counter()
        buffer[str(key)] = value
        waits.append(time.perf_counter() - began)
    spilled = len(buffer.disk)
    figures = meter.figures(spilled, wanted.length, wanted.memory)
    os.sync()
    written = spilled * wanted.length
    figures["MB/s synced"] = written / (time.perf_counter() - meter.began) / 1e6
    bytes_written = of_proc("/proc/self/io", "write_bytes:") - meter.written
    figures["written/value bytes"] = bytes_written / written
    stats = [os.stat(path) for path in files_below(wanted.dir)]
    figures["allocated/value bytes"] = sum(stat.st_blocks * 512 for stat in stats) / written
    figures["stored/value bytes"] = sum(stat.st_size for stat in stats) / written
    return figures | waits_as_figures("insert", waits)


def restore(buffer, values: Values, wanted: argparse.Namespace, memory_before: int) -> dict[str, float]:
    for key in range(wanted.count):
        buffer[str(key)] = values.make(key)
    # Of those that are not in memory, and have not been for long.
    keys = list(range(wanted.count - 2 * wanted.memory // wanted.length))
    random.Random(1).shuffle(keys)
    (make_warm if wanted.warm else make_cold)(wanted.dir)
    waits = []
    meter = Meter(memory_before)
    for key in keys:
        began = time.perf_counter()
        value = buffer[str(key)]
        waits.append(time.perf_counter() - began)
        values.check(key, value)
    figures = meter.figures(len(keys), wanted.length, wanted.memory)
    figures["reads/s"] = figures["MB/s"] * 1e6 / wanted.length
    bytes_read = of_proc("/proc/self/io", "read_bytes:") - meter.read
    figures["read/value bytes"] = bytes_read / (len(keys) * wanted.length)
    return figures | waits_as_figures("read", waits)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["spill", "restore"])
    parser.add_argument("--dir", required=True)
    for name in ["length", "count", "memory"]:
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--warm", action="store_true")
    wanted = parser.parse_args()
    run_in_environment()

    import dask
    from distributed.spill import SpillBuffer

    values = Values(wanted.length)
    memory_before = of_proc("/proc/self/status", "VmRSS:") << 10
    # The others compress nothing here either.
    with dask.config.set({"distributed.worker.memory.spill-compression": False}):
        buffer = SpillBuffer(wanted.dir, target=wanted.memory)
    measure = {"spill": spill, "restore": restore}[wanted.what]
    print(json.dumps(measure(buffer, values, wanted, memory_before)))


if __name__ == "__main__":
    main()
