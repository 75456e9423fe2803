"""Tests on the real SGLang, on the CPU rig."""
