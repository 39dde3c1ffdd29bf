"""Backups of a lake and of the progress of its pipelines: taken while these run, and put back."""
