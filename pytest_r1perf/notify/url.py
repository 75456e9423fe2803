"""Addresses that a secret is sent to: https, or this host; and nothing that two parsers could read differently."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from pytest_r1perf.notify.channel import NotifyError

_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")


def checked(variable: str, url: str) -> str:
    """The address without blanks around it.

    Raises :class:`NotifyError`, which names the variable and never the address: a webhook's is a secret.
    """
    url = url.strip()
    if not url.isascii() or not url.isprintable() or any(letter in url for letter in ' \\<>"'):
        raise NotifyError(f"{variable} is no URL: it has a blank or another character that no URL has; copy it again")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise NotifyError(f"{variable} is no URL: copy it again") from None
    if parts.scheme not in ("https", "http") or not _HOST.fullmatch(host):
        raise NotifyError(f"{variable} is no https URL: copy it again, with https:// and the host")
    if "@" in parts.netloc:
        raise NotifyError(f"{variable} has a user or password before the host: give an address without")
    if parts.scheme == "http" and not is_loopback(url):
        raise NotifyError(f"{variable} is not https, so anybody on the way could read it: give an https address")
    return url


def host_of(url: str) -> str:
    """Host, and the port where one is given: what errors may say of an address."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


def is_loopback(url: str) -> bool:
    """Whether an address is this host's own."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
