"""Backups of a lake and of its pipelines' progress: taken during runs, and restored."""
