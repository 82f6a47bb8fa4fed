"""Where the ranks that know a store reach this machine."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from typing import Any

import oxccl

# What asks the kernel for an interface's address.
_SIOCGIFADDR = 0x8915


def own_address(store: Any) -> str:
    """The address under which the ranks that know this store reach this machine: that of
    OXCCL_INTERFACE, or the one from which this machine reaches the store's."""
    interface = os.environ.get("OXCCL_INTERFACE", "")
    if interface:
        return _address_of(interface)
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host = getattr(store, "host", None) or os.environ.get("MASTER_ADDR", "127.0.0.1")
    family, kind, _, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return _bracketed(probe.getsockname()[0])


def _address_of(interface: str) -> str:
    """An address as it is, or that of an interface by its name."""
    try:
        return _bracketed(str(ipaddress.ip_address(interface)))
    except ValueError:
        pass
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
        except OSError as error:
            text = f"OXCCL_INTERFACE: {interface!r} is no interface with an address: {error}"
            raise oxccl.UsageError(text) from None
    return socket.inet_ntoa(answer[20:24])


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
