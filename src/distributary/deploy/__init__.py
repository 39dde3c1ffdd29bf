"""Deploys a pipeline to the place where it runs: units, manifests, DAG files, jobs.

And manages grants.

Every written file or job has a mark, so that a second `install` finds it, and `uninstall` removes
only that.
"""
