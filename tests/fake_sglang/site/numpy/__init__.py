"""Stands for numpy, which the plugin's sampling script seeds: importing the real one takes longer than a fake run."""

from numpy import random

__all__ = ["random"]
