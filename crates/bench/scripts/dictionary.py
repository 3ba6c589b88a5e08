"""A dictionary of COUNT strings, summed in random order LOOKUPS times; prints the checksum and the time as JSON.

The checksum depends on COUNT and LOOKUPS only, so it must be the same wherever the program runs.
"""

import json
import random
import sys
import time

count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
lookups = int(sys.argv[2]) if len(sys.argv) > 2 else 200_000

start = time.perf_counter()
strings = {i: f"string {i:09d} of the dictionary, {i * 2654435761 % 4294967296:010d}" for i in range(count)}
built = time.perf_counter()

choose = random.Random(1)
checksum = 0
for _ in range(lookups):
    i = choose.randrange(count)
    string = strings[i]
    checksum = (checksum * 31 + len(string) + int(string[-10:])) % 2**61
end = time.perf_counter()

print(json.dumps({
    "unit": "lookups/s",
    "rate": lookups / (end - built),
    "seconds": end - start,
    "build_seconds": built - start,
    "checksum": checksum,
}))
