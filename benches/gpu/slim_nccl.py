#!/usr/bin/env python3
"""Makes a small libnccl out of the one in NVIDIA's Python wheel: with the machine code of one architecture only.

Usage: slim_nccl.py IN OUT ARCHITECTURE      such as 90 for sm_90

The library is not linked again. Its section of fat binaries is a row of containers, each a header and entries for one
architecture or PTX version. In each container the entries that stay move to the front and its length shrinks; what is behind
becomes zeros, so all addresses stay, and the file compresses well. The relocatable copies, which only matter to who links with
NCCL's device code, are emptied.
"""
import pathlib
import struct
import sys

MAGIC = b"\x50\xed\x55\xba"
MACHINE_CODE = 2
LOADED, RELOCATABLE = ".nv_fatbin", "__nv_relfatbin"


def sections(image):
    """Name, offset and length of each section of a 64-bit ELF file."""
    table, = struct.unpack_from("<Q", image, 0x28)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, table + index * entry_bytes) for index in range(count)]
    names = headers[names_index][4]
    for header in headers:
        start = names + header[0]
        yield image[start:image.index(0, start)].decode(), header[4], header[5]


def entries(image, start, end):
    """Begin, end, kind and architecture of each entry of a container."""
    while start < end:
        kind, _, header_bytes, body_bytes = struct.unpack_from("<HHIQ", image, start)
        architecture, = struct.unpack_from("<I", image, start + 28)
        yield start, start + header_bytes + body_bytes, kind, architecture
        start += header_bytes + body_bytes


def slim_section(image, offset, length, wanted):
    """Empties a section's containers of all but the architectures wanted; returns bytes kept."""
    at, kept_bytes = offset, 0
    while at < offset + length:
        if image[at:at + 4] != MAGIC:
            at += 8
            continue
        header_bytes, body_bytes = struct.unpack_from("<HQ", image, at + 6)
        first, end = at + header_bytes, at + header_bytes + body_bytes
        kept = b"".join(bytes(image[begin:finish]) for begin, finish, kind, architecture in entries(image, first, end)
                        if kind == MACHINE_CODE and architecture in wanted)
        # A container with nothing left in it stays whole: whether loaders take an empty one is not
        # known. Relocatable ones are not loaded.
        if kept or not wanted:
            image[first:end] = kept + bytes(body_bytes - len(kept))
            struct.pack_into("<Q", image, at + 8, len(kept))
            kept_bytes += len(kept)
        at = end
    return kept_bytes


def main():
    source, destination, architecture = sys.argv[1:4]
    image = bytearray(pathlib.Path(source).read_bytes())
    found = {name: (offset, length) for name, offset, length in sections(image)}
    if LOADED not in found:
        raise SystemExit(f"{source} has no section {LOADED}: it is not a library that nvcc has built")
    kept = slim_section(image, *found[LOADED], {int(architecture)})
    if kept == 0:
        raise SystemExit(f"{source} has no machine code for sm_{architecture}")
    if RELOCATABLE in found:
        slim_section(image, *found[RELOCATABLE], set())
    pathlib.Path(destination).write_bytes(image)


if __name__ == "__main__":
    main()
