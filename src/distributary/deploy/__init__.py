"""Puts a pipeline where it runs: units, manifests, DAG files, jobs; and says who may read what.

Everything that is written bears a mark, so that a second `install` finds it, and `uninstall`
removes that and nothing else.
"""
