import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import shared_memory

import pytest

from words import count


@pytest.mark.parametrize("text, words", [("", 0), ("one", 1), ("one two\nthree", 3)])
def test_count(text, words):
    assert count(text) == words


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pool(method):
    with multiprocessing.get_context(method).Pool(3) as pool:
        assert pool.map(count, ["a b"] * 100) == [2] * 100


def test_executor():
    with ProcessPoolExecutor(2) as executor:
        assert sum(executor.map(count, ["a b c"] * 10)) == 30


def add(queue, lock, total, n):
    for _ in range(n):
        with lock:
            total.value += 1
    queue.put(os.getpid())


def test_queue_and_lock():
    queue, lock, total = multiprocessing.Queue(), multiprocessing.Lock(), multiprocessing.Value("i", 0)
    workers = [multiprocessing.Process(target=add, args=(queue, lock, total, 50)) for _ in range(3)]
    for w in workers:
        w.start()
    pids = {queue.get() for _ in workers}
    for w in workers:
        w.join()
    assert len(pids) == 3 and total.value == 150


def test_manager():
    with multiprocessing.Manager() as manager:  # a Unix socket between its own processes
        shared = manager.dict()
        p = multiprocessing.Process(target=shared.update, args=({"a": 1},))
        p.start()
        p.join()
        assert dict(shared) == {"a": 1}


def test_shared_memory():
    block = shared_memory.SharedMemory(create=True, size=1 << 20)
    block.buf[:5] = b"hello"
    code = f"from multiprocessing import shared_memory as m; b = m.SharedMemory({block.name!r}); print(bytes(b.buf[:5]))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, stdin=subprocess.DEVNULL)
    block.close()
    try:
        block.unlink()
    except FileNotFoundError:  # the other's resource tracker has done it
        pass
    assert out.stdout == b"b'hello'\n"
