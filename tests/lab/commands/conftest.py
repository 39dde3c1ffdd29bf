from tests.cli.conftest import cli, own_folder

__all__ = ["cli", "own_folder"]
