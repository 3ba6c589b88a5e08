"""Reads pages from stdin, each after its length (four bytes, little-endian), and writes what liblzo2 makes of them in the
same way. The argument: compress or decompress. Exit status 77: there is no liblzo2."""

import ctypes
import sys

PAGE = 4096
try:
    library = ctypes.CDLL("liblzo2.so.2")
except OSError:
    sys.exit(77)
work = ctypes.create_string_buffer(16384 * 8)
out = ctypes.create_string_buffer(2 * PAGE)
call = library.lzo1x_1_compress if sys.argv[1] == "compress" else library.lzo1x_decompress_safe
while size := sys.stdin.buffer.read(4):
    data = sys.stdin.buffer.read(int.from_bytes(size, "little"))
    length = ctypes.c_size_t(len(out))
    error = call(data, ctypes.c_size_t(len(data)), out, ctypes.byref(length), work)
    if error:
        sys.exit(f"{sys.argv[1]}: error {error}")
    sys.stdout.buffer.write(length.value.to_bytes(4, "little") + out.raw[: length.value])
