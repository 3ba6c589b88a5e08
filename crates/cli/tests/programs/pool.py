"""A pool of four processes, forked or spawned: each reads a table that the parent made (spawned ones get a copy sent), makes
one of its own, and gives a digest of both.

    pool.py fork|spawn ENTRIES
"""

import hashlib
import multiprocessing
import sys


def table(seed, entries):
    return {f"{seed}:{i * 7919 % entries}": f"{(i + seed) * 2654435761 % 1000003:06x}" * 4 for i in range(entries)}


def digest(seed, shared):
    own = table(seed, len(shared) // 2)
    sha = hashlib.sha256()
    for entries in (shared, own):
        for key in sorted(entries):
            sha.update(key.encode())
            sha.update(entries[key].encode())
    return sha.hexdigest()


def start(entries_of_parent):
    global shared
    shared = entries_of_parent


def work(seed):
    return digest(seed, shared)


if __name__ == "__main__":
    method, entries = sys.argv[1], int(sys.argv[2])
    context = multiprocessing.get_context(method)
    with context.Pool(4, start, (table(0, entries),)) as pool:
        for line in pool.map(work, range(1, 9), chunksize=1):
            print(line)
