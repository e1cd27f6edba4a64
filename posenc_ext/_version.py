"""The version, written here and nowhere else: setup.py and CMakeLists.txt read this file."""

__version__ = "0.1.0"
