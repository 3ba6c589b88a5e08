// COUNT objects, strings and typed arrays, most of them kept, some of them garbage; prints one hash.
const count = Number(process.argv[2]);
const byName = new Map();
const kept = [];
for (let i = 0; i < count; i++) {
  const name = `key ${(i * 7919) % count}`;
  const row = { id: i, name, tags: [i % 7, String(i % 13)], bytes: new Uint8Array(i % 128).fill(i) };
  byName.set(name, row);
  if (i % 3) kept.push({ row, copy: name.split("").reverse().join("") });
}
kept.sort((a, b) => (a.copy < b.copy ? -1 : a.copy > b.copy ? 1 : a.row.id - b.row.id));
let hash = 17;
const add = (word) => { hash = (Math.imul(hash, 31) + word) | 0; };
for (const { row, copy } of kept) {
  for (let i = 0; i < copy.length; i++) add(copy.charCodeAt(i));
  for (const byte of row.bytes) add(byte);
}
for (let i = 0; i < count; i++) add(byName.get(`key ${(i * 7919) % count}`).id);
console.log(hash, byName.size, kept.length);
