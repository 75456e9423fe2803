"""pytest configuration of this repository; the plugin itself is installed, not loaded from here."""

from __future__ import annotations

pytest_plugins = ["pytester"]
