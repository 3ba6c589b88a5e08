"""COUNT objects of many kinds: built, sorted, indexed, thinned out, changed, pickled; prints one digest."""

import gc
import hashlib
import pickle
import sys

count = int(sys.argv[1])
rows = [
    {"id": i, "name": f"name-{i * 7919 % count}", "tags": [i % 3, str(i % 11)], "blob": bytes([i % 251]) * (i % 200)}
    for i in range(count)
]
rows.sort(key=lambda row: row["name"])
index = {row["id"]: row for row in rows}
del rows[::3]
for row in rows[::5]:
    row["tags"].append(row["name"][::-1])
for i in range(0, count, 7):
    del index[i]
gc.collect()

digest = hashlib.sha256()
for start in range(0, len(rows), 1000):
    digest.update(pickle.dumps([sorted(row.items()) for row in rows[start : start + 1000]], protocol=4))
for i in sorted(index, key=lambda i: i * 7919 % count):
    digest.update(index[i]["blob"] + index[i]["name"].encode())
print(digest.hexdigest(), len(rows), len(index), sum(len(row["tags"]) for row in rows))
